"""Which of a model's leaves: chosen by where they are and by what they are."""

import fnmatch
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from ._checked import checked


class Place(NamedTuple):
    """A leaf, or a node without children, and the way to it from the root."""

    path: tuple[str, ...]
    owners: tuple[Any, ...]
    value: Any
    is_leaf: bool


class Selection:
    """A choice of leaves, made by `select`; a function from a tree to booleans.

    `a | b`, `a & b` and `~a` are selections too. `trainable=` takes one, and so does
    whatever takes a function from parameters to a mask, as Optax does.
    """

    def __init__(self, holds: Callable[[Place], bool], patterns: tuple[str, ...] = ()):
        """What `holds` of a place; each of `patterns` must be met somewhere."""
        self._holds = holds
        self._patterns = patterns

    def __call__(self, tree: PyTree) -> PyTree[bool]:
        """A tree of booleans with the structure of `tree`.

        Raises:
            ValueError: a path pattern that nothing in `tree` meets.
        """
        places = places_of(tree)
        for pattern in self._patterns:
            if not any(_meets(_parts(pattern), place.path) for place in places):
                found = ", ".join(".".join(place.path) for place in places[:20])
                more = ", ..." if len(places) > 20 else ""
                raise ValueError(
                    f"select: nothing is at {pattern!r}; the tree has {found}{more}"
                )
        chosen = [bool(self._holds(place)) for place in places if place.is_leaf]
        return jax.tree.unflatten(jax.tree.structure(tree), chosen)

    def __or__(self, other: "Selection") -> "Selection":
        return select(self, other)

    def __and__(self, other: "Selection") -> "Selection":
        return Selection(
            lambda place: self._holds(place) and other._holds(place),
            self._patterns + other._patterns,
        )

    def __invert__(self) -> "Selection":
        return Selection(lambda place: not self._holds(place), self._patterns)


def _require(*what: Any) -> None:
    if not what:
        raise ValueError("select takes at least one path, type or predicate, got none")
    for item in what:
        if not (isinstance(item, str) or callable(item)):
            raise ValueError(
                "select takes paths such as 'layers.*.weight', types such as "
                f"eqx.nn.Linear and predicates of leaves, got {item!r}"
            )


@checked(_require)
def select(*what: str | type | Callable[[Any], Any]) -> Selection:
    """The leaves that any of `what` names.

    Args:
        what: a path such as "layers.0.weight", which means everything at or below it,
            with `*` for any part and `**` for any number of parts; a type, which means
            everything inside a module of that type; or a predicate of leaves.

    Raises:
        ValueError: nothing given, or something else. The selection raises one where it
            is used, if a path is not there.

    >>> import jax
    >>> from eqx_mlp import MLP, select
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> head = select("layers.1")(model)
    >>> head.layers[0].weight, head.layers[1].weight, head.layers[1].bias
    (False, True, True)
    >>> weights = select("layers.*.weight")(model)
    >>> weights.layers[0].weight, weights.layers[0].bias
    (True, False)
    """
    chosen = [_one(item) for item in what]
    return Selection(
        lambda place: any(one._holds(place) for one in chosen),
        tuple(pattern for one in chosen for pattern in one._patterns),
    )


def places_of(tree: PyTree) -> list[Place]:
    """The leaves of `tree` in order, with its empty nodes between them."""

    def walk(node: Any, path: tuple[str, ...], owners: tuple) -> list[Place]:
        children = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda child: child is not node
        )[0]
        if not children or children[0][0] == ():
            return [Place(path, owners, node, bool(children))]
        return [
            place
            for entry, child in children
            for place in walk(
                child,
                (*path, jax.tree_util.keystr(entry, simple=True)),
                (*owners, node),
            )
        ]

    return walk(tree, (), ())


def _one(item: Any) -> Selection:
    match item:
        case Selection():
            return item
        case str():
            parts = _parts(item)
            return Selection(lambda place: _meets(parts, place.path), (item,))
        case type():
            return Selection(
                lambda place: any(isinstance(owner, item) for owner in place.owners)
            )
        case _:
            return Selection(lambda place: item(place.value))


def _parts(pattern: str) -> tuple[str, ...]:
    # Errors and tables write layers[0]['w'], which is taken as layers.0.w.
    dotted = re.sub(r"\[['\"]?(.*?)['\"]?\]", r".\1", pattern)
    return tuple(dotted.strip(".").split("."))


def _meets(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether a path is what a pattern names, or is below it."""
    if not pattern:
        return True
    first, *rest = pattern
    if first == "**":
        return any(_meets(tuple(rest), path[i:]) for i in range(len(path) + 1))
    return (
        bool(path)
        and fnmatch.fnmatchcase(path[0], first)
        and _meets(tuple(rest), path[1:])
    )


SETTINGS = (eqx.nn.Dropout,)
"""Modules whose numbers are hyper-parameters, also where an array stands for one."""

NORMS = (
    eqx.nn.LayerNorm,
    eqx.nn.RMSNorm,
    eqx.nn.GroupNorm,
    eqx.nn.BatchNorm,
)


def _decays(place: Place) -> bool:
    owner, field = (place.owners or (None,))[-1], (place.path or ("",))[-1]
    is_bias = field.startswith("bias")
    is_scale = isinstance(owner, eqx.nn.WeightNorm) and field == "g"
    is_slope = isinstance(owner, eqx.nn.PReLU)
    return not (is_bias or is_scale or is_slope or isinstance(owner, NORMS))


decay_mask = Selection(_decays)
"""What weight decay is for: all but biases, norms' scales and activations' slopes.

Parameters are known by their field and layer, not by their rank, which says nothing
where layers are stacked. Left out are fields named `bias...`, all of Equinox's
`LayerNorm`, `RMSNorm`, `GroupNorm`, `BatchNorm` and `PReLU`, and the scale of its
`WeightNorm`. A selection, so `decay_mask & ~select("embed")` leaves out more.
"""
