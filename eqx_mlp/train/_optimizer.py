"""Optax's transformations and their states, as training uses them."""

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from .._dtypes import promote
from .._types import Optimizer

S = TypeVar("S")


def require_optimizer(owner: str, optimizer: Any) -> None:
    """Raise a ValueError unless `optimizer` looks like one of Optax's."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            f"{owner}: optimizer must be an optax.GradientTransformation such as "
            f"optax.adam(1e-3), got {optimizer!r}"
        )


def extended(optimizer: Optimizer) -> optax.GradientTransformationExtraArgs:
    """`optimizer` as one that takes extra arguments, such as `value=`."""
    return optax.with_extra_args_support(cast(Any, optimizer))


def only_state(opt_state: PyTree, kind: type[S]) -> S | None:
    """The one state of this kind inside an optimiser's state, or None."""
    found = [
        node
        for node in jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, kind))
        if isinstance(node, kind)
    ]
    if len(found) > 1:
        raise ValueError(
            f"the optimizer holds {len(found)} states of type {kind.__name__}, and one "
            "is meant: wrap the whole optimizer once"
        )
    return found[0] if found else None


def apply_update(p: Array, update: Array) -> Array:
    """`p + update` added in the wider of both dtypes, in the parameter's dtype.

    An update of 0 gives `p` bit for bit, also where it is -0.0.
    """
    both = promote(p.dtype, update.dtype)
    moved = (p.astype(both) + update.astype(both)).astype(p.dtype)
    return jnp.where(update == 0, p, moved)


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
