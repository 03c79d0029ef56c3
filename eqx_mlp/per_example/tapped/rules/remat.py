"""A call whose inside is computed again for the backward pass (`jax.checkpoint`).

Where the call's outputs y have cotangents d, its parameters' gradients are those of
sum(y * d), a loss like any other: the engine runs on it. To keep no value from inside,
that is done twice: for the norms and, once the factors are known, for the sums.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Inexact

from ...._dtypes import promote, wide
from ...._types import PerExample
from ..._norm import scaled
from .._form import Cost, Form, Shared
from .._program import Mark, over_loops
from .._site import Site
from .._taps import read_by, tapped
from .._trace import as_closed


def forms(site: Site) -> dict[int, Form] | None:
    """Gradients that are found anew each time they are asked for."""
    complex_ = [jnp.issubdtype(d.dtype, jnp.complexfloating) for d in site.cotangents]
    if site.operands is None or any(complex_):
        return None
    block = Block(site, site.operands, site.cotangents)
    return {i: Recomputed(block, i) for i in site.equation.param_operands}


class Block:
    """A call with its operands and cotangents, and no value from inside.

    Where every parameter is another one at each step of the loops around it, the steps
    are done one after the other, so that memory holds one step.
    """

    def __init__(self, site: Site, operands: tuple, cotangents: tuple) -> None:
        self.site = site
        self.operands = operands
        self.cotangents = cotangents
        self.batch = cotangents[0].shape[0]
        equation = site.equation
        self.params = equation.param_operands
        self.one_by_one = bool(equation.loops) and all(
            v.loops == equation.loops or (v.mark is Mark.CONST and not v.loops)
            for v in equation.inputs
            if v.mark is not Mark.EXAMPLE
        )
        call = jaxpr_as_fun(as_closed(equation.params["jaxpr"]))
        loops = () if self.one_by_one else equation.loops
        self.call = over_loops(equation, call, loops)

    def each_step(self, f: Callable[..., list], factor: Any = None) -> list[Array]:
        """`f(engine, gradients, factor)` at each step, the steps in front."""
        # Without the barrier XLA would find these values in the passes before, and keep
        # them from there on.
        operands, cotangents, factor = jax.lax.optimization_barrier(
            (self.operands, self.cotangents, factor)
        )

        def run(operands: tuple, cotangents: tuple) -> list:
            return f(*self.backward(operands, cotangents), factor)

        if not self.one_by_one:
            return [x[None] for x in run(operands, cotangents)]
        inputs, loops = self.site.equation.inputs, len(self.site.equation.loops)

        def steps_first(x: Array, mark: Mark) -> Array:
            if mark is Mark.EXAMPLE:
                x = jnp.moveaxis(x, 0, loops)
            return x.reshape(-1, *x.shape[loops:])

        rows = {
            i: steps_first(operands[i], v.mark)
            for i, v in enumerate(inputs)
            if v.mark is Mark.EXAMPLE or v.loops
        }
        ds = tuple(steps_first(d, Mark.EXAMPLE) for d in cotangents)

        def of_step(row: tuple) -> list:
            own, ds = row
            return run(tuple(own.get(i, x) for i, x in enumerate(operands)), ds)

        return jax.lax.map(of_step, (rows, ds))

    def backward(self, operands: tuple, cotangents: tuple) -> tuple[Any, Any]:
        """The engine for sum(y * d), and the gradients of its parameters."""
        from .._engine import Engine  # which has this rule among its own

        equation = self.site.equation
        seen = read_by(equation)
        differentiable = [equation.outputs.index(v) for v in tapped(equation)]

        def value(params: list, example: list, d: tuple) -> tuple[Array, None]:
            places = (*self.params, *seen)
            own = dict(zip(places, (*params, *example), strict=True))
            outputs = self.call(*(own.get(i, x) for i, x in enumerate(operands)))
            products = [outputs[i] * x for i, x in zip(differentiable, d, strict=True)]
            dtype = promote(*(wide(x.dtype) for x in products))
            sums = (jnp.sum(x).astype(dtype) for x in products)
            return functools.reduce(jnp.add, sums), None

        params, example = ([operands[i] for i in at] for at in (self.params, seen))
        engine = Engine(value, params, (example, cotangents))
        return engine, engine.backward((example, cotangents))[2]

    def norms(self) -> list[Array]:
        """Each parameter's norms, `[step, batch]`."""

        def of_step(engine: Any, gradients: Any, _: None) -> list:
            zeros = jnp.zeros(self.batch)
            # The sums come from another pass, for which nothing need be formed here.
            norms = gradients.norms(then_sum=False)
            return [zeros if n is None else n for n in norms]

        return self.each_step(of_step)

    def weighted_sums(self, factor: PerExample, finite: bool) -> list[Array]:
        """Each parameter's sum, `[step, ...]`."""
        together = (0,) * len(self.params)

        def of_step(engine: Any, gradients: Any, factor: PerExample) -> list:
            sums = gradients.weighted_sums([factor], together, finite)
            return engine.finish(sums, together)

        return self.each_step(of_step, factor)

    def dense(self, k: int) -> Array:
        """The gradients of parameter number `k`, `[step, batch, ...]`."""

        def of_step(engine: Any, gradients: Any, _: None) -> list:
            p = engine.program.params[k]
            shape = (self.batch, *p.shape)
            form = gradients.by_parameter.get(p)
            return [jnp.zeros(shape, p.dtype) if form is None else form.dense()]

        return self.each_step(of_step)[0]

    @functools.cached_property
    def plans(self) -> list[tuple[str, Cost]]:
        """Each parameter's route and cost, for people."""
        loops = self.site.equation.loops if self.one_by_one else ()
        steps = math.prod(loop.length for loop in loops)
        found = []

        def of_step(engine: Any, gradients: Any, _: None) -> list:
            for p in engine.program.params:
                form = gradients.by_parameter.get(p)
                if form is None:
                    found.append(("unused", Cost(0, 0, 0)))
                    continue
                one = form.cost()
                cost = Cost(steps * one.norm_flops, steps * one.sum_flops, one.bytes)
                found.append((f"{form.route}, computed again", cost))
            return []

        self.each_step(of_step)
        return found


