"""Training: one call for a whole run."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.sharding import Mesh

from .._checked import checked
from .._keys import require_key
from .._types import Key, Loss, Model, Optimizer, Trainable
from ..distributed._layout import Layout
from ..distributed._mesh import require_mesh
from ..metrics import Metrics
from ._batches import Recipe
from ._callback import Callback, require_callbacks
from ._checkpoint import Checkpoints, require_checkpoints
from ._data import require_count, require_data, size_of
from ._ema import models_of
from ._evaluate import evaluate, require_metrics
from ._feed import Source
from ._gathered import Gathered, is_mapped
from ._gradient import mean_grad
from ._history import History
from ._logging import Logging, loggers_of
from ._memory import InMemory
from ._optimizer import require_optimizer
from ._order import Order
from ._private import PrivateGradient, is_private
from ._private_run import Account, require_private_use
from ._result import FitResult
from ._retrace import RetraceGuard
from ._run import run_epochs
from ._saver import Saver
from ._shuffle import Shuffle
from ._state import TrainState, copied, init_state, require_same_optimizer
from ._step import Augment, Transform
from ._stream import Batches, Stream, is_function, is_stream


def _require(
    model_or_state: Any,
    data: Any,
    *,
    optimizer: Any = None,
    key: Any = None,
    validation: Any = None,
    metrics: Any = None,
    gradient: Any = None,
    callbacks: Any = (),
    checkpoint: Any = None,
    logger: Any = None,
    log_every: Any = 50,
    mesh: Any = None,
    shard_parameters: Any = False,
    **counts: Any,
) -> None:
    require_mesh("fit", mesh, shard_parameters)
    private, batch_size = is_private("fit", gradient), counts.get("batch_size")
    _require_amounts(data, own_size=private, **counts)
    if validation is not None:
        require_data("fit", "validation", validation)
    require_metrics("fit", metrics or {})
    require_optimizer("fit", optimizer)
    require_callbacks(callbacks)
    require_checkpoints(checkpoint)
    if private:
        require_private_use(
            gradient,
            model_or_state,
            data,
            batch_size,
            callbacks,
            checkpoint,
            metrics,
        )
    loggers_of(logger)
    require_count("fit", log_every=log_every)
    if not isinstance(model_or_state, TrainState):
        require_key("fit", key)
    elif key is not None:
        raise ValueError(
            "fit: a TrainState brings the key of its run: leave out key=, or start a "
            "new run from state.model"
        )


def _require_amounts(
    data: Any,
    epochs: Any = None,
    steps: Any = None,
    batch_size: Any = None,
    own_size: bool = False,
    **_: Any,
) -> None:
    given = {"epochs": epochs, "steps": steps, "batch_size": batch_size}
    if is_stream(data):
        if epochs is None and steps is None:
            raise ValueError(
                "fit: for a stream give epochs=, how many passes, or steps=, how many "
                "updates, where it does not end"
            )
        if steps is None and is_function(data):
            raise ValueError(
                "fit: for a function of the step give steps=, how many updates make an "
                "epoch: what it gives is one stream for all epochs"
            )
        given = {name: count for name, count in given.items() if count is not None}
    else:
        require_data("fit", "data", data)
        if own_size and batch_size is None:
            del given["batch_size"]  # the gradient says how large a batch is
        if given.pop("steps") is not None:
            raise ValueError(
                "fit: steps= is for streams; with arrays an epoch is one pass: give "
                "epochs= and batch_size="
            )
    require_count("fit", **given)


@checked(_require)
def fit(
    model_or_state: Model | TrainState,
    data: tuple | Batches,
    *,
    loss: Loss,
    optimizer: Optimizer,
    key: Key | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
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
    mesh: Mesh | None = None,
    shard_parameters: bool = False,
) -> FitResult:
    """Train on arrays in memory, or on a stream of batches.

    Arrays go to the device once and stay as they are stored; one compiled program runs
    many steps per call. Each epoch visits every example once, in an order that is a
    function of the key and the epoch. The arrays given stay valid. Of arrays that are a
    `numpy.memmap`, each batch is read in the same order when it is needed.

    Args:
        model_or_state: a model, or the `TrainState` of an earlier run to go on with. Of
            an `nn.Ensemble` each member is trained, and `history` has one value for
            each along a last axis.
        data: a tuple of arrays with one leading axis of examples, such as `(x, y)`; or
            a stream, any iterable of such tuples, or of `data.Batch`, each with a
            leading batch axis; or a function of the number of updates done that gives
            the stream of a run from there on.
        loss: `loss(model, *example, key=None)`, one number for one example.
        optimizer: any `optax.GradientTransformation`.
        key: where shuffling and dropout come from; a state brings its own.
        epochs: passes over the data, counted from the run's beginning.
        steps: of a stream, how many updates make an epoch, in place of a pass; `epochs`
            is then 1 unless given.
        batch_size: examples an update; the last batch of an epoch may hold fewer. A
            stream has those of its first batch unless given.
        transform: from the stored first argument of one example to what the loss takes,
            inside the compiled step, such as `data.image_to_vector`.
        augment: `augment(x, key)`, from that stored argument and a key of the example's
            own to a changed one, which then goes through `transform`; in training
            only. `data.RandomDeformation` is one for images.
        validation: data like `data`, evaluated after each epoch without dropout.
        metrics: name to function of one example, beside the loss.
        gradient: as in `make_step`. A `privacy.DPSGD` also says how batches are drawn
            and how large, and "epsilon" is in the history.
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
        mesh: the devices that share each batch, such as `make_mesh()`. The result is
            that of one device. With several processes all of them make this call, with
            the same arguments; of arrays in memory each device has all, of those in a
            `numpy.memmap` each process reads its own rows, and a stream gives its
            process's own part of each batch. The first process writes what is written.
        shard_parameters: whether each device holds only its part of the model and of
            the optimiser's state, as `shard` places them.

    Returns:
        `FitResult(state, history)`, whose arrays are the caller's.

    Raises:
        ValueError: no example, arguments of different lengths, counts below 1, no key,
            a state of another optimiser, a checkpoint that is damaged or of another
            run, and what the loss raises for its example.
        StreamError: a stream ended early, raised, or gave a batch unlike its first; the
            error has the state so far, and the checkpoint too.
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
    metrics = dict(metrics or {})
    guard = RetraceGuard("the step of fit")
    layout = Layout(mesh, shard_parameters)
    recipe = Recipe(
        loss, optimizer, gradient, trainable, transform, metrics, guard, augment, layout
    )
    state = layout.parameters(_initial(model_or_state, optimizer, key, trainable))
    epochs = 1 if epochs is None else epochs
    source = _source(recipe, data, epochs, steps, batch_size, state)
    history = History(["loss", *metrics], models_of(state) if validation else ())
    if logger is not None:
        # First, so that what another callback raises does not keep a row from the log.
        loggers = loggers_of(logger) if layout.leads else []
        callbacks = [Logging(loggers, log_every), *callbacks]
    private = None
    if isinstance(gradient, PrivateGradient):
        private = gradient.about
        callbacks = [*callbacks, Account(gradient)]
    validation = layout.replicated(validation)

    def validate(state: TrainState) -> None:
        if validation is None:
            return
        for prefix, model in models_of(state).items():
            values = evaluate(
                model,
                validation,
                metrics={"loss": loss, **metrics},
                batch_size=source.plan.batch_size or 256,
                transform=transform,
                key=state.key,
                mesh=mesh,
            )
            history.add_validation(prefix, values)

    names = list(history.arrays())
    about = source.plan.about | {"history": names, "privacy": private}
    saver = Saver(checkpoint, about, history, callbacks, layout)
    with layout.explained(), saver:
        state = run_epochs(
            state,
            source,
            epochs,
            validate=validate,
            history=history,
            callbacks=callbacks,
            saver=saver,
            progress=progress and layout.leads,
        )
    return FitResult(state, history.arrays())


def _source(
    recipe: Recipe,
    data: Any,
    epochs: int,
    steps: int | None,
    batch_size: int | None,
    state: TrainState,
) -> Source:
    if is_stream(data):
        return Stream(recipe, data, steps, batch_size, int(state.step))
    # The runs give up the state's buffers, and shuffling outlives them.
    key = state.key.copy()
    if isinstance(recipe.gradient, PrivateGradient):
        order: Order = recipe.gradient.order(key)
    else:
        assert batch_size is not None  # as was checked
        order = Shuffle(size_of(data), batch_size, key)
    if is_mapped(data):
        return Gathered(recipe, data, order)
    return InMemory(recipe, data, order, epochs)


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
