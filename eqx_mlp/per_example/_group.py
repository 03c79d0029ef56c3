"""Which parameters are clipped together."""

from typing import Any

import jax
from jaxtyping import PyTree

from .._known import is_known


def require_clipping(l2_clip_norm: Any, normalize_by: Any) -> None:
    """Raise a ValueError for a clipping norm or divisor that cannot be meant."""
    norms = jax.tree_util.tree_leaves_with_path(l2_clip_norm)
    if not norms:
        raise ValueError(
            "l2_clip_norm must be a number, or a prefix of the model's tree with a "
            f"number for each group of parameters, got {l2_clip_norm!r}"
        )
    for path, norm in norms:
        name = f"l2_clip_norm{jax.tree_util.keystr(path)}"
        if is_known(norm) and not float(norm) >= 0:
            raise ValueError(f"{name} must be a number at least 0, got {norm}")
    if is_known(normalize_by) and not float(normalize_by) > 0:
        raise ValueError(f"normalize_by must be a number above 0, got {normalize_by}")


def groups(l2_clip_norm: Any, params: PyTree) -> tuple[list[Any], tuple[int, ...]]:
    """The clipping norm of each group, and the group of each parameter.

    A group is what one leaf of the prefix tree `l2_clip_norm` stands for.
    """
    norms, tree = jax.tree.flatten(l2_clip_norm)
    try:
        numbers = jax.tree.map(
            lambda i, part: [i] * len(jax.tree.leaves(part)),
            jax.tree.unflatten(tree, range(len(norms))),
            params,
        )
    except ValueError as error:
        raise ValueError(
            "l2_clip_norm must be one number or a prefix of the model's tree, got the "
            f"structure {tree} for a model of structure {jax.tree.structure(params)}"
        ) from error
    return norms, tuple(jax.tree.leaves(numbers))
