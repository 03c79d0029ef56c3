"""A table of a model's layers."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._keys import with_key
from .._types import Model
from ._flops import parameter_flops


def summary(model: Model, *example: Any) -> str:
    """A table of layers: parameters' shapes, counts, bytes, and FLOPs per example.

    Args:
        model: an Equinox model or any pytree of arrays.
        example: what the model takes for one example, to count FLOPs by tracing it (in
            inference, where dropout needs no key). A model with an `in_size` needs
            none; others show no FLOPs without.

    Returns:
        The table as text, a row for each place that holds arrays. A multiplication and
        an addition are one FLOP each; activations are not counted.

    >>> import jax
    >>> from eqx_mlp import MLP, nn
    >>> print(nn.summary(MLP(4, 2, (8,), key=jax.random.key(0))))
    layer      type    parameters               count  bytes  FLOPs/example
    layers[0]  Linear  weight [8, 4], bias [8]     40    160             72
    layers[1]  Linear  weight [2, 8], bias [2]     18     72             34
    total                                          58    232            106
    """
    leaves = [
        (path, x)
        for path, x in jax.tree_util.tree_flatten_with_path(model)[0]
        if eqx.is_array(x)
    ]
    flops = _flops(model, [x for _, x in leaves], example)
    places: dict[str, list[int]] = {}
    for i, (path, _) in enumerate(leaves):
        places.setdefault(_keystr(path[:-1]), []).append(i)
    rows = [("layer", "type", "parameters", "count", "bytes", "FLOPs/example")]
    for place, members in places.items():
        path = leaves[members[0]][0]
        shapes = ", ".join(
            f"{_keystr(leaves[i][0][-1:])} {list(leaves[i][1].shape)}".strip()
            for i in members
        )
        kind = type(_at(model, path[:-1])).__name__
        rows.append((place, kind, shapes, *_numbers(members, leaves, flops)))
    rows.append(("total", "", "", *_numbers(range(len(leaves)), leaves, flops)))
    widths = [max(len(row[c]) for row in rows) for c in range(6)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if c < 3 else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _numbers(members: Any, leaves: list, flops: list[int] | None) -> tuple:
    arrays = [leaves[i][1] for i in members]
    operations = None if flops is None else sum(flops[i] for i in members)
    return (
        f"{sum(x.size for x in arrays):,}",
        f"{sum(x.nbytes for x in arrays):,}",
        "-" if operations is None else f"{operations:,}",
    )


def _flops(model: Model, arrays: list, example: tuple) -> list[int] | None:
    if not callable(model):
        return None
    if not example:
        in_size = getattr(model, "in_size", None)
        if not isinstance(in_size, int):
            return None
        dtype = next(x.dtype for x in arrays if jnp.issubdtype(x.dtype, jnp.floating))
        example = (jax.ShapeDtypeStruct((in_size,), dtype),)
    dynamic, static = eqx.partition(eqx.nn.inference_mode(model), eqx.is_array)
    structure = jax.tree.structure(dynamic)

    def forward(parameters: list, *example: Any) -> Any:
        whole = eqx.combine(jax.tree.unflatten(structure, parameters), static)
        return eqx.filter(with_key(whole, *example), eqx.is_array)

    return parameter_flops(forward, arrays, *example)


def _keystr(path: tuple) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def _at(tree: Any, path: tuple) -> Any:
    for entry in path:
        if isinstance(entry, jax.tree_util.GetAttrKey):
            tree = getattr(tree, entry.name)
        elif isinstance(entry, jax.tree_util.SequenceKey):
            tree = tree[entry.idx]
        elif isinstance(entry, jax.tree_util.DictKey):
            tree = tree[entry.key]
        else:
            return None
    return tree
