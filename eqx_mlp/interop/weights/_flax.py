"""Parameters of Flax, linen and NNX."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx

from ..._checked import checked
from ..._types import Model
from ._entries import Entry, Layout, entries_of, filled, named, require_mapping

_NORMS = (eqx.nn.LayerNorm, eqx.nn.RMSNorm, eqx.nn.GroupNorm)


def _as_flax(entry: Entry) -> Layout:
    if entry.field == "weight" and isinstance(entry.owner, eqx.nn.Linear):
        return Layout("kernel", transposed=True)
    if entry.field == "weight" and isinstance(entry.owner, _NORMS):
        return Layout("scale")
    return Layout(entry.field)


def _plain(entry: Entry) -> Entry:
    # NNX keeps an array as the value of a Variable.
    if entry.field != "value" or isinstance(entry.owner, Mapping):
        return entry
    module, _, field = entry.module.rpartition(".")
    return entry._replace(module=module, field=field)


@checked(lambda model, params, **_: require_mapping("from_flax", params))
def from_flax(
    model: Model,
    params: Mapping[Any, Any],
    *,
    modules: Sequence[str] | None = None,
) -> Model:
    """The model with the parameters of a Flax module.

    Flax's `Dense` and `Linear` keep a kernel `[in, out]`, the transpose of a weight
    here, and its norms call a weight `scale`.

    Args:
        model: `MLP`, `ResidualMLP`, `eqx.nn.MLP`, or another of their layers.
        params: of linen what `module.init` gives, of NNX
            `nnx.state(module, nnx.Param)`. Names that differ by a number alone, as
            `Dense_0` and `Dense_1` do, are taken in the order of their numbers.
        modules: the names of its modules in the order of the model's own, where they
            differ by more: `("params.encoder", "params.head")`, with a dot at each
            level.

    Returns:
        the model with copies of those parameters.

    Raises:
        ValueError: a parameter is missing, is one too many, or has another shape or
            dtype; it is named.

    >>> import jax, numpy as np
    >>> from eqx_mlp import MLP
    >>> from eqx_mlp.interop import weights
    >>> kernel = np.arange(8, dtype=np.float32).reshape(4, 2)
    >>> params = {"Dense_0": {"kernel": kernel, "bias": np.zeros(2, np.float32)}}
    >>> model = MLP(4, 2, (), key=jax.random.key(0))
    >>> weights.from_flax(model, params).layers[0].weight.tolist()
    [[0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0, 7.0]]
    """
    entries = [_plain(entry) for entry in entries_of(params)]
    return filled("the tree of params", model, entries, _as_flax, modules)


@checked()
def to_flax(model: Model, *, modules: Sequence[str] | None = None) -> dict[Any, Any]:
    """The model's weights as Flax's parameters, in nested dictionaries.

    Args:
        model: as for `from_flax`.
        modules: the names of the Flax module's modules in the order of the model's own,
            with a dot at each level: `("layers.0", "layers.2")` for an
            `nnx.Sequential`. None is `"Dense_0", "Dense_1", ...`, linen's, for layers
            that follow each other; and the model's own names otherwise.

    Returns:
        a dictionary of dictionaries. Linen takes it as the entry "params" of its
        variables, NNX by `nnx.update(module, ...)`.

    Raises:
        ValueError: `modules` does not name each module.

    >>> import jax
    >>> from eqx_mlp import MLP
    >>> from eqx_mlp.interop import weights
    >>> params = weights.to_flax(MLP(4, 2, (), key=jax.random.key(0)))
    >>> params["Dense_0"]["kernel"].shape
    (4, 2)
    """
    params: dict[Any, Any] = {}
    arrays = named(model, _as_flax, modules, lambda i: f"Dense_{i}")
    for name, x in arrays.items():
        # NNX counts the entries of a list by integers.
        *path, field = [int(p) if p.isdecimal() else p for p in name.split(".")]
        inner = params
        for part in path:
            inner = inner.setdefault(part, {})
        inner[field] = x
    return params
