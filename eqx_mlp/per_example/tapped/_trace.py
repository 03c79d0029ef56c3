"""From a loss of one example to a program: who is made of what, found by tracing."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from ._program import Equation, Loop, Mark, Program, Scan, Value

# Calls whose inside is ordinary code: `jit` under its names of all versions.
INLINE = ("jit", "pjit", "closed_call", "core_call", "core_closed_call")


def trace(f: Callable[..., tuple[Any, Any]], params: Any, *example: Any) -> Program:
    """The program of `f(params, *example) -> (value, aux)`, from arrays or shapes."""
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(params, *example)
    n_params = len(jax.tree.leaves(params))
    avals = closed.in_avals
    given = [
        Value(a.shape, a.dtype, Mark.PARAM if i < n_params else Mark.EXAMPLE)
        for i, a in enumerate(avals)
    ]
    walk = Walk()
    body: list[Equation | Scan] = []
    value, *aux = walk.into(closed, given, body, ())
    value = walk.touched(value, body, ())
    return Program(
        params=tuple(given[:n_params]),
        example=tuple(given[n_params:]),
        consts=walk.consts,
        prefix=tuple(walk.prefix),
        body=tuple(body),
        value=value,
        aux=tuple(aux),
        aux_tree=jax.tree.structure(shapes[1]),
    )


class Walk:
    """One pass over a jaxpr that marks values and moves out what no example touches."""

    def __init__(self) -> None:
        self.consts: dict[Value, Any] = {}
        self.prefix: list[Equation] = []

    def const(self, x: Any) -> Value:
        """A value that is known now."""
        value = Value(jnp.shape(x), jnp.result_type(x), Mark.CONST)
        self.consts[value] = x
        return value

    def into(
        self,
        closed: ClosedJaxpr,
        inputs: list[Value],
        body: list[Equation | Scan],
        loops: tuple[Loop, ...],
    ) -> list[Value]:
        """Add the equations of a jaxpr to the program; returns its outputs."""
        jaxpr = closed.jaxpr
        env = dict(zip(jaxpr.constvars, map(self.const, closed.consts), strict=True))
        env |= dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            return self.const(atom.val) if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            outputs = self.equation(
                eqn, binder(jaxpr, eqn), tuple(map(read, eqn.invars)), body, loops
            )
            env |= dict(zip(eqn.outvars, outputs, strict=True))
        return list(map(read, jaxpr.outvars))

    def equation(
        self,
        eqn: Any,
        bind: Callable[..., list],
        inputs: tuple[Value, ...],
        body: list[Equation | Scan],
        loops: tuple[Loop, ...],
    ) -> list[Value]:
        """Add one equation: to the prefix, or to the part that sees the example."""
        name = eqn.primitive.name
        marks = {v.mark for v in inputs}
        if Mark.PARAM in marks and name in INLINE:
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            return self.into(as_closed(inner), list(inputs), body, loops)
        if {Mark.PARAM, Mark.EXAMPLE} <= marks and name == "scan":
            return self.scan(eqn, inputs, body, loops)
        if Mark.EXAMPLE in marks or (loops and eqn.effects):
            return self.add(eqn, bind, inputs, body, Mark.EXAMPLE, loops)
        flows = Mark.PARAM in marks and name != "stop_gradient"
        mark = Mark.PARAM if flows else Mark.CONST
        of = tuple(loop for loop in loops if any(loop in v.loops for v in inputs))
        return self.add(eqn, bind, inputs, self.prefix, mark, of)

    def add(
        self,
        eqn: Any,
        bind: Callable[..., list],
        inputs: tuple[Value, ...],
        equations: list,
        mark: Mark,
        loops: tuple[Loop, ...],
    ) -> list[Value]:
        """Append an equation as it is."""
        own = loops if mark is not Mark.EXAMPLE else ()
        outputs = []
        for var in eqn.outvars:
            value = Value(var.aval.shape, var.aval.dtype, mark, own)
            if mark is Mark.PARAM and not value.differentiable:
                value = Value(value.shape, value.dtype, Mark.CONST, own)
            outputs.append(value)
        name = eqn.primitive.name
        equations.append(
            Equation(name, eqn.params, bind, inputs, tuple(outputs), loops)
        )
        return outputs

    def touched(
        self, value: Value, body: list[Equation | Scan], loops: tuple[Loop, ...]
    ) -> Value:
        """The value where one touched by the example is needed: a site if PARAM."""
        if value.mark is not Mark.PARAM:
            return value
        output = Value(value.shape, value.dtype, Mark.EXAMPLE)
        body.append(Equation("identity", {}, lambda x: [x], (value,), (output,), loops))
        return output

    def scan(
        self,
        eqn: Any,
        inputs: tuple[Value, ...],
        body: list[Equation | Scan],
        loops: tuple[Loop, ...],
    ) -> list[Value]:
        """Walk into a scan: constants are themselves, stacked ones get an axis."""
        p = eqn.params
        n_consts, n_carry = operand_counts(p)
        loop = Loop(p["length"], p["reverse"], p["unroll"])
        within = (*loops, loop)
        consts, rest = inputs[:n_consts], inputs[n_consts:]
        init = tuple(self.touched(v, body, loops) for v in rest[:n_carry])
        carry = tuple(Value(v.shape, v.dtype, Mark.EXAMPLE) for v in init)
        steps = [self.step_of(v, loop) for v in rest[n_carry:]]
        seen = [
            (outer, inner)
            for outer, inner in zip(rest[n_carry:], steps, strict=True)
            if inner.mark is Mark.EXAMPLE
        ]
        inside: list[Equation | Scan] = []
        outputs = self.into(
            as_closed(p["jaxpr"]), [*consts, *carry, *steps], inside, within
        )
        outputs = [self.touched(v, inside, within) for v in outputs]
        outside = [Value(v.aval.shape, v.aval.dtype, Mark.EXAMPLE) for v in eqn.outvars]
        body.append(
            Scan(
                loop=loop,
                init=init,
                carry=carry,
                xs=tuple(outer for outer, _ in seen),
                x=tuple(inner for _, inner in seen),
                body=tuple(inside),
                carry_out=tuple(outputs[:n_carry]),
                final=tuple(outside[:n_carry]),
                y=tuple(outputs[n_carry:]),
                ys=tuple(outside[n_carry:]),
            )
        )
        return outside

    def step_of(self, value: Value, loop: Loop) -> Value:
        """One step's part of what a scan goes along, kept for all steps at once."""
        if value.mark is Mark.EXAMPLE:
            return Value(value.shape[1:], value.dtype, Mark.EXAMPLE)
        step = Value(value.shape[1:], value.dtype, value.mark, (*value.loops, loop))
        self.prefix.append(Equation("steps", {}, lambda x: [x], (value,), (step,)))
        return step


def operand_counts(scan: dict[str, Any]) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many are carried."""
    if "num_consts" in scan:
        return scan["num_consts"], scan["num_carry"]
    consts, carry, _ = scan["ft_in"].unpack()  # newer versions of JAX
    return len(consts), len(carry)


def as_closed(jaxpr: Any) -> ClosedJaxpr:
    """A jaxpr with its constants, whether it came with any or not."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def binder(jaxpr: Jaxpr, eqn: Any) -> Callable[..., list]:
    """One equation of a jaxpr as a function of its operands.

    Its own rules (of `custom_jvp`, of `remat`) stay with it: nothing is inlined.
    Literals are part of it, and what is handed over in their place is ignored. An
    operand that enters twice is taken where it stands last, and so is its gradient.
    """
    free = [i for i, atom in enumerate(eqn.invars) if not isinstance(atom, Literal)]
    alone = jaxpr.replace(
        constvars=[],
        invars=[eqn.invars[i] for i in free],
        outvars=list(eqn.outvars),
        eqns=[eqn],
        effects=eqn.effects,
    )
    function = jaxpr_as_fun(ClosedJaxpr(alone, []))
    return lambda *operands: list(function(*(operands[i] for i in free)))
