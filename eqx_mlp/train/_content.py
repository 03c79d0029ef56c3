"""What a checkpoint holds, and its way back into the program's own structures."""

from pathlib import Path
from typing import Any

from jaxtyping import PyTree

from .._types import Model
from ..nn._constructor import build, constructor_of
from . import _store
from ._leaves import (
    Leaf,
    decode,
    encode,
    from_bytes,
    leaf_of,
    named,
    require_same,
    with_arrays,
    with_values,
)
from ._state import TrainState

SAVED_FROM = "Give the model, and for a state the optimizer, that it was saved from"


def about_model(model: Model) -> dict[str, Any]:
    """What a manifest says of a model beside its leaves; the same all through a run."""
    return {"type": type(model).__qualname__, "constructor": constructor_of(model)}


def content_of(
    model_or_state: Model | TrainState, run: Any = None, **more: Any
) -> tuple[list[Any], dict[str, Any]]:
    """The arrays to be stored, and the manifest.

    `run` is plain data with arrays in it, and `more` goes into the manifest as it is.
    """
    arrays, values = named(model_or_state, _root(model_or_state))
    run = encode(run, "run", arrays)
    return list(arrays.values()), {
        "values": values,
        "run": run,
        "leaves": [leaf_of(path, x)._asdict() for path, x in arrays.items()],
    } | more


class Checkpoint:
    """One that is there: its manifest, checked; the rest is read by `load`."""

    def __init__(self, path: Path):
        """Read the manifest of `path`."""
        self.path = path
        self.manifest = _store.read_manifest(path)
        self._leaves = {
            leaf["path"]: Leaf(**leaf | {"shape": tuple(leaf["shape"])})
            for leaf in self.manifest["leaves"]
        }

    def load(self, like: PyTree) -> tuple[PyTree, Any]:
        """What `like` is, with the arrays of the checkpoint; and the run's own data.

        Raises:
            ValueError: another structure than that of `like`, or damaged files.
        """
        self.require_fits(like)
        arrays = self.arrays()
        tree = with_arrays(like, arrays, _root(like))
        return tree, decode(self.manifest["run"], self._leaves, arrays)

    def arrays(self) -> dict[str, Any]:
        """All of them by their paths, keys as their data.

        Raises:
            ValueError: damaged files.
        """
        data = _store.read_bytes(self.path, self.manifest)
        each = from_bytes(data, list(self._leaves.values()))
        return dict(zip(self._leaves, each, strict=True))

    def blank(self) -> Model:
        """The model with the shapes of its arrays, from its constructor's arguments.

        Raises:
            ValueError: a model that has none.
        """
        constructor = self.manifest["constructor"]
        if constructor is None:
            raise ValueError(
                f"the checkpoint {self.path} holds a model of type "
                f"{self.manifest['type']}, which cannot be rebuilt from its "
                "constructor's arguments: hand over one of the same structure, "
                "load(folder, like=model)"
            )
        # What was set after the constructor, such as Equinox's inference mode.
        return with_values(build(constructor), self.manifest["values"], "model")

    def require_fits(self, like: PyTree) -> None:
        """Raise a ValueError unless the leaves are those of `like`."""
        arrays, values = named(like, _root(like))
        whole = isinstance(like, TrainState)

        def wanted(saved: dict[str, Any]) -> dict[str, Any]:
            return {
                path: x
                for path, x in saved.items()
                if (not path.startswith("run[") if whole else _is_models(path))
            }

        where = f"the checkpoint {self.path}"
        leaves = {path: leaf_of(path, x) for path, x in arrays.items()}
        require_same(where, wanted(self._leaves), leaves, SAVED_FROM)
        require_same(where, wanted(self.manifest["values"]), values, SAVED_FROM)
        saved, ours = self.manifest["constructor"], constructor_of(model_of(like))
        if saved and ours and saved != ours:
            # Leaves and values are the same, so it is the activation that is not.
            raise ValueError(
                f"{where} holds {_shown(saved)}, and is to be loaded into "
                f"{_shown(ours)}"
            )


def model_of(model_or_state: Model | TrainState) -> Model:
    """The model alone."""
    if isinstance(model_or_state, TrainState):
        return model_or_state.model
    return model_or_state


def _root(model_or_state: Model | TrainState) -> str:
    # A model has the same paths alone and in a state.
    return "" if isinstance(model_or_state, TrainState) else "model"


def _is_models(path: str) -> bool:
    return path == "model" or path.startswith(("model.", "model["))


def _shown(constructor: dict[str, Any]) -> str:
    arguments = constructor["arguments"].items()
    return f"{constructor['class']}({', '.join(f'{k}={v}' for k, v in arguments)})"
