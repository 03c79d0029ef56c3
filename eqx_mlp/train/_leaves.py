"""Pytrees as named arrays and plain values, and back, with a check in between."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, UInt8

from ..distributed._layout import fetched, put_on


class Leaf(NamedTuple):
    """An array as a manifest names it.

    Of typed keys it says what their data are, and in `key` their implementation.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    key: str | None

    def __str__(self) -> str:
        """Such as `float32[128, 784]`."""
        array = f"{self.dtype}{list(self.shape)}"
        return array if self.key is None else f"a {self.key} key of {array}"


def leaf_of(path: str, x: Any) -> Leaf:
    """What a manifest says of an array, a typed key or a `jax.ShapeDtypeStruct`."""
    if not is_key(x):
        return Leaf(path, tuple(x.shape), str(x.dtype), None)
    data = jax.eval_shape(jax.random.key_data, x)
    return Leaf(path, data.shape, str(data.dtype), str(jax.random.key_impl(x)))


def is_key(x: Any) -> bool:
    """Whether `x` is an array of typed keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def named(tree: PyTree, root: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a tree, and its numbers and strings, by their paths.

    Everything else, functions above all, belongs to the program and not to a file.
    """
    arrays, values = {}, {}
    for keys, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = _path(root, keys)
        if path in arrays or path in values:
            raise ValueError(f"two leaves have the same path, {path}")
        if is_array(x):
            arrays[path] = x
        elif isinstance(x, bool | int | float | str):
            values[path] = x
    return arrays, values


def with_arrays(tree: PyTree, arrays: dict[str, np.ndarray], root: str = "") -> PyTree:
    """`tree` with the arrays of those names, placed as its own are.

    Raises:
        ValueError: an array that JAX would make narrower.
    """

    def replaced(keys: tuple, x: Any) -> Any:
        path = _path(root, keys)
        return placed(path, arrays[path], x) if is_array(x) else x

    return jax.tree_util.tree_map_with_path(replaced, tree)


def with_values(tree: PyTree, values: dict[str, Any], root: str = "") -> PyTree:
    """`tree` with the numbers and strings of those names."""

    def replaced(keys: tuple, x: Any) -> Any:
        return values.get(_path(root, keys), x)

    return jax.tree_util.tree_map_with_path(replaced, tree)


def _path(root: str, keys: tuple) -> str:
    return (root + jax.tree_util.keystr(keys)).lstrip(".")


def is_array(x: Any) -> bool:
    """Whether a leaf is an array, or the shape and dtype of one."""
    return eqx.is_array(x) or isinstance(
        x, np.ndarray | np.generic | jax.ShapeDtypeStruct
    )


def placed(path: str, x: np.ndarray, like: Any) -> Any:
    """`x` as the kind of array that `like` is, on the same devices.

    Raises:
        ValueError: JAX would make it narrower.
    """
    if isinstance(like, np.ndarray | np.generic):
        return x
    if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype:
        raise ValueError(
            f"{path} is {x.dtype}, which JAX makes narrower: set jax_enable_x64 as it "
            "was when this was written"
        )
    array = jnp.array(x)
    if is_key(like):
        array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return placed_like(array, like)


def placed_like(x: Any, like: Any) -> Any:
    """`x` on the devices that `like` is bound to."""
    committed = isinstance(like, jax.Array) and like.committed
    return put_on(x, like.sharding) if committed else jnp.array(x)


def to_host(arrays: Sequence[Any]) -> list[np.ndarray]:
    """The arrays on the host, perhaps in memory that the next step will reuse."""
    arrays = [
        jax.random.key_data(x) if isinstance(x, jax.Array) and is_key(x) else x
        for x in arrays
    ]
    for x in arrays:
        if isinstance(x, jax.Array):
            x.copy_to_host_async()
    return [fetched(x) if isinstance(x, jax.Array) else np.asarray(x) for x in arrays]


def to_bytes(arrays: Sequence[Any]) -> UInt8[np.ndarray, " bytes"]:
    """The bytes of all arrays in a row, a copy that stays when the device goes on."""
    parts = [np.ascontiguousarray(x).reshape(-1) for x in to_host(arrays)]
    return np.concatenate([np.zeros(0, np.uint8), *(x.view(np.uint8) for x in parts)])


def from_bytes(
    data: UInt8[np.ndarray, " bytes"], leaves: Sequence[Leaf]
) -> list[np.ndarray]:
    """The arrays again, each a copy of its own."""
    dtypes = [jnp.dtype(leaf.dtype) for leaf in leaves]
    sizes = [
        math.prod(leaf.shape) * dtype.itemsize
        for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
    parts = np.split(data, np.cumsum(sizes)[:-1]) if leaves else []
    return [
        part.copy().view(dtype).reshape(leaf.shape)
        for part, dtype, leaf in zip(parts, dtypes, leaves, strict=True)
    ]


def require_same(
    where: str, saved: dict[str, Any], wanted: dict[str, Any], mend: str
) -> None:
    """Raise a ValueError that names the places where a tree is not the one saved."""
    wrong = [
        f"at {path} expected {wanted.get(path, 'nothing')}, got "
        f"{saved.get(path, 'nothing')}"
        for path in {**wanted, **saved}
        if str(saved.get(path)) != str(wanted.get(path))
    ]
    if wrong:
        more = f"; and at {len(wrong) - 3} more places" if len(wrong) > 3 else ""
        raise ValueError(
            f"{where} does not fit what it is to be loaded into: "
            f"{'; '.join(wrong[:3])}{more}. {mend}"
        )


def encode(x: Any, path: str, arrays: dict[str, Any]) -> Any:
    """Plain data as JSON, its arrays put aside into `arrays` by their paths.

    Raises:
        TypeError: something that is not plain data.
    """
    match x:
        case None | bool() | int() | float() | str():
            return x
        case np.ndarray() | np.generic() | jax.Array():
            arrays[path] = x
            return {"array": path}
        case list() | tuple():
            return [encode(item, f"{path}[{i}]", arrays) for i, item in enumerate(x)]
        case dict() if all(isinstance(name, str) for name in x):
            inner = {n: encode(item, f"{path}[{n!r}]", arrays) for n, item in x.items()}
            return {"dict": inner}
    raise TypeError(
        f"a checkpoint cannot hold {path}, a {type(x).__name__}: expected arrays, "
        "numbers, strings and None, in lists and in dicts with string keys"
    )


def decode(x: Any, leaves: dict[str, Leaf], arrays: dict[str, Any]) -> Any:
    """The plain data that `encode` made `x` of, with NumPy arrays and typed keys."""
    if isinstance(x, list):
        return [decode(item, leaves, arrays) for item in x]
    if not isinstance(x, dict):
        return x
    if "dict" in x:
        return {name: decode(y, leaves, arrays) for name, y in x["dict"].items()}
    array, impl = arrays[x["array"]], leaves[x["array"]].key
    return array if impl is None else jax.random.wrap_key_data(array, impl=impl)
