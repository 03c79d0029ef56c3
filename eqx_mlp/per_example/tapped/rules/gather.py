"""Rows taken from a table by index: an embedding.

A row taken with cotangent d adds e_i d^T to the table's gradient, e_i the unit vector
of the index: rows with places on the left. Where one index enters twice, its cotangents
add before the norm is taken, as rows do.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from .._form import Form
from .._program import Equation
from .._rows import Rows
from .._side import Side
from .._site import Site


def forms(site: Site) -> dict[int, Form] | None:
    """Rows of the table, where whole rows of its first axis are taken."""
    equation = site.equation
    table = equation.inputs[0].shape
    if equation.param_operands != (0,) or site.operands is None:
        return None
    if not table or equation.inputs[0].loops or not takes_rows(equation):
        return None
    length, width = table[0], math.prod(table[1:])
    index_map = equation.params["dimension_numbers"].start_index_map
    places = site.operands[1][..., tuple(index_map).index(0)]
    rows = math.prod(places.shape[1:])
    places = places.reshape(site.batch, 1, rows)
    d = site.cotangents[0].reshape(site.batch, 1, rows, width)
    places, d = in_range(places, d, equation.params["mode"], length)
    return {0: table_rows(places, d, table)}


def takes_rows(equation: Equation) -> bool:
    """Whether whole rows of the first axis are taken, and come last in the output."""
    table, output = equation.inputs[0].shape, equation.outputs[0].shape
    dims = equation.params["dimension_numbers"]
    collapsed = tuple(dims.collapsed_slice_dims)
    kept = len(table) - len(collapsed)
    # A whole axis may have an index too: it is clipped to 0, where indices are clipped.
    clipped = equation.params["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP
    return (
        collapsed in ((), (0,))
        and 0 in dims.start_index_map
        and (clipped or len(dims.start_index_map) == 1)
        and tuple(dims.offset_dims) == tuple(range(len(output) - kept, len(output)))
        and not dims.operand_batching_dims
        and tuple(equation.params["slice_sizes"]) == (1, *table[1:])
    )


def table_rows(places: Any, d: Any, shape: tuple[int, ...]) -> Rows:
    """The gradient of a table of which rows were taken."""
    axes = ((), (0,), tuple(range(1, len(shape))))
    return Rows([(Side.of(places), Side.of(d))], axes, shape)


def in_range(places: Any, d: Any, mode: Any, size: int) -> tuple[Any, Any]:
    """Indices as JAX reads them: clipped, or left out where they are out of range."""
    inside = jnp.clip(places, 0, size - 1).astype(jnp.int32)
    if mode != jax.lax.GatherScatterMode.FILL_OR_DROP:
        return inside, d
    known = jnp.expand_dims((places >= 0) & (places < size), 3)
    return inside, jnp.where(known, d, jnp.zeros_like(d))
