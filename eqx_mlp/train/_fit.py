"""Training on arrays in memory."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._checked import checked
from .._keys import require_key
from .._types import Key, Loss, Model, Optimizer, Trainable
from ..data import epoch_permutation
from ..metrics import Metrics
from ._callback import Callback, require_callbacks
from ._cause import raise_loss_cause
from ._checkpoint import Checkpoints, require_checkpoints
from ._data import padded, require_count, require_data, size_of
from ._ema import models_of
from ._evaluate import evaluate, require_metrics
from ._gradient import mean_grad
from ._history import History
from ._logging import Logging, loggers_of
from ._loop import Epoch, Recipe
from ._optimizer import require_optimizer
from ._progress import Progress
from ._retrace import RetraceGuard
from ._runner import EpochResult, Runner, UnderWay
from ._saver import Saver
from ._state import TrainState, copied, init_state, require_same_optimizer
from ._step import Augment, Transform


class FitResult(NamedTuple):
    """What `fit` gives back: the last state, and how it came about.

    `history` maps names to NumPy arrays: "loss" and each metric, one value an epoch,
    with "val_" before them for the validation data, and "ema_val_" for those of the
    averaged weights of `with_ema`; "seconds", one an epoch, without compilation and
    validation; "step_loss", one a step; "compile_seconds", one number.
    """

    state: TrainState
    history: dict[str, np.ndarray]

    @property
    def model(self) -> Model:
        """The trained model."""
        return self.state.model


def _require(
    model_or_state: Any,
    data: Any,
    *,
    optimizer: Any = None,
    key: Any = None,
    validation: Any = None,
    metrics: Any = None,
    callbacks: Any = (),
    checkpoint: Any = None,
    logger: Any = None,
    log_every: Any = 50,
    **counts: Any,
) -> None:
    require_data("fit", "data", data)
    if validation is not None:
        require_data("fit", "validation", validation)
    for name in ("epochs", "batch_size"):
        require_count("fit", **{name: counts.get(name)})
    require_metrics("fit", metrics or {})
    require_optimizer("fit", optimizer)
    require_callbacks(callbacks)
    require_checkpoints(checkpoint)
    loggers_of(logger)
    require_count("fit", log_every=log_every)
    if not isinstance(model_or_state, TrainState):
        require_key("fit", key)
    elif key is not None:
        raise ValueError(
            "fit: a TrainState brings the key of its run: leave out key=, or start a "
            "new run from state.model"
        )


@checked(_require)
def fit(
    model_or_state: Model | TrainState,
    data: tuple,
    *,
    loss: Loss,
    optimizer: Optimizer,
    key: Key | None = None,
    epochs: int,
    batch_size: int,
    transform: Transform | None = None,
    augment: Augment | None = None,
    validation: tuple | None = None,
    metrics: Metrics | None = None,
    gradient: Callable[..., Any] = mean_grad,
    trainable: Trainable = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoints | None = None,
    logger: Any = None,
    log_every: int = 50,
    progress: bool = True,
) -> FitResult:
    """Train on arrays in memory.

    The data go to the device once and stay as they are stored; one compiled program
    runs many steps per call. Each epoch visits every example once, in an order that is
    a function of the key and the epoch. The arrays given stay valid.

    Args:
        model_or_state: a model, or the `TrainState` of an earlier run to go on with. Of
            an `nn.Ensemble` each member is trained, and `history` has one value for
            each along a last axis.
        data: a tuple of arrays with one leading axis of examples, such as `(x, y)`.
        loss: `loss(model, *example, key=None)`, one number for one example.
        optimizer: any `optax.GradientTransformation`.
        key: where shuffling and dropout come from; a state brings its own.
        epochs: passes over the data, counted from the run's beginning.
        batch_size: examples an update; the last batch of an epoch may hold fewer.
        transform: from the stored first argument of one example to what the loss takes,
            inside the compiled step, such as `data.image_to_vector`.
        augment: `augment(x, key)`, from that stored argument and a key of the example's
            own to a changed one, which then goes through `transform`; in training
            only. `data.RandomDeformation` is one for images.
        validation: data like `data`, evaluated after each epoch without dropout.
        metrics: name to function of one example, beside the loss.
        gradient: as in `make_step`.
        trainable: which leaves are trained, as in `init_state`.
        callbacks: what runs between compiled calls, and may end the run.
        checkpoint: where the run is kept. If it is there already, the call goes on from
            its last checkpoint, to the end that an uninterrupted run has, bit for bit.
            Ctrl-C and SIGTERM then write a checkpoint and leave with SystemExit.
        logger: where numbers are written as the run goes: a path, for JSON lines (or a
            table, if it ends in .csv), a `Logger`, any object with `log(step, values)`,
            or a list of these.
        log_every: log the loss of each step whose number this divides; an epoch's
            numbers are always logged.
        progress: whether to show a bar when standard error is a terminal.

    Returns:
        `FitResult(state, history)`, whose arrays are the caller's.

    Raises:
        ValueError: no example, arguments of different lengths, counts below 1, no key,
            a state of another optimiser, a checkpoint that is damaged or of another
            run, and what the loss raises for its example.
        RuntimeError: another process is writing into the checkpoint's folder.

    >>> import jax, jax.numpy as jnp, optax
    >>> from eqx_mlp import MLP, fit, losses
    >>> x = jnp.linspace(-1, 1, 64)[:, None]
    >>> model = MLP(1, 1, (32,), key=jax.random.key(0))
    >>> state, history = fit(
    ...     model, (x, x**2), loss=losses.squared_error, optimizer=optax.adam(1e-2),
    ...     key=jax.random.key(1), epochs=30, batch_size=16, progress=False)
    >>> history["loss"].shape, bool(history["loss"][-1] < 0.02)
    ((30,), True)
    """
    data, validation = jax.tree.map(jnp.asarray, (data, validation))
    metrics = dict(metrics or {})
    guard = RetraceGuard("the step of fit")
    recipe = Recipe(
        loss, optimizer, gradient, trainable, transform, metrics, guard, augment
    )
    state = _initial(model_or_state, optimizer, key, trainable)
    n = size_of(data)
    batch_size = min(batch_size, n)
    steps = -(-n // batch_size)
    validated = models_of(state) if validation is not None else ()
    history = History(["loss", *metrics], validated)
    if logger is not None:
        # First, so that what another callback raises does not keep a row from the log.
        callbacks = [Logging(loggers_of(logger), log_every), *callbacks]
    about = {
        "data": [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(data)],
        "batch_size": batch_size,
        "history": list(history.arrays()),
    }
    with Saver(checkpoint, about, history, callbacks) as saver:
        done = int(state.step) % steps
        state, begun = saver.resume(state, UnderWay(done, done))
        for callback in callbacks:
            callback.on_start(state, history.arrays())
        saver.start(state)
        first = int(state.step) // steps
        rows = first * n + begun.done * batch_size
        with Progress(epochs, n, rows, progress) as bar:
            runner = Runner(bar, callbacks, saver.between, saver.every)
            # The runs give up the state's buffers, and shuffling outlives them.
            key = state.key.copy()

            @functools.lru_cache(maxsize=2)
            def order_of(number: int) -> jax.Array:
                order = padded(epoch_permutation(key, number, n), batch_size)
                return jax.device_put(order)

            for number in range(first, first if saver.ended else epochs):
                epoch = Epoch(recipe, data, order_of(number), batch_size)
                shuffle_next = functools.partial(order_of, min(number + 1, epochs - 1))
                ran = runner.run(epoch, number, state, begun, shuffle_next)
                state, begun = ran.state, UnderWay()
                if history.finite and not np.all(np.isfinite(ran.step_loss)):
                    _raise_cause(epoch, ran)
                history.add(ran)
                if validation is not None:
                    for prefix, model in models_of(state).items():
                        values = evaluate(
                            model,
                            validation,
                            metrics={"loss": loss, **metrics},
                            batch_size=batch_size,
                            transform=transform,
                            key=state.key,
                        )
                        history.add_validation(prefix, values)
                history.add_measured([c.measure(state) for c in callbacks])
                arrays = history.arrays() if callbacks else {}
                stop = any([c.on_epoch(state, arrays) for c in callbacks])
                saver.after_epoch(state, stop, last=stop or number == epochs - 1)
                if stop:
                    break
        for callback in callbacks:
            given = callback.on_end(state, history.arrays())
            state = state if given is None else given
    return FitResult(state, history.arrays())


def _initial(
    model_or_state: Any, optimizer: Any, key: Any, trainable: Trainable
) -> TrainState:
    if isinstance(model_or_state, TrainState):
        state = model_or_state
        require_same_optimizer(state, optimizer, trainable)
    else:
        state = init_state(model_or_state, optimizer, key=key, trainable=trainable)
    # The steps reuse the state's buffers; the caller's arrays must stay valid.
    return copied(state)


def _raise_cause(epoch: Epoch, ran: EpochResult) -> None:
    # Of the first batch that went wrong.
    last = epoch.order.shape[0] // epoch.batch_size - 1
    wrong = int(np.argwhere(~np.isfinite(ran.step_loss))[0, 0])
    batch = epoch.batch(last - len(ran.step_loss) + 1 + wrong)
    raise_loss_cause(epoch.recipe, ran.state.model, batch, ran.state.key)
