"""What happens to parameters before they meet the example, taken back.

Some prefixes only rename entries: a transpose, a reshape, a sign, a cast. The norm of
the gradient is then the same on both sides. Any other prefix is taken back by its VJP.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._form import Dense, Form
from ._program import Equation, Mark, Program, Value
from ._rows import Rows

SAME = frozenset(
    ("steps", "convert_element_type", "copy", "copy_p", "optimization_barrier")
)
RESHAPED = frozenset(("reshape", "squeeze", "expand_dims", "broadcast_in_dim"))


@dataclasses.dataclass(frozen=True)
class Renaming:
    """A prefix that takes each entry of one parameter to one place."""

    param: Value
    equations: tuple[Equation, ...] = ()

    def back(self, x: Any) -> Any:
        """An array in the layout of the prefix's result, in that of the parameter."""
        for equation in reversed(self.equations):
            step = one_back(equation)
            for _ in equation.loops:
                step = jax.vmap(step)
            x = step(x)
        return x

    def form_back(self, form: Form) -> Form:
        """The same for gradients, kept unformed where only axes change places."""
        if not self.equations:
            return form
        if isinstance(form, Rows):
            axes = self.axes_back(form.axes) if form.split == form.shape else None
            if axes is not None:
                return Rows(form.parts, axes, self.param.shape, form.precision)
        return Dense(jax.vmap(self.back)(form.dense()), form.route)

    def axes_back(self, axes: Any) -> Any:
        """Where each axis comes from, or None where that is not the whole story."""
        for equation in reversed(self.equations):
            if equation.name == "transpose":
                n = len(equation.loops)
                source = [
                    *range(n),
                    *(n + int(i) for i in equation.params["permutation"]),
                ]
                axes = tuple(tuple(source[i] for i in side) for side in axes)
            elif equation.name not in SAME:
                return None
        _, left, right = axes
        ordered = all(list(side) == sorted(side) for side in axes) and left < right
        return axes if ordered else None


def one_back(equation: Equation) -> Any:
    """The inverse of an equation that renames entries, in any dtype."""
    shape = equation.inputs[0].shape
    if equation.name == "transpose":
        back = np.argsort(equation.params["permutation"])
        return lambda x: x.transpose(*map(int, back))
    if equation.name in RESHAPED:
        return lambda x: x.reshape(shape)
    if equation.name == "rev":
        return lambda x: jax.lax.rev(x, equation.params["dimensions"])
    return (lambda x: -x) if equation.name == "neg" else (lambda x: x)


def renames(equation: Equation) -> bool:
    """Whether an equation only renames the entries of its one parameter."""
    if len(equation.inputs) != 1 or len(equation.outputs) != 1:
        return False
    before, after = equation.inputs[0], equation.outputs[0]
    if equation.name in RESHAPED:
        return before.size == after.size and not equation.params.get("dimensions")
    if equation.name in SAME:
        kind = jnp.complexfloating
        return jnp.issubdtype(before.dtype, kind) == jnp.issubdtype(after.dtype, kind)
    return equation.name in ("transpose", "rev", "neg")


class Prefix:
    """For each value made of parameters: which ones, and whether only renamed."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sources = {p: frozenset((p,)) for p in program.params}
        self.renamings = {p: Renaming(p) for p in program.params}
        # Values that are several parameters, one behind the other along a first axis.
        self.stacks: dict[Value, tuple[Value, ...]] = {}
        for equation in program.prefix:
            entering = [v for v in equation.inputs if v in self.sources]
            for v in equation.outputs:
                if v.mark is Mark.PARAM:
                    self.sources[v] = frozenset().union(
                        *(self.sources[x] for x in entering)
                    )
            if entering and entering[0] in self.renamings and renames(equation):
                before = self.renamings[entering[0]]
                self.renamings[equation.outputs[0]] = Renaming(
                    before.param, (*before.equations, equation)
                )
            elif (params := self.stacked_by(equation)) is not None:
                self.stacks[equation.outputs[0]] = params

    def stacked_by(self, equation: Equation) -> tuple[Value, ...] | None:
        """The parameters that an equation only puts one behind the other."""
        if equation.name in SAME and equation.inputs[0] in self.stacks:
            return self.stacks[equation.inputs[0]]
        # `jnp.stack` is one or the other, by the version of JAX.
        lead = {"concatenate": (1,), "stack": ()}.get(equation.name)
        if lead is None or equation.params.get(
            "dimension", equation.params.get("axis")
        ):
            return None
        params = []
        for v in equation.inputs:
            renaming = self.renamings.get(v)
            if renaming is None or v.shape != (*lead, *renaming.param.shape):
                return None
            if v.loops or not all(e.name in RESHAPED for e in renaming.equations):
                return None
            params.append(renaming.param)
        return tuple(params)

    def pull_back(
        self, params: list, cotangents: dict[Value, Any], wanted: tuple[Value, ...]
    ) -> list:
        """The gradients of `wanted` parameters from those of values made of them."""
        place = {v: i for i, v in enumerate(self.program.params)}
        values = list(cotangents)

        def made(chosen: list) -> list:
            given = list(params)
            for v, x in zip(wanted, chosen, strict=True):
                given[place[v]] = x
            env = self.program.run_prefix(given)
            return [env[v] for v in values]

        _, back = jax.vjp(made, [params[place[v]] for v in wanted])
        (grads,) = back([cotangents[v].astype(v.dtype) for v in values])
        return grads
