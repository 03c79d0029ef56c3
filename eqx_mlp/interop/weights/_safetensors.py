"""Weights in a safetensors file: names, shapes, dtypes and bytes, and nothing to run.

Source: https://huggingface.co/docs/safetensors
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, Shaped

from ..._checked import checked
from .._file import PathLike, write_whole
from ._entries import as_ours, named, to_numpy

# The package's own reader for NumPy knows none of those that NumPy lacks.
# fmt: off
_DTYPES = {
    "BOOL": np.dtype(bool), "U8": np.dtype("u1"), "U16": np.dtype("u2"),
    "U32": np.dtype("u4"), "U64": np.dtype("u8"), "I8": np.dtype("i1"),
    "I16": np.dtype("i2"), "I32": np.dtype("i4"), "I64": np.dtype("i8"),
    "F8_E4M3": jnp.dtype(jnp.float8_e4m3fn), "F8_E5M2": jnp.dtype(jnp.float8_e5m2),
    "F16": np.dtype("f2"), "BF16": jnp.dtype(jnp.bfloat16), "F32": np.dtype("f4"),
    "F64": np.dtype("f8"), "C64": np.dtype("c8"),
}
# fmt: on


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "safetensors files are read and written with safetensors, which is not "
            "installed: pip install 'eqx-mlp[safetensors]'"
        ) from error
    return safetensors


@checked()
def save_safetensors(path: PathLike, weights: PyTree) -> None:
    """Write weights into a safetensors file: afterwards it is there and whole.

    Args:
        path: of the file; one that is there is replaced.
        weights: a model, which is stored as `to_arrays` names it, or arrays or tensors
            by name, as `to_arrays` and `to_torch` give them.

    Raises:
        ValueError: no array.
        TypeError: a dtype that such files cannot hold.
        ImportError: safetensors, the extra `safetensors`, is not installed.

    >>> import jax, pathlib, tempfile
    >>> from eqx_mlp import MLP
    >>> from eqx_mlp.interop import weights
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "mlp.safetensors")
    ...     weights.save_safetensors(path, model)
    ...     arrays = weights.load_safetensors(path)
    >>> model = weights.from_arrays(model, arrays)
    """
    # In rows and without gaps: the package writes the memory of an array as it lies.
    arrays = {
        name: np.array(to_numpy(x), order="C")
        for name, x in named(weights, as_ours, None).items()
    }
    if not arrays:
        raise ValueError(
            "save_safetensors takes a model or arrays by name, and there is no array "
            f"in {weights!r}"
        )
    for name, x in arrays.items():
        if x.dtype not in _DTYPES.values():
            raise TypeError(
                f"a safetensors file cannot hold {name}, of dtype {x.dtype}: cast it"
            )
    write_whole(path, _safetensors().numpy.save(arrays))


@checked()
def load_safetensors(path: PathLike) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays of a safetensors file by name, for `from_arrays` or `from_torch`.

    Nothing in such a file is run, and an array that overlaps another or leaves the file
    is refused.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file that is damaged or is none of this kind, or a dtype that JAX
            does not have.
        ImportError: safetensors, the extra `safetensors`, is not installed.
    """
    safetensors = _safetensors()
    data = Path(path).read_bytes()
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} is damaged, or no safetensors file: {error}"
        ) from error
    arrays = {}
    for name, about in found:
        dtype = _DTYPES.get(about["dtype"])
        if dtype is None:
            raise ValueError(
                f"{path}: {name} is of dtype {about['dtype']}, expected one of "
                f"{', '.join(_DTYPES)}"
            )
        flat = np.frombuffer(about["data"], dtype)
        arrays[name] = flat.reshape(about["shape"])
    return arrays
