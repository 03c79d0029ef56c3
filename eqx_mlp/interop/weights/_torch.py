"""PyTorch's `state_dict`."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._checked import checked
from ..._types import Model
from ._entries import as_ours, entries_of, filled, named, require_mapping


@checked(lambda model, state_dict, **_: require_mapping("from_torch", state_dict))
def from_torch(
    model: Model,
    state_dict: Mapping[str, Any],
    *,
    modules: Sequence[str] | None = None,
) -> Model:
    """The model with the weights of a PyTorch module.

    `torch.nn.Linear` keeps its weight as `[out, in]`, as this library does.

    Args:
        model: `MLP`, `ResidualMLP`, `eqx.nn.MLP` or any pytree whose arrays have
            PyTorch's shapes.
        state_dict: `module.state_dict()`, or its tensors as arrays of another library.
            Names that differ by a number alone, as those of a `Sequential` do, are
            taken in the order of their numbers.
        modules: the names of its modules in the order of the model's own, where they
            differ by more: `("fc1", "fc2", "head")`.

    Returns:
        the model with copies of those weights.

    Raises:
        ValueError: an entry is missing, is one too many, or has another shape or dtype;
            it is named.

    >>> import jax, numpy as np
    >>> from eqx_mlp import MLP
    >>> from eqx_mlp.interop import weights
    >>> state_dict = {
    ...     "0.weight": np.ones((8, 4), np.float32), "0.bias": np.ones(8, np.float32),
    ...     "2.weight": np.ones((2, 8), np.float32), "2.bias": np.zeros(2, np.float32),
    ... }
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> weights.from_torch(model, state_dict)(np.ones(4, np.float32)).tolist()
    [40.0, 40.0]
    """
    return filled("the state_dict", model, entries_of(state_dict), as_ours, modules)


@checked()
def to_torch(model: Model, *, modules: Sequence[str] | None = None) -> dict[str, Any]:
    """The model's weights as a `state_dict`, for `module.load_state_dict`.

    Args:
        model: as for `from_torch`.
        modules: the names of the PyTorch module's modules, in the order of the model's
            own. None is `"0", "2", "4"` for layers that follow each other, those of
            `Sequential(Linear, ReLU, Linear, ReLU, Linear)`; and the model's own names
            otherwise.

    Returns:
        tensors by name, with memory of their own.

    Raises:
        ValueError: `modules` does not name each module.
        ImportError: PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "to_torch makes PyTorch's tensors, and PyTorch is not installed: "
            "pip install torch; to_arrays gives the same weights as arrays"
        ) from error

    def tensor(x: Any) -> Any:
        x = np.array(x, order="C")
        if x.dtype != jnp.bfloat16:
            return torch.from_numpy(x)
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)

    arrays = named(model, as_ours, modules, lambda i: str(2 * i))
    return {name: tensor(x) for name, x in arrays.items()}
