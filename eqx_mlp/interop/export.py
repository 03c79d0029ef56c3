"""`predict` as a program of its own, for a process that has only jax.

Source: `jax.export`, https://docs.jax.dev/en/latest/export/export.html
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
from jax import export as jax_export
from jaxtyping import PyTree

from .._checked import checked
from .._types import Model
from ..train._leaves import is_array
from ..train._step import Transform
from ._file import PathLike, write_whole

PLATFORMS = {"cpu", "cuda", "rocm", "tpu"}


def _require(model: Any, x: Any, *, platforms: Any = None, **_: Any) -> None:
    leaves = jax.tree.leaves(x)
    if not leaves or not all(is_array(leaf) for leaf in leaves):
        raise ValueError(
            "export_predict: x must be one example, without a batch axis, as an array "
            f"or a jax.ShapeDtypeStruct, got {x!r}"
        )
    # jax takes any name, and fails where the program is called.
    if isinstance(platforms, str) or not {*(platforms or ())} <= PLATFORMS:
        raise ValueError(
            "export_predict: platforms must be a list of names out of "
            f"{', '.join(sorted(PLATFORMS))}, got {platforms!r}"
        )


@checked(_require)
def export_predict(
    model: Model,
    x: PyTree,
    *,
    transform: Transform | None = None,
    platforms: Sequence[str] | None = None,
) -> jax_export.Exported:
    """`predict` of this model as a StableHLO program that takes any number of examples.

    The weights are part of the program, and dropout is off.

    Args:
        model: a function of one example.
        x: one stored example, without a batch axis, or its `jax.ShapeDtypeStruct`: only
            its shape and dtype count.
        transform: from one stored example to what the model takes, as for `predict`.
        platforms: where it will run, such as `("cpu", "cuda", "tpu")`; None is where
            it is exported. The devices need not be there.

    Returns:
        a program; `.call(x)` runs it on examples along the leading axis, and
        `save_exported` writes it into a file.

    Raises:
        ValueError: `x` is no array, an unknown platform, and what the model raises.

    >>> import jax, jax.numpy as jnp
    >>> from eqx_mlp import MLP
    >>> from eqx_mlp.interop.export import export_predict
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> exported = export_predict(model, jnp.zeros(4))
    >>> exported.call(jnp.zeros((3, 4))).shape, exported.call(jnp.zeros((5, 4))).shape
    ((3, 2), (5, 2))
    """
    model = eqx.nn.inference_mode(model)
    (batch,) = jax_export.symbolic_shape("batch")

    def predict(x: PyTree) -> PyTree:
        return jax.vmap(lambda x: model(x if transform is None else transform(x)))(x)

    examples = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype), x
    )
    return jax_export.export(jax.jit(predict), platforms=platforms)(examples)


@checked()
def save_exported(path: PathLike, exported: jax_export.Exported) -> None:
    """Write a program into a file: afterwards it is there and whole.

    To run it, `jax.export.deserialize(bytearray(path.read_bytes())).call(x)`. Where it
    runs only jax is needed, with the `flatbuffers` that jax reads such files by.

    Raises:
        ImportError: flatbuffers, the extra `export`, is not installed.

    >>> import pathlib, tempfile
    >>> import jax.numpy as jnp
    >>> from jax import export
    >>> from eqx_mlp.interop.export import export_predict, save_exported
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "double.stablehlo")
    ...     save_exported(path, export_predict(lambda x: 2 * x, jnp.zeros(())))
    ...     export.deserialize(bytearray(path.read_bytes())).call(jnp.ones(3)).tolist()
    [2.0, 2.0, 2.0]
    """
    try:
        data = exported.serialize()
    except ImportError as error:
        raise ImportError(
            "jax writes exported programs with flatbuffers, which is not installed: "
            "pip install 'eqx-mlp[export]'"
        ) from error
    write_whole(path, data)
