"""The one decorator on public functions: our own errors first, then the types."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from jaxtyping import jaxtyped

P = ParamSpec("P")
R = TypeVar("R")


def checked(
    first: Callable[..., None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check a function's arguments and result against its annotations.

    `first` gets the raw arguments before the annotations are looked at, and raises
    the ValueError that says how to mend the call. beartype is imported at the first
    call, because importing it takes longer than importing this library.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        typed: Callable[P, R] | None = None
        if first is not None:
            # Python names the function in "missing a required argument".
            first.__qualname__ = function.__qualname__

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            nonlocal typed
            if first is not None:
                first(*args, **kwargs)
            if typed is None:
                from beartype import beartype

                typed = jaxtyped(function, typechecker=beartype)
            return typed(*args, **kwargs)

        return wrapper

    return decorate
