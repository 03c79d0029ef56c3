"""One row of a table at an index that the example brings: an embedding of one token.

The slice's place is clipped to the table, as JAX does. Its gradient is e_i d^T with e_i
the unit vector of the place: a gather of one row.
"""

import math

import jax.numpy as jnp

from .._form import Form
from .._site import Site
from .gather import table_rows


def forms(site: Site) -> dict[int, Form] | None:
    """One row a step, where a whole row of the first axis is taken."""
    equation = site.equation
    table = equation.inputs[0].shape
    if equation.param_operands != (0,) or site.operands is None:
        return None
    whole = tuple(equation.params["slice_sizes"]) == (1, *table[1:])
    if equation.inputs[0].loops or not whole or site.in_axes()[1] is None:
        return None
    start = site.operands[1]
    rows = math.prod(start.shape[1:])
    places = jnp.clip(start, 0, table[0] - 1).astype(jnp.int32)
    places = places.reshape(site.batch, 1, rows)
    d = site.cotangents[0].reshape(site.batch, 1, rows, math.prod(table[1:]))
    return {0: table_rows(places, d, table)}