class Recomputed(Form):
    """The gradients of one parameter of a block, each times its factor."""

    def __init__(
        self,
        block: Block,
        operand: int,
        factor: PerExample | None = None,
        finite: bool = True,
    ) -> None:
        self.block = block
        self.operand = operand
        self.factor = factor
        self.finite = finite
        self.number = block.params.index(operand)
        self.shape = block.site.equation.inputs[operand].full_shape

    def measured(
        self, shared: Shared, then_sum: bool
    ) -> list[Inexact[Array, "batch ..."]]:
        """The norm at each step."""
        if self.block not in shared:
            shared[self.block] = self.block.norms()
        return [shared[self.block][self.number].T]

    def norms(self, measures: list[PerExample]) -> PerExample:
        """Over all steps."""
        return measures[0]

    def dense(self) -> Inexact[Array, "batch ..."]:
        """Formed, all steps of them."""
        rows = jnp.moveaxis(self.block.dense(self.number), 1, 0)
        rows = rows.reshape(rows.shape[0], *self.shape)
        return rows if self.factor is None else scaled(self.factor, rows)

    def scaled(self, factor: PerExample, silence: bool = False) -> "Recomputed":
        """Kept until a sum is asked for."""
        return Recomputed(self.block, self.operand, factor)

    def sum(self, shared: Shared) -> Inexact[Array, "..."]:
        """One more pass through the block for all of its parameters."""
        if self.block not in shared:
            factor = jnp.ones(self.block.batch) if self.factor is None else self.factor
            shared[self.block] = self.block.weighted_sums(factor, self.finite)
        return shared[self.block][self.number].reshape(self.shape)

    @property
    def loud(self) -> int:
        """All that the block reads."""
        return sum(math.prod(x.shape) for x in self.block.operands)

    def silenced(self) -> "Recomputed":
        """That the block leaves them out is up to the gradients inside it."""
        return Recomputed(self.block, self.operand, self.factor, finite=False)

    @property
    def work(self) -> Any:
        """The block."""
        return self.block

    def part(self, i: int) -> Form:
        """That of one step, where the steps are found one by one."""
        if not self.block.one_by_one or len(self.block.site.equation.loops) > 1:
            return super().part(i)
        return OneStep(self, i)

    def cost(self) -> Cost:
        """Without the two passes through the block."""
        return self.block.plans[self.number][1]

    @property
    def route(self) -> str:
        """That of the pass through the block."""
        return self.block.plans[self.number][0]


class OneStep(Form):
    """The gradients of a parameter that is one step's part of a stack."""

    def __init__(self, stack: Recomputed, step: int) -> None:
        self.stack = stack
        self.step = step
        self.shape = stack.shape[1:]

    def measured(
        self, shared: Shared, then_sum: bool
    ) -> list[Inexact[Array, "batch ..."]]:
        """The norm at that step."""
        (norms,) = self.stack.measured(shared, then_sum)
        return [norms[:, self.step, None]]

    def norms(self, measures: list[PerExample]) -> PerExample:
        """As measured."""
        return measures[0]

    def dense(self) -> Inexact[Array, "batch ..."]:
        """Formed."""
        return self.stack.dense()[:, self.step]

    def scaled(self, factor: PerExample, silence: bool = False) -> "OneStep":
        """That step's."""
        return OneStep(self.stack.scaled(factor, silence), self.step)

    def sum(self, shared: Shared) -> Inexact[Array, "..."]:
        """That step's."""
        return self.stack.sum(shared)[self.step]

    @property
    def loud(self) -> int:
        """As the whole stack."""
        return self.stack.loud

    def silenced(self) -> "OneStep":
        """As the whole stack."""
        return OneStep(self.stack.silenced(), self.step)

    def cost(self) -> Cost:
        """Its share."""
        whole, steps = self.stack.cost(), self.stack.shape[0]
        return Cost(whole.norm_flops // steps, whole.sum_flops // steps, whole.bytes)

    @property
    def route(self) -> str:
        """That of every step."""
        return self.stack.route
