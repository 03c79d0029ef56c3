"""Checkpoints: what to keep and where, writing one by hand, and loading one."""

from pathlib import Path
from typing import Any, Literal

import equinox as eqx

from .._checked import checked
from .._types import Model
from ..distributed._layout import layout_of
from . import _store
from ._content import Checkpoint, about_model, content_of, model_of
from ._data import require_count
from ._leaves import to_bytes
from ._lock import locked
from ._state import TrainState


def _require_options(
    self: Any,
    folder: Any,
    *,
    every: Any = None,
    keep: Any = 1,
    mode: Any = "min",
    **_: Any,
) -> None:
    _require_folder(folder)
    require_count("Checkpoints", keep=keep)
    if every is not None:
        require_count("Checkpoints", every=every)
    if mode not in ("min", "max"):
        raise ValueError(f"Checkpoints: mode must be 'min' or 'max', got {mode!r}")


class Checkpoints(eqx.Module):
    """Where `fit` keeps its run, so that the same call goes on where it stopped.

    >>> from eqx_mlp import Checkpoints
    >>> Checkpoints("runs/a", best="val_accuracy", mode="max").keep
    2
    """

    folder: Path = eqx.field(static=True)
    every: int | None = eqx.field(static=True)
    keep: int = eqx.field(static=True)
    best: str | None = eqx.field(static=True)
    mode: Literal["min", "max"] = eqx.field(static=True)

    @checked(_require_options)
    def __init__(
        self,
        folder: str | Path,
        *,
        every: int | None = None,
        keep: int = 2,
        best: str | None = None,
        mode: Literal["min", "max"] = "min",
    ):
        """Choose what stays.

        Args:
            folder: of one run; made where it is missing.
            every: updates between two checkpoints; None is one after each epoch. The
                last state of a run, or of one that is interrupted, is always written.
            keep: how many of the latest stay.
            best: a name in the history, such as "val_loss"; the checkpoint of the best
                epoch is written and stays too.
            mode: whether the best value is the smallest ("min") or the largest ("max").

        Raises:
            ValueError: counts below 1, another mode.
        """
        self.folder = Path(folder)
        self.every = every
        self.keep = keep
        self.best = best
        self.mode = mode


def require_checkpoints(checkpoint: Any) -> None:
    """Raise unless `checkpoint` is None or a `Checkpoints` that could be written."""
    if checkpoint is None:
        return
    if not isinstance(checkpoint, Checkpoints):
        raise ValueError(
            "fit: checkpoint must be eqx_mlp.Checkpoints(folder, ...), got "
            f"{checkpoint!r}"
        )
    _store.require_orbax()


def _require_folder(folder: Any) -> None:
    if not isinstance(folder, str | Path):
        raise ValueError(f"folder must be a path, got {folder!r}")


def _require(folder: Any, *_: Any, which: Any = "last", **__: Any) -> None:
    _require_folder(folder)
    number = isinstance(which, int) and not isinstance(which, bool)
    if not number and which not in ("last", "best"):
        raise ValueError(
            f"load: which must be 'last', 'best' or the step of one, got {which!r}"
        )
    _store.require_orbax()


@checked(_require)
def save(folder: str | Path, model_or_state: Model | TrainState) -> None:
    """Write a model or a state as a checkpoint, and wait until it is there.

    `fit` does so by itself; this is for loops by hand. A state goes into
    `folder/<step>`, a model into `folder/0`, named in twelve digits. Where arrays are
    spread over several processes, all of them make this call, and the first one writes.

    Raises:
        ValueError: a checkpoint of that step is there already.
        RuntimeError: another process is writing into the folder.
        ImportError: Orbax is not installed.

    >>> import jax, tempfile
    >>> from eqx_mlp import MLP, load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, MLP(4, 2, (8,), key=jax.random.key(0)))
    ...     load(folder).layers[0].weight.shape
    (8, 4)
    """
    folder = Path(folder)
    step = int(model_or_state.step) if isinstance(model_or_state, TrainState) else 0
    about = about_model(model_of(model_or_state))
    arrays, content = content_of(model_or_state, about=None, score=None, **about)
    data = to_bytes(arrays)

    def write() -> None:
        with locked(folder):
            if step in _store.checkpoints_in(folder):
                raise ValueError(
                    f"save: {folder} already holds a checkpoint of step {step}: delete "
                    "it, or give another folder"
                )
            _store.clean(folder)
            _store.write(folder, step, data, content)

    layout_of(model_or_state).by_leader(write)


@checked(_require)
def load(
    folder: str | Path,
    *,
    which: Literal["last", "best"] | int = "last",
    like: Model | TrainState | None = None,
) -> Any:
    """The model of a checkpoint, or what `like` is.

    Nothing in a checkpoint is run as code. Everything is checked before anything is
    made: the sum of each file, and each leaf's path, shape and dtype.

    Args:
        folder: what `Checkpoints` or `save` was given.
        which: the last one, the best one (see `Checkpoints`), or the one of a step.
        like: a model or a `TrainState` with the structure to load into, whose arrays
            may be `jax.ShapeDtypeStruct`s. Arrays go to the devices on which its own
            are. Only a model of this library, with an activation of `jax.nn`, needs
            none: it is rebuilt from its constructor's arguments.

    Raises:
        FileNotFoundError: no checkpoint, or none of that step.
        ValueError: a damaged checkpoint, another format version, a structure other than
            that of `like`, a model that cannot be rebuilt without.
        ImportError: Orbax is not installed.

    >>> import tempfile
    >>> import jax.numpy as jnp
    >>> from eqx_mlp import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, {"w": jnp.ones(2)})
    ...     load(folder, like={"w": jnp.zeros(2)})["w"].tolist()
    [1.0, 1.0]
    """
    checkpoint = _chosen(Path(folder), which)
    return checkpoint.load(checkpoint.blank() if like is None else like)[0]


def best_step(scores: dict[int, dict[str, Any] | None]) -> int | None:
    """The step with the best score, the earliest one of equals."""
    scored = [(step, score) for step, score in sorted(scores.items()) if score]
    if not scored:
        return None
    sign = -1 if scored[-1][1]["mode"] == "max" else 1
    return min(scored, key=lambda pair: sign * pair[1]["value"])[0]


def _chosen(folder: Path, which: Any) -> Checkpoint:
    found = _store.checkpoints_in(folder)
    if not found:
        raise FileNotFoundError(f"load: no checkpoint in {folder.absolute()}")
    if which == "last":
        which = list(found)[-1]
    elif which == "best":
        which = best_step(scores_of(found))
        if which is None:
            raise ValueError(
                f"load: no checkpoint in {folder} is known to be the best: train with "
                "Checkpoints(folder, best='val_loss'), say, or load the last"
            )
    if which not in found:
        raise FileNotFoundError(
            f"load: no checkpoint of step {which} in {folder}, which holds steps "
            f"{', '.join(map(str, found))}"
        )
    return Checkpoint(found[which])


def scores_of(found: dict[int, Path]) -> dict[int, dict[str, Any] | None]:
    """What each checkpoint scored, by step; None where that is not known."""
    return {step: _store.read_manifest(path)["score"] for step, path in found.items()}
