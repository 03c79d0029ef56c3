"""Optax transformations over label trees that are Equinox modules."""

from collections.abc import Hashable, Mapping
from typing import Any

import jax
import optax
from jaxtyping import PyTree


def multi_transform(
    transforms: Mapping[Hashable, optax.GradientTransformation], labels: PyTree
) -> optax.GradientTransformationExtraArgs:
    """`optax.multi_transform` for a label tree that may itself be callable.

    Optax calls labels that are callable, to compute a tree from the parameters. A tree
    of labels shaped like an `eqx.Module` with `__call__` is callable too, and Optax
    would run the model. Here a function is called and a pytree is taken as it is.

    Args:
        transforms: label to transformation.
        labels: a pytree of labels with the model's structure or a prefix of it, or a
            function from parameters to one.

    >>> import jax, optax
    >>> from eqx_mlp import MLP, multi_transform
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> labels = jax.tree.map(lambda leaf: "frozen", model)
    >>> optimizer = multi_transform({"frozen": optax.set_to_zero()}, labels)
    """
    if _is_function(labels):
        return optax.multi_transform(transforms, labels)
    return optax.multi_transform(transforms, lambda _: labels)


def _is_function(labels: Any) -> bool:
    return callable(labels) and jax.tree_util.all_leaves([labels])
