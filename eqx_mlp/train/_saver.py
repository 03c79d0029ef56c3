"""The checkpoints of one run of `fit`: where it goes on, and when they are written."""

import contextlib
import logging
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..distributed._layout import Layout
from ..metrics import Metric
from . import _store
from ._callback import Callback
from ._checkpoint import Checkpoints, best_step, scores_of
from ._content import Checkpoint, about_model, content_of
from ._history import History
from ._leaves import to_bytes, to_host
from ._lock import locked
from ._runner import UnderWay
from ._signals import StopSignals
from ._state import TrainState

logger = logging.getLogger("eqx_mlp")


class Saver:
    """Holds the folder while the run lasts; without `Checkpoints` it does nothing.

    Arrays are copied to the host when a checkpoint is due. Writing them is the work of
    a thread, waited for by the next checkpoint and at the end.
    """

    def __init__(
        self,
        options: Checkpoints | None,
        about: dict[str, Any],
        history: History,
        callbacks: Sequence[Callback],
        layout: Layout,
    ):
        """`about` is what must be the same for a run to go on, as JSON holds it.

        Of several processes the first holds the folder and writes; all of them read.
        """
        self._layout = layout
        self._options = options
        self._about = about
        self._history = history
        self._callbacks = callbacks
        self._loaded_callbacks: list[Any] = []
        self._scores: dict[int, Any] = {}
        self._writing: Future[None] | None = None
        self._signals = StopSignals()
        self._stack = contextlib.ExitStack()
        self._keep = 0 if options is None else options.keep
        self.every = None if options is None else options.every
        # Whether the run that was found had come to its end.
        self.ended = False

    def __enter__(self) -> "Saver":
        if self._options is not None:
            self._folder = self._options.folder
            with contextlib.ExitStack() as stack:
                if self._layout.leads:
                    stack.enter_context(locked(self._folder))
                    _store.clean(self._folder)
                self._thread = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
                stack.callback(self._wait)
                stack.enter_context(self._signals)
                self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        # What is being written gets done, and only then is the folder given back.
        self._stack.__exit__(*error)

    def resume(self, state: TrainState, begun: UnderWay) -> tuple[TrainState, UnderWay]:
        """Where the run goes on: as given, or from the folder's last checkpoint."""
        if self._options is None:
            return state, begun
        self._model = about_model(state.model)
        found = _store.checkpoints_in(self._folder)
        last = self._layout.leaders(max(found, default=-1))
        if last < 0:
            return state, begun
        if last not in found:
            raise ValueError(
                f"fit: process {jax.process_index()} does not see the checkpoint of "
                f"step {last} in {self._folder}, which the first process does: all "
                "processes must have the folder, on a disk that they share"
            )
        checkpoint = Checkpoint(found[last])
        self._require_same_run(checkpoint.manifest, state)
        loaded, run = checkpoint.load(state)
        key, given = to_host([loaded.key, state.key])
        if not np.array_equal(key, given):
            raise ValueError(
                f"fit: the run in {self._folder} has another random key: start it "
                "again with the key it had, or give another folder"
            )
        self._history.load(run["history"])
        self._loaded_callbacks = run["callbacks"]
        self._scores = scores_of(found)
        self.ended = run["ended"]
        logger.info(
            "going on after %d updates, from %s",
            checkpoint.manifest["step"],
            checkpoint.path,
        )
        return loaded, _under_way(run["under_way"])

    def _require_same_run(self, manifest: dict[str, Any], state: TrainState) -> None:
        mend = "start it again with the same arguments, or give another folder"
        if manifest["about"] is None:
            raise ValueError(
                f"fit: {self._folder} was written by save, not by fit: give another "
                "folder, and what load gives in place of the model"
            )
        for name, value in self._told().items():
            if manifest["about"].get(name) != value:
                raise ValueError(
                    f"fit: the run in {self._folder} has {name} "
                    f"{manifest['about'].get(name)}, and this call has {value}: {mend}"
                )
        if int(state.step) > manifest["step"]:
            raise ValueError(
                f"fit: the run in {self._folder} has done {manifest['step']} updates, "
                f"and the state given {int(state.step)}: {mend}"
            )

    def _told(self) -> dict[str, Any]:
        names = [type(callback).__qualname__ for callback in self._keeping()]
        return self._about | {"callbacks": names}

    def start(self, state: TrainState) -> None:
        """Once callbacks have begun, give them back what the run had saved of them."""
        best = self._options and self._options.best
        names = self._history.arrays()
        if best is not None and best not in names:
            raise ValueError(
                f"fit: Checkpoints(best={best!r}) is none of the names in the history: "
                f"{', '.join(names)}"
            )
        saved = self._loaded_callbacks
        for callback, its_own in zip(self._keeping(), saved, strict=False):
            callback.load_state(its_own, state)

    def _keeping(self) -> list[Callback]:
        # Those with a state, so that one without may come or go.
        return [
            callback
            for callback in self._callbacks
            if type(callback).save_state is not Callback.save_state
        ]

    def between(self, step: int, state: TrainState, under_way: UnderWay) -> None:
        """Within an epoch: write where a checkpoint is due or a signal has come."""
        due = self.every is not None and step % self.every == 0
        number = self._signal()
        if due or number:
            self._write(step, state, under_way)
        self._leave(step, number)

    def broken(self, step: int, state: TrainState, under_way: UnderWay | None) -> None:
        """Where the run cannot go on: write, if anything is new.

        Nothing is under way after a whole epoch.
        """
        nothing_done = under_way is not None and under_way.so_far is None
        if self._options is None or step in self._scores or nothing_done:
            return
        self._write(step, state, under_way)

    def after_epoch(self, state: TrainState, ended: bool, last: bool) -> None:
        """Likewise after an epoch, its validation and its callbacks.

        `ended` is whether a callback ended the run, `last` whether no epoch follows.
        """
        if self._options is None:
            return
        step, score = int(state.step), self._score(self._options)
        due = self.every is None or step % self.every == 0 or last
        best = score and best_step(self._scores | {step: score}) == step
        number = self._signal()
        if due or best or number:
            self._write(step, state, None, ended, score)
        self._leave(step, number)

    def _score(self, options: Checkpoints) -> dict[str, Any] | None:
        if options.best is None:
            return None
        values = self._history.arrays()[options.best]
        if values.ndim != 1:
            raise ValueError(
                f"checkpoint: best must be one number an epoch, and {options.best!r} "
                "is one for each member of an ensemble or has a shape of its own: "
                "leave out best="
            )
        value = float(values[-1])
        # A NaN is never the best, whichever way it compares.
        if not np.isfinite(value):
            return None
        return {"name": options.best, "mode": options.mode, "value": value}

    def _write(
        self,
        step: int,
        state: TrainState,
        under_way: UnderWay | None,
        ended: bool = False,
        score: dict[str, Any] | None = None,
    ) -> None:
        run = {
            "ended": ended,
            "under_way": _plain(under_way),
            "history": self._history.arrays(),
            "callbacks": [callback.save_state() for callback in self._keeping()],
        }
        arrays, content = content_of(
            state, run, about=self._told(), score=score, **self._model
        )
        # The next steps reuse the buffers: they are copied now and written meanwhile.
        data = to_bytes(arrays)
        self._wait()
        self._scores[step] = score
        latest = sorted(self._scores)[-self._keep :]
        old = set(self._scores) - {*latest, best_step(self._scores)}
        for number in old:
            del self._scores[number]

        def write_and_delete() -> None:
            _store.write(self._folder, step, data, content)
            for number in old:
                _store.delete(self._folder, number)

        if self._layout.leads:
            self._writing = self._thread.submit(write_and_delete)

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _signal(self) -> int:
        """The signal that has come, here or to another process of the run, or 0."""
        if self._options is None:
            return 0
        return int(self._layout.everyones(self._signals.received or 0).max())

    def _leave(self, step: int, number: int) -> None:
        if not number:
            return
        self._wait()
        logger.warning(
            "stopped by %s after %d updates, which are in %s: the same call goes on",
            signal.Signals(number).name,
            step,
            self._folder,
        )
        raise SystemExit(128 + number)


def _plain(under_way: UnderWay | None) -> Any:
    if under_way is None:
        return None
    sums, step_loss = under_way.so_far
    sums = {name: [s.numerator, s.denominator] for name, s in sums.items()}
    return {**under_way._asdict(), "so_far": [sums, step_loss]}


def _under_way(plain: Any) -> UnderWay:
    if plain is None:
        return UnderWay()
    sums, step_loss = plain["so_far"]
    sums = {name: Metric(*jax.tree.map(jnp.asarray, s)) for name, s in sums.items()}
    return UnderWay(**plain | {"so_far": (sums, step_loss)})
