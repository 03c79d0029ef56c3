"""What every logger can do."""

import abc
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Values: TypeAlias = Mapping[str, float | int]
# A number of updates done, and values by name.
Row: TypeAlias = tuple[int, Values]


class Logger(abc.ABC):
    """Writes rows of numbers, each with the number of updates done by then.

    Rows come in the order of their steps. A logger belongs to one run at a time.
    """

    @abc.abstractmethod
    def start(self, step: int) -> None:
        """Before the first row of a run that has `step` updates behind it.

        Rows of later steps, which a run that was killed has left, go.
        """

    @abc.abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Write rows."""

    def end(self) -> None:  # noqa: B027 - most hold nothing
        """After the last row of a run that came to its end: let go of what is held."""

    def log(self, step: int, values: Values) -> None:
        """Write one row."""
        self.write([(step, values)])
