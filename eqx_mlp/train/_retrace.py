"""Notice that a compiled function is traced again, and say which leaf changed."""

import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np


class RetraceWarning(UserWarning):
    """A function that should be compiled once is compiled again."""


class Traced(NamedTuple):
    """What compiling depends on, of one array."""

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool

    def __str__(self) -> str:
        """Such as `an array float32[2, 3]`."""
        weak = "weakly typed " if self.weak_type else ""
        return f"an array, {weak}{self.dtype}{list(self.shape)}"


class Static(NamedTuple):
    """What compiling depends on, of anything else: the value itself."""

    value: Any

    def __str__(self) -> str:
        """The value, or how it begins."""
        shown = repr(self.value)
        return shown if len(shown) <= 60 else f"{shown[:57]}..."


# Each leaf by its path.
Signature = dict[str, Traced | Static]


class RetraceGuard:
    """Remembers what a function was first traced with, and warns of another trace.

    All guards are equal, so that one may be a static argument of a compiled function
    without making it another function.
    """

    def __init__(self, name: str):
        """Guard the function of this name."""
        self._name = name
        self._seen: Signature | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetraceGuard)

    def __hash__(self) -> int:
        return hash(RetraceGuard)

    def expect(self, arguments: Mapping[str, Any]) -> None:
        """Remember these arguments, if none have been seen."""
        if self._seen is None:
            self._seen = signature_of(arguments)

    def traced(self, arguments: Mapping[str, Any]) -> None:
        """Remember the first arguments, and warn of every further trace."""
        before, now = self._seen, signature_of(arguments)
        self._seen = now
        if before is None:
            return
        changes = differences(before, now) or [
            "no argument changed, so JAX's configuration did, or its caches were "
            "cleared, or something besides traced it"
        ]
        more = f"; and {len(changes) - 5} more" if len(changes) > 5 else ""
        warnings.warn(
            f"{self._name} is compiled again: {'; '.join(changes[:5])}{more}. Each "
            "compilation takes far longer than a step: keep the arguments' types the "
            "same from call to call",
            RetraceWarning,
            stacklevel=2,
        )


@contextlib.contextmanager
def retrace_guard(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A function that warns, while the block lasts, if it is traced more than once.

    Hand it to `jax.jit`, `eqx.filter_jit` and the like in place of `function`. It looks
    at its arguments only where it is traced, so the compiled function is as fast as
    without. What traces it besides, such as `jax.eval_shape`, counts as well.

    The `RetraceWarning` names each leaf that differs from the trace before, and says
    what changed: its shape, its dtype, its weak type, or the value of something static.

    >>> import equinox as eqx, jax.numpy as jnp, warnings
    >>> from eqx_mlp import retrace_guard
    >>> with retrace_guard(lambda x, scale: x * scale) as function:
    ...     compiled = eqx.filter_jit(function)
    ...     with warnings.catch_warnings(record=True) as caught:
    ...         warnings.simplefilter("always")
    ...         for scale in (1.0, 1.0, 2.0):
    ...             _ = compiled(jnp.ones(3), scale)
    >>> print(str(caught[0].message).split(". ")[0])
    <lambda> is compiled again: scale: static value 1.0 -> 2.0
    """
    guard = RetraceGuard(getattr(function, "__name__", repr(function)))
    watching = True

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if watching:
            guard.traced(_by_name(function, args, kwargs))
        return function(*args, **kwargs)

    try:
        yield guarded
    finally:
        watching = False


def signature_of(arguments: Mapping[str, Any]) -> Signature:
    """What compiling a function of these arguments depends on."""
    return {
        path: _leaf(x)
        for name, argument in arguments.items()
        for path, x in _leaves(argument, name)
    }


def differences(before: Signature, now: Signature) -> list[str]:
    """What changed, a line a leaf."""
    changes = {
        path: _change(before.get(path), now.get(path)) for path in {**before, **now}
    }
    return [f"{path}: {change}" for path, change in changes.items() if change]


def _change(old: Traced | Static | None, new: Traced | Static | None) -> str:
    match old, new:
        case Traced(), Traced():
            return ", ".join(
                f"{name.replace('_', ' ')} {a} -> {b}"
                for name, a, b in zip(Traced._fields, old, new, strict=True)
                if a != b
            )
        case Static(), Static():
            return "" if _equal(old, new) else f"static value {old} -> {new}"
    return f"{'nothing' if old is None else old} -> {'nothing' if new is None else new}"


def _equal(old: Static, new: Static) -> bool:
    return type(old.value) is type(new.value) and bool(old.value == new.value)


def _leaf(x: Any) -> Traced | Static:
    if isinstance(x, jax.Array | np.ndarray):
        return Traced(x.shape, str(x.dtype), bool(getattr(x, "weak_type", False)))
    return Static(x)


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    # Static fields of modules are no leaves to JAX, but part of the tree's structure.
    if isinstance(tree, eqx.Module):
        for field in dataclasses.fields(tree):
            inner = getattr(tree, field.name, None)
            yield from _leaves(inner, f"{path}.{field.name}")
        return
    is_module = lambda x: isinstance(x, eqx.Module)
    for keys, inner in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_module)[0]:
        name = path + jax.tree_util.keystr(keys)
        if is_module(inner):
            yield from _leaves(inner, name)
        else:
            yield name, inner


def _by_name(
    function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # none to be had, or a call that is wrong anyway
        return {**{f"argument {i}": x for i, x in enumerate(args)}, **kwargs}
