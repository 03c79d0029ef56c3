"""How a model shows itself: a line in a console, a tree in a notebook."""

from typing import Any

import equinox as eqx
import jax

from ._known import is_known


def mimebundle(self: Any, include: Any = None, exclude: Any = None) -> dict[str, str]:
    """What a notebook shows where Treescope is installed: a tree to fold, with shapes.

    IPython asks for `_repr_mimebundle_`. Treescope itself asks a node for
    `_repr_html_`, and would be asked by it again.
    """
    try:
        import treescope
    except ImportError:
        return {}
    return {"text/html": treescope.render_to_html(self)}


def call(name: str, *arguments: Any, **options: Any) -> str:
    """`name(argument, option=value)`, with arrays by dtype and shape."""
    shown = [short(x) for x in arguments]
    shown += [f"{option}={short(x)}" for option, x in options.items()]
    return f"{name}({', '.join(shown)})"


def short(x: Any) -> str:
    """A number that is known as it is, an array as `f32[3]`, a function by its name."""
    if is_number(x):
        return str(x.item())
    if isinstance(x, eqx.Module):
        return repr(x)
    return getattr(x, "__name__", repr(x)) if callable(x) else eqx.tree_pformat(x)


def is_number(x: Any) -> bool:
    """Whether `x` is an array of one number that can be read now."""
    if not isinstance(x, jax.Array) or x.shape != () or not is_known(x):
        return False
    # A donated buffer is gone, and a debugger must not fail on it.
    return x.is_fully_addressable and not x.is_deleted()
