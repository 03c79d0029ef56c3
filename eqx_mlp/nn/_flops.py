"""Floating-point operations of each parameter in one forward pass, found by tracing."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
from jaxtyping import Array

# Equations whose body is a jaxpr of the same arguments, by the name of its parameter.
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_ELEMENTWISE = frozenset({"add", "sub", "mul", "div"})


def parameter_flops(
    function: Callable[..., Any], parameters: Sequence[Array], *example: Any
) -> list[int]:
    """Operations that `function(parameters, *example)` spends on each parameter.

    A multiplication and an addition count one each, so a matrix product with an `[out,
    in]` matrix is 2 * out * in. Counted are products, convolutions and elementwise
    arithmetic in which a parameter (or something made of it alone) takes part;
    activations are not.
    """
    jaxpr = jax.make_jaxpr(function)(list(parameters), *example).jaxpr
    counts = [0] * len(parameters)
    owners = {v: i for i, v in enumerate(jaxpr.invars[: len(parameters)])}
    touched = set(jaxpr.invars[len(parameters) :])
    _walk(jaxpr, owners, touched, counts, 1)
    return counts


def _walk(jaxpr: Any, owners: dict, touched: set, counts: list[int], times: int) -> set:
    # `owners` maps values made of one parameter to its number; `touched` are values
    # that depend on the example.
    for eqn in jaxpr.eqns:
        inputs = [v for v in eqn.invars if not _is_literal(v)]
        owned = [owners[v] for v in inputs if v in owners]
        meets = any(v in touched for v in inputs)
        body = next((eqn.params[k] for k in _BODIES if k in eqn.params), None)
        if body is not None:
            body = getattr(body, "jaxpr", body)
            pairs = [
                (outer, inner)
                for outer, inner in zip(eqn.invars, body.invars, strict=False)
                if not _is_literal(outer)
            ]
            inner_touched = {b for a, b in pairs if a in touched}
            inner_touched = _walk(
                body,
                {b: owners[a] for a, b in pairs if a in owners},
                inner_touched,
                counts,
                times * eqn.params.get("length", 1),
            )
            for outer, inner in zip(eqn.outvars, body.outvars, strict=False):
                if not _is_literal(inner) and inner in inner_touched:
                    touched.add(outer)
        elif meets:
            touched.update(eqn.outvars)
            for i in set(owned):
                counts[i] += times * _operations(eqn)
        if not meets and owned:
            owners.update((v, owned[0]) for v in eqn.outvars)
    return touched


def _is_literal(v: Any) -> bool:
    return isinstance(v, jax.extend.core.Literal)


def _operations(eqn: Any) -> int:
    out = math.prod(eqn.outvars[0].aval.shape)
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * out * math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        channels = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        return 2 * out * math.prod(kernel) // channels
    return out if name in _ELEMENTWISE else 0
