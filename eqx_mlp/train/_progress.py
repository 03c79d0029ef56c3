"""The progress bar."""

import sys
from collections.abc import Mapping
from typing import Any


def bar(total: int | None, on: bool, initial: int = 0) -> Any:
    """A bar over examples, or None when off or not on a terminal."""
    if not (on and sys.stderr.isatty()):
        return None
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=initial, unit=" examples", unit_scale=True)


class Progress:
    """A bar over all examples of a run; nothing when off or not on a terminal."""

    def __init__(
        self, epochs: int, examples: int | None, first: int, done: int, on: bool
    ):
        """Show `epochs` of `examples` each, if that is known.

        We are in epoch number `first`, and `done` of its examples are behind us.
        """
        self._epochs = epochs
        total = None if examples is None else epochs * examples
        initial = (examples or 0) * first + done
        self._bar = bar(total, on, initial)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def on(self) -> bool:
        """Whether anything is shown."""
        return self._bar is not None

    def advance(self, epoch: int, examples: int, shown: Mapping[str, float]) -> None:
        """Go on by `examples` in epoch number `epoch`, showing the values so far."""
        if self._bar is not None:
            self._bar.set_description(
                f"epoch {epoch + 1}/{self._epochs}", refresh=False
            )
            numbers = {name: f"{value:.4f}" for name, value in shown.items()}
            self._bar.set_postfix(numbers, refresh=False)
            self._bar.update(examples)
