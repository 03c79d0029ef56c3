"""One optimiser update as a pure function."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._checked import checked
from .._keys import with_key
from .._types import Key, Loss, Model, Optimizer, Trainable
from ..data import Batch
from ..distributed._layout import Layout
from ..metrics import Metric, Metrics, sum_metric
from ..nn._ensemble import each_member, rebuilt
from ..per_example import ExampleStats, as_batch, example_keys, require_batch
from ..per_example._loss import split_trainable
from ._gradient import mean_grad, mean_of
from ._loss_scale import scaled_as_by
from ._optimizer import apply_update, extended, require_optimizer
from ._private import is_private, require_one_model
from ._state import TrainState, optax_promotion

# From the stored first argument of one example to what the loss takes.
Transform: TypeAlias = Callable[[Any], Any]
# From the stored first argument of one example and a key to another one like it.
Augment: TypeAlias = Callable[[Any, Key], Any]
StepFunction: TypeAlias = Callable[
    [TrainState, Any], tuple[TrainState, dict[str, Metric]]
]


@checked(lambda loss, optimizer, **_: require_optimizer("make_step", optimizer))
def make_step(
    loss: Loss,
    optimizer: Optimizer,
    *,
    gradient: Callable[..., Any] = mean_grad,
    trainable: Trainable = None,
    transform: Transform | None = None,
    augment: Augment | None = None,
    metrics: Metrics | None = None,
) -> StepFunction:
    """A pure training step, to be jitted, scanned or vmapped as the user likes.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        optimizer: any `optax.GradientTransformation`; it is given `value=`, the mean
            loss, where it takes extra arguments.
        gradient: how a batch becomes one gradient, called as `gradient(loss,
            trainable=trainable)`: `mean_grad`, or for example
            `functools.partial(clipped_grad, l2_clip_norm=1.0, normalize_by=256)`, or
            a `privacy.DPSGD`, with which the optimiser gets no `value=`.
        trainable: which leaves are trained; the one `init_state` was given.
        transform: from the stored first argument of one example to what the loss takes.
        augment: `augment(x, key)`, from that stored argument and a key of the example's
            own to a changed one, which then goes through `transform`.
        metrics: further metrics by name, functions of one example, computed with the
            model before the update.

    Returns:
        `step(state, batch) -> (state, metrics)`. `batch` is a tuple of the loss's
        arguments with a leading batch axis, or a `data.Batch` with weights. `metrics`
        maps "loss" and each name to a `Metric`. Every leaf keeps its dtype; leaves that
        are not trainable come out as they went in.

    >>> import equinox as eqx, jax, jax.numpy as jnp, optax
    >>> from eqx_mlp import init_state, make_step
    >>> optimizer = optax.sgd(0.5)
    >>> step = eqx.filter_jit(make_step(lambda w, x: 0.5 * (w - x) ** 2, optimizer))
    >>> state = init_state(jnp.array(2.0), optimizer, key=jax.random.key(0))
    >>> state, metrics = step(state, (jnp.array([1.0, 4.0, 7.0]),))
    >>> state.model.item(), metrics["loss"].compute().item()
    (3.0, 5.0)
    """
    return step_on(
        Layout(),
        loss,
        optimizer,
        gradient=gradient,
        trainable=trainable,
        transform=transform,
        augment=augment,
        metrics=metrics,
    )


def step_on(
    layout: Layout,
    loss: Loss,
    optimizer: Optimizer,
    *,
    gradient: Callable[..., Any],
    trainable: Trainable,
    transform: Transform | None,
    augment: Augment | None,
    metrics: Metrics | None,
) -> StepFunction:
    """The same, with results where the next step has them.

    Where parameters are cut, all devices put them together for the gradient, and each
    goes on with its part of that.
    """
    private = is_private("make_step", gradient)
    optimizer = extended(optimizer)
    of_stored = transformed(loss, transform)
    gradient_of = functools.partial(gradient, trainable=trainable)
    gradient_of(of_stored)  # what is wrong with its options is known now

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Metric]]:
        if not isinstance(batch, Batch | tuple):
            raise ValueError(
                "step: batch must be a tuple of the loss's arguments, such as (x, y), "
                f"or a data.Batch, got {type(batch).__name__}"
            )
        if isinstance(batch, tuple):
            batch = Batch(batch)
        if private:
            require_one_model(state.model)
        key = jax.random.fold_in(state.key, state.step)
        if augment is not None:
            batch = augmented(batch, augment, key)

        def of_model(model: Model, opt_state: PyTree) -> tuple[Model, PyTree, dict]:
            grad = gradient_of(scaled_as_by(opt_state, of_stored))
            grads, stats = require_gradient(
                grad(
                    layout.gathered(model),
                    *batch.example,
                    key=key,
                    weight=batch.weight,
                )
            )
            grads = layout.cut(grads)
            mean_loss = sum_metric(lambda value: value, batch.weight)(stats.value)
            params, rest = split_trainable(model, trainable)
            # The loss has no noise: an optimiser that sees it is not private.
            value = None if private else mean_of(mean_loss)
            updates, new = update_of(optimizer, grads, opt_state, params, value)
            keys = example_keys(key, batch.size)
            sums = batch_metrics(metrics or {}, model, batch, transform, keys)
            return (
                eqx.combine(jax.tree.map(apply_update, params, updates), rest),
                jax.tree.map(like, new, opt_state),
                {"loss": mean_loss, **sums},
            )

        model, opt_state, sums = each_member(of_model, state.model, state.opt_state)
        state = TrainState(
            model=rebuilt(state.model, model),
            opt_state=opt_state,
            step=state.step + 1,
            key=state.key,
        )
        return layout.cut(state), layout.gathered(sums)

    return step


def require_gradient(out: Any) -> tuple[PyTree, ExampleStats]:
    """Raise a ValueError unless a gradient function gave what a step needs."""
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], ExampleStats):
        return out
    raise ValueError(
        "make_step: gradient= must be one like mean_grad or functools.partial("
        "clipped_grad, l2_clip_norm=...), that gives (grads, ExampleStats), got "
        f"{type(out).__name__}"
    )


def update_of(
    optimizer: Any,
    grads: PyTree,
    opt_state: PyTree,
    params: PyTree,
    value: Array | None,
) -> tuple[PyTree, PyTree]:
    """The optimiser's update, with an error that says what it was given."""
    try:
        with optax_promotion():
            given = {} if value is None else {"value": value}
            return optimizer.update(grads, opt_state, params, **given)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            "the optimiser could not make an update. Was the state made by init_state "
            "with the same optimizer and trainable? Optimisers that call the loss "
            "themselves, such as optax.lbfgs, do not fit a step, and with a private "
            f"gradient none that needs the loss, value=. It said: {error}"
        ) from error


