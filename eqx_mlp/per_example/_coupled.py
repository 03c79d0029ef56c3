"""Losses that couple examples have no per-example gradient: refuse them by name."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax


@contextlib.contextmanager
def refusing_coupled(name: str, model: Any) -> Iterator[None]:
    """Turn the use of a batch axis that does not exist into an error that says so."""
    try:
        yield
    except NameError as error:
        found = re.search(r"unbound axis name: (\w+)", str(error))
        if found is None:
            raise
        axis = found[1]
        layers = ", ".join(collective_layers(model, axis))
        where = f" in {layers}" if layers else ""
        raise ValueError(
            f"{name} couples the examples of a batch: it uses a collective (pmean, "
            f"psum, ...) over the axis {axis!r}{where}. The gradient of one example is "
            "then not defined. Use a layer that normalises within an example "
            "(LayerNorm, GroupNorm, RMSNorm), or put a batch-norm layer into inference "
            "mode with eqx.nn.inference_mode."
        ) from error


def collective_layers(model: Any, axis: str) -> list[str]:
    """The layers that name that axis, each with its path."""

    def names_axis(x: Any) -> bool:
        if not isinstance(x, eqx.Module):
            return False
        named = getattr(x, "axis_name", None)
        return named == axis or (isinstance(named, tuple | list) and axis in named)

    leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=names_axis)
    return [
        f"model{jax.tree_util.keystr(path)} ({type(x).__name__})"
        for path, x in leaves
        if names_axis(x)
    ]
