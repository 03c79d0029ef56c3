"""The one mechanism: a model's arrays in order, and how another library has them.

An array belongs to a module and is a field of it, as `weight` is of `layers.0`. Another
library has its own names for modules, which only their order relates to ours, and its
own names and layouts of fields.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..._select import SETTINGS, Place, places_of
from ...train._leaves import is_array, is_key, placed, require_same


class Entry(NamedTuple):
    """An array of a model."""

    module: str
    field: str
    owner: Any
    value: Any


class Layout(NamedTuple):
    """A field in another library: its name, and whether its last two axes change."""

    field: str
    transposed: bool = False


Layouts: TypeAlias = Callable[[Entry], Layout]


def as_ours(entry: Entry) -> Layout:
    """The layout of Equinox, which is that of PyTorch too."""
    return Layout(entry.field)


def entries_of(tree: PyTree) -> list[Entry]:
    """The arrays of a tree in their order, without keys and dropout rates."""
    entries = []
    for place in places_of(tree):
        if _is_weight(place):
            # A key of a dictionary may hold dots itself, as in a state_dict.
            module, _, field = ".".join(place.path).rpartition(".")
            owner = place.owners[-1] if place.owners else None
            entries.append(Entry(module, field, owner, place.value))
    return entries


def _is_weight(place: Place) -> bool:
    if place.owners and isinstance(place.owners[-1], SETTINGS):
        return False
    x = place.value
    return _is_tensor(x) or (is_array(x) and not is_key(x))


def filled(
    where: str,
    model: PyTree,
    weights: Sequence[Entry],
    layouts: Layouts,
    modules: Sequence[str] | None,
) -> PyTree:
    """`model` with the arrays of `weights`.

    Raises:
        ValueError: an array is missing, too many, or of another shape or dtype.
    """
    entries = entries_of(model)
    theirs = {_joined(e.module, e.field): e for e in weights}
    own = _modules(entries)
    if modules is None:
        modules = _by_number(own, _modules(theirs.values())) or own
    else:
        require_modules(own, modules)
    name_of = dict(zip(own, modules, strict=True))
    laid_out = [layouts(e) for e in entries]
    names = [
        _joined(name_of[e.module], layout.field)
        for e, layout in zip(entries, laid_out, strict=True)
    ]
    wanted = [
        _described(e.value, layout.transposed)
        for e, layout in zip(entries, laid_out, strict=True)
    ]
    require_same(
        where,
        {name: _described(e.value) for name, e in theirs.items()},
        dict(zip(names, wanted, strict=True)),
        f"The model's modules are, in order, {', '.join(own)}: where theirs have other "
        "names, give those in that order as modules=; cast arrays of another dtype, or "
        "build the model with it",
    )
    new = iter(
        [
            placed(name, _laid_out(to_numpy(theirs[name].value), layout), e.value)
            for name, layout, e in zip(names, laid_out, entries, strict=True)
        ]
    )
    leaves = [
        next(new) if _is_weight(place) else place.value
        for place in places_of(model)
        if place.is_leaf
    ]
    return jax.tree.unflatten(jax.tree.structure(model), leaves)


def named(
    model: PyTree,
    layouts: Layouts,
    modules: Sequence[str] | None,
    numbered: Callable[[int], str] | None = None,
) -> dict[str, Any]:
    """The arrays of `model` by the names that another library has for them.

    `numbered` names module `i` where those of the model differ by a number alone.
    """
    entries = entries_of(model)
    own = _modules(entries)
    if modules is not None:
        require_modules(own, modules)
    elif numbered is not None and _numbers(own) is not None:
        modules = [numbered(i) for i in range(len(own))]
    name_of = dict(zip(own, modules or own, strict=True))
    out = {}
    for e in entries:
        layout = layouts(e)
        out[_joined(name_of[e.module], layout.field)] = _laid_out(e.value, layout)
    return out


def require_mapping(owner: str, weights: Any) -> None:
    """Raise a TypeError unless `weights` is a dictionary or behaves as one."""
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"{owner} takes arrays by name, such as module.state_dict() or the params "
            f"of a Flax module, got a {type(weights).__name__}"
        )


def require_modules(own: Sequence[str], modules: Any) -> None:
    """Raise a ValueError unless `modules` names each module of the model."""
    names = [] if isinstance(modules, str) else list(modules)
    ok = all(isinstance(name, str) for name in names)
    if not ok or len(names) != len(own) or len({*names}) != len(own):
        raise ValueError(
            f"modules must give {len(own)} different names, for {', '.join(own)} in "
            f"this order, got {modules!r}"
        )


def to_numpy(x: Any) -> np.ndarray:
    """An array of any library on the host."""
    if not _is_tensor(x):
        return np.asarray(x)
    x = x.detach().cpu()
    if _dtype(x) != "bfloat16":
        return x.numpy()
    import torch  # whose tensors of this dtype know no other way to NumPy

    return x.contiguous().view(torch.int16).numpy().view(jnp.bfloat16)


def _modules(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(e.module for e in entries))


def _by_number(own: Sequence[str], found: Sequence[str]) -> list[str] | None:
    """Their modules in the order of ours, where both differ by a number alone."""
    if {*found} <= {*own}:
        return None
    numbers = _numbers(found)
    if numbers is None or _numbers(own) is None:
        return None
    ordered = [name for _, name in sorted(zip(numbers, found, strict=True))]
    # What they lack is named as the model does, and never as one of theirs; what they
    # have beyond is left to be told.
    missing = [
        f"model.{name}" if name in ordered else name for name in own[len(ordered) :]
    ]
    return [*ordered[: len(own)], *missing]


def _numbers(names: Sequence[str]) -> list[int] | None:
    matches = [re.fullmatch(r"(.*?)(\d+)", name) for name in names]
    if not all(matches) or len({m[1] for m in matches if m}) != 1:
        return None
    return [int(m[2]) for m in matches if m]


def _joined(module: str, field: str) -> str:
    return f"{module}.{field}" if module else field


def _laid_out(x: Any, layout: Layout) -> Any:
    # The last two, so that layers stacked along a first axis come out right as well.
    return x.swapaxes(-1, -2) if layout.transposed else x


def _is_tensor(x: Any) -> bool:
    """Whether `x` is PyTorch's, which is not imported to find out."""
    return hasattr(x, "detach") and hasattr(x, "numpy")


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _described(x: Any, transposed: bool = False) -> str:
    shape = [int(n) for n in x.shape]
    if transposed and len(shape) > 1:
        shape[-2:] = shape[:-3:-1]
    return f"{_dtype(x)}{shape}"
