"""One site with all that the backward pass left for it."""

import dataclasses
from typing import Any

from ._program import Equation, Mark


@dataclasses.dataclass(frozen=True)
class Site:
    """A site's arrays. With the batch in front, then an axis for each loop.

    `operands` has an array for each operand of the equation: those that the example
    touched have all those axes, the others only the axes of their own loops. It is
    None where the rule does not look at them.
    """

    equation: Equation
    operands: tuple[Any, ...] | None
    cotangents: tuple[Any, ...]

    @property
    def batch(self) -> int:
        """The number of examples."""
        return self.cotangents[0].shape[0]

    def shared_loops(self, operand: int) -> tuple[int, ...]:
        """Places of the loops over which that parameter stays the same."""
        own = self.equation.inputs[operand].loops
        return tuple(i for i, x in enumerate(self.equation.loops) if x not in own)

    def own_loops(self, operand: int) -> tuple[int, ...]:
        """Places of the loops over which that parameter has a row for each step."""
        own = self.equation.inputs[operand].loops
        return tuple(i for i, x in enumerate(self.equation.loops) if x in own)

    def in_axes(self) -> tuple[int | None, ...]:
        """Which operands have the batch axis."""
        return tuple(
            0 if v.mark is Mark.EXAMPLE else None for v in self.equation.inputs
        )
