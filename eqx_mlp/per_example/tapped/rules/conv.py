"""A convolution whose kernel is a parameter, of any rank and layout.

y[n, o, s] = sum_{i,k} w[o, i, k] x[n, i, s * stride + k * dilation], with x padded and
spread, gives dw[o, i, k] = sum_{n,s} d[n, o, s] x[n, i, s * stride + k * dilation]:
rows (n, s), a window's entries (i, k) on one side, the channels o on the other, and
independent groups of channels. A transposed convolution is one of a spread x.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ..._norm import sum_dtype
from .._form import Form
from .._rows import Rows
from .._side import Side
from .._site import Site
from . import anything


def forms(site: Site) -> dict[int, Form] | None:
    """Rows of the kernel."""
    p = site.equation.params
    if site.equation.param_operands != (1,) or site.operands is None:
        return None
    if p["batch_group_count"] != 1:
        return None
    w, y = site.equation.inputs[1], site.equation.outputs[0]
    dims, groups = p["dimension_numbers"], p["feature_group_count"]
    steps = len(site.own_loops(1))
    loops = [1 + i for i in (*site.own_loops(1), *site.shared_loops(1))]
    # Axes: batch, the kernel's own loops, rows, group, channel, space.
    group = 2 + len(loops)

    def ordered(x: Any, spec: Any) -> Any:
        x = x.transpose(0, *loops, *(1 + len(loops) + i for i in spec))
        return split(x, group, groups)

    x = ordered(site.operands[0], dims.lhs_spec)
    d = ordered(site.cotangents[0], dims.out_spec)
    for i, (k, s) in enumerate(zip(dims.rhs_spec[2:], dims.out_spec[2:], strict=True)):
        x = windows(x, group + 2 + 2 * i, (y.shape[s], w.shape[k]), p, i)
    own, others = [*range(1, 1 + steps), group], [*range(1 + steps, group)]
    space = range(group + 2, x.ndim, 2)
    # The kernel's channels o are split into groups as well: an axis more behind `out`.
    out = dims.rhs_spec[0]
    place = {axis: steps + axis + (axis > out) for axis in dims.rhs_spec[1:]}
    entry = dict(zip(place.values(), (group + 1, *(i + 1 for i in space)), strict=True))
    window = Side.cut(x, own, [*others, *space], [entry[i] for i in sorted(entry)])
    channels = Side.cut(d, own, [*others, *range(group + 2, d.ndim)], [group + 1])
    sides = [(tuple(sorted(entry)), window), ((steps + out + 1,), channels)]
    (left_axes, left), (right_axes, right) = sorted(sides, key=lambda side: side[0])

    def whole() -> Any:
        # XLA forms the gradients without a copy of every window.
        return anything.forms(site)[1].dense()

    return {
        1: Rows(
            [(left, right)],
            ((*range(steps), steps + out), left_axes, right_axes),
            w.full_shape,
            p["precision"],
            split_shape(w.full_shape, steps + out, groups),
            form=whole if d.dtype == sum_dtype(d.dtype) else None,
        )
    }


def split_shape(shape: tuple[int, ...], axis: int, groups: int) -> tuple[int, ...]:
    """A shape in which an axis is two: groups, and what lies in one."""
    return (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def split(x: Any, axis: int, groups: int) -> Any:
    """An array of that shape."""
    return x.reshape(split_shape(x.shape, axis, groups))


def windows(x: Any, axis: int, shape: tuple[int, int], params: Any, i: int) -> Any:
    """Along one axis, for each place of the output what the kernel meets there."""
    count, size = shape
    stride, dilation = params["window_strides"][i], params["rhs_dilation"][i]
    filling = [(0, 0, 0)] * x.ndim
    filling[axis] = (*params["padding"][i], params["lhs_dilation"][i] - 1)
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), filling)
    # Slices: several times faster than a gather where memory is what limits.
    starts = range(0, size * dilation, dilation)
    stop = max(count - 1, 0) * stride + min(count, 1)
    taken = [
        jax.lax.slice_in_dim(x, start, start + stop, stride, axis) for start in starts
    ]
    return jnp.stack(taken, axis + 1)
