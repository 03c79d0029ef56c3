"""A product of matrices, vectors or stacks of them, the parameter on either side.

Let w have axes (batch B, contracting K, free N), the other operand a (B, K, free T).
y[B,T,N] = sum_K a[B,T,K] w[B,K,N] gives dw[B,K,N] = sum_T a[B,T,K] d[B,T,N]:
rows T with a on the left and d on the right, and independent groups B.
"""

from typing import Any

from .._form import Form
from .._rows import Rows
from .._side import Side
from .._site import Site


def forms(site: Site) -> dict[int, Form] | None:
    """Rows of the one operand that is a parameter."""
    if len(site.equation.param_operands) != 1 or site.operands is None:
        return None
    (param,) = site.equation.param_operands
    contracting, batches = site.equation.params["dimension_numbers"]
    contract, _ = in_order(contracting, param)
    batch, out_batch = in_order(batches, param)
    other = 1 - param
    w, a = site.equation.inputs[param], site.equation.inputs[other]
    lead = 1 + len(site.equation.loops)
    n = len(batch[0])
    free_w = free(len(w.shape), contract[param], batch[param])
    free_a = free(len(a.shape), contract[other], batch[other])
    # The output's axes: batch, then the free ones of its first operand, of its second.
    count = (len(free_w), len(free_a)) if param == 0 else (len(free_a), len(free_w))
    first, second = range(n, n + count[0]), range(n + count[0], n + sum(count))
    out_w, out_a = (first, second) if param == 0 else (second, first)
    own = [1 + i for i in site.own_loops(param)]
    shared = [1 + i for i in site.shared_loops(param)]

    def cut(x: Any, groups: Any, rows: Any, entries: Any) -> Side:
        groups, rows, entries = ([lead + i for i in p] for p in (groups, rows, entries))
        return Side.cut(x, [*own, *groups], [*shared, *rows], entries)

    left = cut(site.operands[other], batch[other], free_a, contract[other])
    right = cut(site.cotangents[0], out_batch, out_a, out_w)
    steps = len(own)
    groups = (*range(steps), *(steps + i for i in batch[param]))
    left_axes, right_axes = (
        tuple(steps + i for i in part) for part in (contract[param], free_w)
    )
    if (
        right_axes < left_axes
    ):  # the sides are equals: the one with the first axis is left
        left, right, left_axes, right_axes = right, left, right_axes, left_axes
    precision = site.equation.params.get("precision")
    return {
        param: Rows(
            [(left, right)], (groups, left_axes, right_axes), w.full_shape, precision
        )
    }


def free(ndim: int, *taken: tuple[int, ...]) -> list[int]:
    """The axes that are neither contracted nor batch, in order."""
    used = {int(i) for part in taken for i in part}
    return [i for i in range(ndim) if i not in used]


def in_order(
    pairs: Any, param: int
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
    """Paired axes of both operands in the order of the parameter's, and that order."""
    order = sorted(range(len(pairs[0])), key=lambda i: pairs[param][i])
    first, second = (tuple(int(axes[i]) for i in order) for axes in pairs)
    return (first, second), order
