"""What training carries from step to step."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._checked import checked
from .._display import is_number, mimebundle, short
from .._keys import require_key
from .._types import Key, Model, Optimizer, Step, Trainable
from ..nn._ensemble import Ensemble, each_member
from ..per_example._loss import split_trainable
from ._optimizer import require_optimizer


class TrainState(eqx.Module):
    """The model, the optimiser's state, the number of updates done, and the key.

    `step` is int32; the key never changes: step `t` draws from `fold_in(key, t)`, so
    a state says all about the rest of the run.
    """

    model: Model
    opt_state: PyTree
    step: Step
    key: Key

    def __repr__(self) -> str:
        if not is_number(self.step):
            return eqx.tree_pformat(self)
        model, optimizer = short(self.model), _kind(self.opt_state)
        return f"TrainState({model}, opt_state={optimizer}, step={self.step})"

    _repr_mimebundle_ = mimebundle


def _kind(opt_state: PyTree) -> str:
    """Optax's states by their names: one holds as many arrays as the model does."""
    if type(opt_state) is tuple:
        return f"({', '.join(_kind(x) for x in opt_state)})"
    return type(opt_state).__name__


def _require(model: Any, optimizer: Any, *, key: Any = None, **_: Any) -> None:
    require_key("init_state", key)
    require_optimizer("init_state", optimizer)


@checked(_require)
def init_state(
    model: Model,
    optimizer: Optimizer,
    *,
    key: Key,
    trainable: Trainable = None,
) -> TrainState:
    """The state before the first step.

    Arrays lose their weak types, NumPy arrays move to the device, and the optimiser
    sees trainable parameters alone, so that each step takes and gives the same types.

    Args:
        model: an Equinox model, any pytree of parameters, or an `nn.Ensemble`, each of
            whose members gets a state of the optimiser. A hyper-parameter that
            `optax.inject_hyperparams` is given as an array has one value a member.
        optimizer: any `optax.GradientTransformation`.
        key: where the run's randomness comes from.
        trainable: which leaves are trained: a path such as "layers.*.weight", a type or
            a `Selection` of `select`, a predicate of leaves, or a prefix pytree of
            booleans; None is every floating-point array.

    Raises:
        ValueError: no key, something else than an optimiser, nothing to train.

    >>> import jax, optax
    >>> from eqx_mlp import MLP, init_state
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> init_state(model, optax.sgd(0.1), key=jax.random.key(1)).step.item()
    0
    """
    model = jax.tree.map(lambda x: _strong(x) if eqx.is_array(x) else x, model)
    opt_state = _first_opt_state(optimizer, model, trainable)
    return TrainState(model, opt_state, jnp.zeros((), jnp.int32), key)


def copied(state: TrainState) -> TrainState:
    """`state` in buffers of its own, which the next steps do not reuse."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, state)


def _first_opt_state(
    optimizer: Optimizer, model: Model, trainable: Trainable
) -> PyTree:
    def of_model(model: Model) -> PyTree:
        params, _ = split_trainable(model, trainable)
        with optax_promotion():
            opt_state = optimizer.init(params)
        return jax.tree.map(
            lambda x: _strong(x) if eqx.is_array_like(x) else x, opt_state
        )

    opt_state = each_member(of_model, model)
    if not isinstance(model, Ensemble):
        return opt_state

    def own(path: tuple, x: Any) -> Any:
        # optax.inject_hyperparams keeps its arguments there: one for all members, or
        # one for each of them, of which every member was given all.
        if not any(getattr(entry, "name", None) == "hyperparams" for entry in path):
            return x
        if x.shape == (len(model), len(model)):
            return jnp.diagonal(x)
        if x.ndim > 1:
            raise ValueError(
                f"init_state: the hyper-parameter {jax.tree_util.keystr(path[-1:])} "
                f"must be one number, or one for each of the {len(model)} members, got "
                f"shape {x.shape[1:]}"
            )
        return x

    return jax.tree_util.tree_map_with_path(own, opt_state)


@contextlib.contextmanager
def optax_promotion() -> Iterator[None]:
    """JAX's default promotion, which Optax needs, whatever mode the user has set."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def require_same_optimizer(
    state: TrainState, optimizer: Optimizer, trainable: Trainable
) -> None:
    """Raise a ValueError unless `optimizer` would have made the state's `opt_state`."""
    wanted = eqx.filter_eval_shape(_first_opt_state, optimizer, state.model, trainable)
    wanted, got = _shapes(wanted), _shapes(state.opt_state)
    for path in sorted({*wanted, *got}):
        if wanted.get(path) != got.get(path):
            raise ValueError(
                "the state was made for another optimizer, or another trainable: at "
                f"opt_state{path} expected {wanted.get(path, 'nothing')}, got "
                f"{got.get(path, 'nothing')}. Give the ones that init_state was given, "
                "or start anew from state.model"
            )


def _shapes(opt_state: PyTree) -> dict[str, str]:
    leaves = jax.tree_util.tree_flatten_with_path(opt_state)[0]
    return {
        jax.tree_util.keystr(path): f"an array of shape {getattr(leaf, 'shape', ())}"
        for path, leaf in leaves
        if eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    }


def _strong(x: Any) -> jax.Array:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    x = jnp.asarray(x)
    return x.astype(x.dtype)
