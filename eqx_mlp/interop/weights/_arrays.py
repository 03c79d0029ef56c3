"""Arrays by name, as Equinox names and lays them out."""

from collections.abc import Sequence

from jaxtyping import PyTree, Shaped

from ..._checked import checked
from ..._types import ArrayLike, Model
from ._entries import as_ours, entries_of, filled, named


@checked()
def from_arrays(
    model: Model, arrays: PyTree, *, modules: Sequence[str] | None = None
) -> Model:
    """The model with other weights: from a dictionary of arrays, or from another model.

    Args:
        model: any pytree of arrays, such as `MLP`, `ResidualMLP` or `eqx.nn.MLP`; its
            arrays may be `jax.ShapeDtypeStruct`s. Layers' weights are `[out, in]`.
        arrays: arrays by name, `{"layers.0.weight": ...}`, as a tree or as a model with
            the same layers. Names may differ from the model's by the numbers of their
            modules: `{"0.weight": ..., "2.weight": ...}` are taken in that order.
        modules: the names of their modules in the order of the model's own, where they
            are others: `("encoder", "head")` for `{"encoder.weight": ..., ...}`.

    Returns:
        the model with those arrays, on the devices of its own; the rest stays.

    Raises:
        ValueError: an array is missing, is one too many, or has another shape or dtype;
            it is named.

    >>> import equinox as eqx, jax
    >>> from eqx_mlp import MLP
    >>> from eqx_mlp.interop import weights
    >>> theirs = eqx.nn.MLP(4, 2, width_size=8, depth=1, key=jax.random.key(0))
    >>> model = MLP(4, 2, (8,), key=jax.random.key(1))
    >>> model = weights.from_arrays(model, theirs)
    >>> bool((model.layers[0].weight == theirs.layers[0].weight).all())
    True
    """
    return filled("the tree of weights", model, entries_of(arrays), as_ours, modules)


@checked()
def to_arrays(
    model: Model, *, modules: Sequence[str] | None = None
) -> dict[str, Shaped[ArrayLike, "..."]]:
    """The model's arrays by name, in order, as they are.

    Keys and dropout rates are left out. `modules` is that of `from_arrays`.

    Raises:
        ValueError: `modules` does not name each module.

    >>> import jax
    >>> from eqx_mlp import MLP
    >>> from eqx_mlp.interop import weights
    >>> list(weights.to_arrays(MLP(4, 2, (), key=jax.random.key(0))))
    ['layers.0.weight', 'layers.0.bias']
    """
    return named(model, as_ours, modules)
