"""Any equation: the VJP of that one equation for each example, formed and exact.

For what adds, scales and broadcasts this is the best there is: the gradient of a bias
is its cotangent summed over broadcast axes, that of a scale the same times the operand.
XLA sees through the VJP, so that no rule is needed. For a call that parameters enter
(`custom_vjp`, `cond`, `remat`) it is the fallback.
"""

from typing import Any

import jax
import jax.numpy as jnp

from .._form import Dense, Form
from .._program import over_loops
from .._site import Site

# The gradient of a parameter does not depend on what it is added to.
ADDITIVE = frozenset(
    ("add", "add_any", "sub", "neg", "identity", "concatenate", "convert_element_type")
)
# What XLA turns into a few passes over the cotangent.
ELEMENTWISE = ADDITIVE | {"mul", "div", "select_n", "max", "min", "pow"}


def forms(site: Site) -> dict[int, Form]:
    """Formed gradients of all parameters that enter."""
    equation = site.equation
    params = equation.param_operands
    tapped = [i for i, v in enumerate(equation.outputs) if v.differentiable]

    def one_step(*operands: Any) -> list:
        outputs = equation.bind(*operands)
        return [outputs[i] for i in tapped]

    all_steps = over_loops(equation, one_step, equation.loops)

    def of_one(operands: tuple, cotangents: tuple) -> tuple:
        def of_params(*values: Any) -> list:
            given = list(operands)
            for i, value in zip(params, values, strict=True):
                given[i] = value
            return all_steps(*given)

        _, back = jax.vjp(of_params, *(operands[i] for i in params))
        return back(list(cotangents))

    operands = zeros(site) if site.operands is None else site.operands
    grads = jax.vmap(of_one, in_axes=(site.in_axes(), 0))(operands, site.cotangents)
    route = "direct" if equation.name in ELEMENTWISE else "fallback"
    return {i: Dense(g, route) for i, g in zip(params, grads, strict=True)}


def zeros(site: Site) -> tuple:
    """Operands of the right shape, where their values do not matter."""
    loops = tuple(loop.length for loop in site.equation.loops)
    return tuple(
        jnp.zeros(
            v.full_shape if axis is None else (site.batch, *loops, *v.shape), v.dtype
        )
        for v, axis in zip(site.equation.inputs, site.in_axes(), strict=True)
    )