def transformed(function: Callable[..., Any], transform: Transform | None) -> Any:
    """`function` of one example whose first argument goes through `transform`."""
    if transform is None:
        return function

    # The wrapper keeps the signature, which says whether a key is taken.
    @functools.wraps(function)
    def of_stored(model: Model, x: Any, *rest: Any, **kwargs: Any) -> Any:
        return function(model, transform(x), *rest, **kwargs)

    return of_stored


def augmented(batch: Batch, augment: Augment, key: Key) -> Batch:
    """The batch with its first argument augmented, each example by a key of its own."""
    # No example has this place, so the loss's keys stay independent of these.
    own = jax.random.fold_in(key, 2**32 - 1)
    require_batch("step", batch.example, batch.weight)
    x, *rest = batch.example
    keys: Any = example_keys(own, batch.size)
    x = jax.vmap(augment)(x, keys)
    return Batch((x, *rest), batch.weight)


def batch_metrics(
    metrics: Metrics,
    model: Model,
    batch: Batch,
    transform: Transform | None,
    keys: Any = None,
) -> dict[str, Metric]:
    """Each metric added up over a batch, with a key for each example."""
    ready = as_batch(batch.example, batch.weight)

    def of_model(model: Model) -> dict[str, Metric]:
        def of_one(metric: Callable[..., Any]) -> Callable[..., Any]:
            metric = transformed(metric, transform)
            return lambda example, key: with_key(metric, model, *example, key=key)

        return {
            name: sum_metric(of_one(metric), ready.weight)(ready.example, keys)
            for name, metric in metrics.items()
        }

    return each_member(of_model, model)


def like(new: Any, old: Any) -> Any:
    """`new` with the dtype of `old`, so that a loop's carry never changes type."""
    if not eqx.is_array(old) or jnp.issubdtype(old.dtype, jax.dtypes.extended):
        return new
    return jnp.asarray(new).astype(old.dtype)
