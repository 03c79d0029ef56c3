"""A loss of one example as a list of equations over marked values."""

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


class Mark(enum.IntEnum):
    """What a value is made of; an equation's output gets the largest of its inputs'."""

    CONST = 0
    """Neither of a parameter nor of the example, or cut off by `stop_gradient`."""
    PARAM = 1
    """Of parameters alone, and their gradient flows through it."""
    EXAMPLE = 2
    """Touched by the example or by its key."""


@dataclasses.dataclass(eq=False, frozen=True)
class Loop:
    """A `scan` that was walked into."""

    length: int
    reverse: bool
    unroll: Any


@dataclasses.dataclass(eq=False, frozen=True)
class Value:
    """One array of the program. Two values are the same only if they are one object.

    A value that does not depend on the example is computed once, outside every loop.
    Where it differs from step to step, it is kept for all steps: one leading axis for
    each of its `loops`, outermost first.
    """

    shape: tuple[int, ...]
    dtype: Any
    mark: Mark
    loops: tuple[Loop, ...] = ()

    @property
    def differentiable(self) -> bool:
        """Whether it can carry a gradient."""
        return jnp.issubdtype(self.dtype, jnp.inexact)

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape with an axis for each of its loops."""
        return (*(loop.length for loop in self.loops), *self.shape)

    @property
    def size(self) -> int:
        """The number of entries over all steps."""
        return math.prod(self.full_shape)

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.full_shape))
        return f"{jnp.dtype(self.dtype).name}[{shape}]"


@dataclasses.dataclass(eq=False, frozen=True)
class Equation:
    """`outputs = bind(*inputs)`, at each step of the scans `loops`."""

    name: str
    params: dict[str, Any]
    bind: Callable[..., list]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    loops: tuple[Loop, ...] = ()

    @property
    def is_site(self) -> bool:
        """Whether parameters meet the example here."""
        marks = {v.mark for v in self.inputs} | {v.mark for v in self.outputs}
        return {Mark.PARAM, Mark.EXAMPLE} <= marks

    @property
    def param_operands(self) -> tuple[int, ...]:
        """The positions at which parameters enter."""
        return tuple(i for i, v in enumerate(self.inputs) if v.mark is Mark.PARAM)

    @property
    def example_operands(self) -> tuple[int, ...]:
        """The positions at which what the example touched enters."""
        return tuple(i for i, v in enumerate(self.inputs) if v.mark is Mark.EXAMPLE)


@dataclasses.dataclass(eq=False, frozen=True)
class Scan:
    """A scan that parameters enter, with its body as equations of its own.

    `init` and `xs` are values outside, `carry` and `x` the same inside; `carry_out` and
    `y` are values inside, `final` and `ys` the same ones outside. What the body
    reads from outside it reads as it is.
    """

    loop: Loop
    init: tuple[Value, ...]
    carry: tuple[Value, ...]
    xs: tuple[Value, ...]
    x: tuple[Value, ...]
    body: tuple["Equation | Scan", ...]
    carry_out: tuple[Value, ...]
    final: tuple[Value, ...]
    y: tuple[Value, ...]
    ys: tuple[Value, ...]

    def stacked(self) -> list[Value]:
        """The values from outside that have a row for each step of this scan."""
        return [v for v in self.read_inside() if self.loop in v.loops]

    def read_inside(self) -> dict[Value, None]:
        """All that the body reads, at any depth."""
        found = dict.fromkeys((*self.carry_out, *self.y))
        for item in self.body:
            if isinstance(item, Equation):
                found |= dict.fromkeys(item.inputs)
            else:
                found |= dict.fromkeys((*item.init, *item.xs)) | item.read_inside()
        return found


@dataclasses.dataclass(eq=False, frozen=True)
class Program:
    """The whole loss: `prefix` is made of no example, `body` is the rest."""

    params: tuple[Value, ...]
    example: tuple[Value, ...]
    consts: dict[Value, Any]
    prefix: tuple[Equation, ...]
    body: tuple[Equation | Scan, ...]
    value: Value
    aux: tuple[Value, ...]
    aux_tree: Any

    def sites(self) -> list[Equation]:
        """Where parameters meet the example, if the loss depends on the outcome."""
        return live_sites(self.body, {self.value})

    def run_prefix(self, params: list) -> dict[Value, Any]:
        """What is not touched by any example, computed once for the whole batch."""
        env = dict(self.consts) | dict(zip(self.params, params, strict=True))
        for equation in self.prefix:
            run = over_loops(equation, equation.bind, equation.loops)
            outputs = run(*(env[v] for v in equation.inputs))
            env |= dict(zip(equation.outputs, outputs, strict=True))
        return env


def over_loops(
    equation: Equation, function: Callable[..., Any], loops: tuple[Loop, ...]
) -> Callable[..., Any]:
    """`function` of one step's operands, mapped over all steps of `loops` at once."""
    for loop in reversed(loops):
        axes = tuple(
            0 if v.mark is Mark.EXAMPLE or loop in v.loops else None
            for v in equation.inputs
        )
        function = jax.vmap(function, in_axes=axes, axis_size=loop.length)
    return function


def live_sites(body: tuple[Equation | Scan, ...], live: set[Value]) -> list[Equation]:
    """The sites in `body` from which a gradient of `live` may come; `live` grows."""
    sites = []
    for item in reversed(body):
        if isinstance(item, Scan):
            if live.intersection((*item.final, *item.ys)):
                live |= {*item.carry_out, *item.y, *item.init, *item.xs}
                sites += reversed(live_sites(item.body, live))
        elif live.intersection(item.outputs) and item.name != "stop_gradient":
            live |= {v for v in item.inputs if v.differentiable}
            if item.is_site and any(v.differentiable for v in item.outputs):
                sites.append(item)
    return sites[::-1]
