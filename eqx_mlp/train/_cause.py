"""Why a loss is not finite, said by the loss itself."""

from typing import Any

import jax

from .._keys import with_key
from .._types import Model
from ..data import Batch
from ..nn._ensemble import members_of
from ._batches import Recipe
from ._step import transformed


def raise_loss_cause(recipe: Recipe, model: Model, batch: Batch, key: Any) -> None:
    """Call the loss on each example of a batch, where its own checks can raise.

    In compiled code it could not check values, such as a label's range.
    """
    loss = transformed(recipe.loss, recipe.transform)
    for i in range(batch.size):
        if batch.weight is not None and not batch.weight[i]:
            continue
        row = jax.tree.map(lambda x, i=i: x[i], batch.example)
        for member in members_of(model):
            with_key(loss, member, *row, key=key)
