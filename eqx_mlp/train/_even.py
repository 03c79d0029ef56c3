"""Batches of a stream, made alike."""

from typing import Any

import jax
import numpy as np

from ..data import Batch
from ..distributed._layout import filled
from ..per_example import require_batch
from ._data import size_of


class UnfitBatch(ValueError):
    """A batch that a step cannot take, or that is not like the ones before."""


class Even:
    """Gives each batch the rows of the first, and lets nothing else differ.

    Rows that are missing are added with weight 0, so one compiled program serves all.
    """

    def __init__(self, size: int | None):
        """`size` rows, or those of the first batch."""
        self._size = size
        self._form: dict[str, str] = {}

    def __call__(self, item: Any) -> Batch:
        """The batch on the host, in memory of its own."""
        example, weight = self._read(item)
        n = size_of(example)
        if self._size is None:
            self._size = n
        if not 1 <= n <= self._size:
            raise UnfitBatch(
                f"it has {n} examples, and a batch of this run has 1 to {self._size}, "
                "as many as the first: if that one was smaller than the rest, give "
                "batch_size="
            )
        form = _form_of(example)
        self._form = self._form or form
        if form != self._form:
            raise UnfitBatch(
                f"it holds {_listed(form)}, and the first held {_listed(self._form)}"
            )
        return filled(Batch(example, np.asarray(weight, np.float32)), self._size)

    def _read(self, item: Any) -> tuple[tuple, Any]:
        weight = None
        if isinstance(item, Batch):
            item, weight = item.example, item.weight
        if not isinstance(item, tuple | list):
            raise UnfitBatch(
                "a batch must be a tuple of the arrays that the loss takes after the "
                f"model, such as (x, y), or a data.Batch, got {type(item).__name__}"
            )
        example = jax.tree.map(_own, tuple(item))
        if weight is not None:
            weight = np.asarray(weight)
        try:
            require_batch("the loss", example, weight)
        except ValueError as error:
            raise UnfitBatch(str(error)) from error
        return example, np.ones(size_of(example)) if weight is None else weight


def _own(x: Any) -> Any:
    # The stream may write its next batch into the same memory.
    if isinstance(x, jax.Array):
        return x
    x = np.array(x)
    if x.dtype.kind in "OSUMm":
        raise UnfitBatch(f"it holds {x.dtype}, where numbers are needed")
    return x


def _form_of(example: tuple) -> dict[str, str]:
    leaves = jax.tree_util.tree_flatten_with_path(example)[0]
    return {
        jax.tree_util.keystr(path): f"{x.dtype}{['batch', *x.shape[1:]]}".replace(
            "'", ""
        )
        for path, x in leaves
    }


def _listed(form: dict[str, str]) -> str:
    return ", ".join(f"{path} {what}" for path, what in form.items())
