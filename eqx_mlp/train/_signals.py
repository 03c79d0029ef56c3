"""Ctrl-C and SIGTERM, put off to a moment when the run can be left."""

import signal
import threading
from typing import Any


class StopSignals:
    """Within it, the first SIGINT or SIGTERM is noted in `received` and not acted on.

    Earlier handlers come back with it, so a second signal acts at once. Only the main
    thread may have handlers; in another one nothing happens. Ignored signals stay so.
    """

    def __init__(self) -> None:
        """Nothing received yet."""
        self.received: int | None = None
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._earlier[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._restore()
        if self.received is not None and kind is None:
            # Nobody has left on its account: it came too late for that.
            signal.raise_signal(self.received)

    def _note(self, number: int, frame: Any) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        while self._earlier:
            signal.signal(*self._earlier.popitem())
