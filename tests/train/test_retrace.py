"""The retrace guard: silent while one program serves, and precise when it does not."""

import contextlib
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    Callback,
    RetraceWarning,
    fit,
    init_state,
    losses,
    make_step,
    mean_grad,
    retrace_guard,
)
from eqx_mlp.train._batches import Epoch, Recipe
from eqx_mlp.train._memory import MemoryFeed
from eqx_mlp.train._progress import Progress
from eqx_mlp.train._retrace import RetraceGuard
from eqx_mlp.train._runner import Runner, UnderWay

ONES = jnp.ones((2, 3))


class Scaled(eqx.Module):
    weight: jax.Array
    scale: float
    power: int = eqx.field(static=True)

    def __call__(self, x):
        return self.weight * x**self.power * self.scale


def apply(model, x, *, rate=1.0):
    return model(x) * rate


def scaled(weight=ONES, scale=1.0, power=2):
    return Scaled(weight, scale, power)


@contextlib.contextmanager
def warned():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        messages = []
        yield messages
    assert all(w.category is RetraceWarning for w in caught)
    messages += [str(w.message) for w in caught]


CHANGES = {
    "shape": (scaled(), jnp.ones((1, 3)), {}, "x: shape (2, 3) -> (1, 3)."),
    "dtype": (
        scaled(),
        ONES.astype(jnp.bfloat16),
        {},
        "x: dtype float32 -> bfloat16.",
    ),
    "weak type": (
        scaled(weight=jnp.broadcast_to(jnp.asarray(1.0), (2, 3))),
        ONES,
        {},
        "model.weight: weak type False -> True.",
    ),
    "static leaf": (
        scaled(scale=2.0),
        ONES,
        {},
        "model.scale: static value 1.0 -> 2.0.",
    ),
    "static field": (scaled(power=3), ONES, {}, "model.power: static value 2 -> 3."),
    "keyword": (scaled(), ONES, {"rate": 0.5}, "rate: nothing -> 0.5."),
    "kind": (
        scaled(scale=jnp.float32(1.0)),
        ONES,
        {},
        "model.scale: 1.0 -> an array, float32[].",
    ),
    "two at once": (
        scaled(power=3),
        jnp.ones((1, 3), jnp.bfloat16),
        {},
        "model.power: static value 2 -> 3; "
        "x: shape (2, 3) -> (1, 3), dtype float32 -> bfloat16.",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_names_the_leaf_and_what_changed(name):
    model, x, options, wanted = CHANGES[name]
    with retrace_guard(apply) as function, jax.numpy_dtype_promotion("standard"):
        compiled = eqx.filter_jit(function)
        for _ in range(3):
            compiled(scaled(), ONES)
        with warned() as messages:
            for _ in range(3):
                compiled(model, x, **options)
    (message,) = messages  # once, though called three times
    assert message.startswith(f"apply is compiled again: {wanted} Each compilation")


def test_plain_jit_with_static_arguments_and_python_numbers():
    def power(x, n, scale):
        return scale * x**n

    with retrace_guard(power) as function:
        compiled = jax.jit(function, static_argnums=1)
        compiled(ONES, 2, 1.0)
        with warned() as messages:
            compiled(ONES, 2, 3.0)  # traced, so another value is the same program
            assert messages == []
            compiled(ONES, 3, 3.0)
    (message,) = messages
    assert "again: n: static value 2 -> 3." in message


@pytest.mark.parametrize("comes", [True, False])
def test_a_leaf_that_comes_or_goes(comes):
    trees = [{"a": ONES}, {"a": ONES, "b": jnp.ones(2, jnp.int32)}]
    before, after = trees if comes else trees[::-1]
    with retrace_guard(lambda tree: tree["a"]) as function:
        compiled = jax.jit(function)
        compiled(before)
        with warned() as messages:
            compiled(after)
    wanted = (
        "nothing -> an array, int32[2]" if comes else "an array, int32[2] -> nothing"
    )
    assert f"again: tree['b']: {wanted}." in messages[0]


def test_a_trace_without_a_change_has_no_argument_to_blame():
    with retrace_guard(apply) as function:
        compiled = eqx.filter_jit(function)
        compiled(scaled(), ONES)
        with warned() as messages, jax.default_matmul_precision("highest"):
            compiled(scaled(), ONES)
    assert "again: no argument changed, so JAX's configuration did" in messages[0]


def test_a_function_whose_argument_is_called_self():
    with retrace_guard(Scaled.__call__) as function:
        compiled = eqx.filter_jit(function)
        compiled(scaled(), ONES)
        with warned() as messages:
            compiled(scaled(power=3), ONES)
    assert "again: self.power: static value 2 -> 3." in messages[0]


def test_many_changes_are_counted():
    with retrace_guard(lambda tree: tree[0]) as function:
        compiled = jax.jit(function)
        compiled([jnp.ones(2)] * 8)
        with warned() as messages:
            compiled([jnp.ones(3)] * 8)
    assert "tree[4]: shape (2,) -> (3,); and 3 more." in messages[0]


def test_after_the_block_nothing_is_watched():
    with retrace_guard(apply) as function:
        compiled = eqx.filter_jit(function)
        compiled(scaled(), ONES)
    compiled(scaled(), ONES[:1])  # warnings are errors in the tests


def test_the_first_of_two_guards_does_not_silence_the_other():
    with retrace_guard(apply) as one, retrace_guard(apply) as two:
        eqx.filter_jit(one)(scaled(), ONES)
        eqx.filter_jit(two)(scaled(), ONES[:1])


def test_a_training_step_of_ones_own(getkey):
    optimizer = optax.sgd(0.1)
    state = init_state(MLP(3, 2, (4,), key=getkey()), optimizer, key=getkey())
    y = jnp.array([0, 1])
    with retrace_guard(make_step(losses.cross_entropy, optimizer)) as step:
        step = eqx.filter_jit(step)
        for _ in range(3):
            state, _ = step(state, (ONES, y))
        with warned() as messages:
            step(state, (ONES[:1], y[:1]))
    assert (
        "step is compiled again: batch[0]: shape (2, 3) -> (1, 3); "
        "batch[1]: shape (2,) -> (1,)." in messages[0]
    )


def run(model, callbacks=(), **changed):
    options = {
        "loss": lambda w, x: jnp.square(w["w"] - x),
        "optimizer": optax.sgd(0.1),
        "key": jax.random.key(0),
        "epochs": 3,
        "batch_size": 2,
        "progress": False,
    } | changed
    return fit(model, (jnp.arange(4.0),), callbacks=callbacks, **options)


class AfterTheFirstEpoch(Callback):
    def __init__(self, do):
        self.do = do

    def on_epoch(self, state, history):
        if len(history["loss"]) == 1:
            self.do()


SGD = optax.sgd(0.1)


def epoch_of(loss, model, x=None):
    """An epoch as `fit` makes it, and the state that it begins with."""
    guard = RetraceGuard("the step of fit")
    recipe = Recipe(loss, SGD, mean_grad, None, None, {}, guard)
    x = jnp.arange(4.0) if x is None else x
    state = init_state(model, SGD, key=jax.random.key(0))
    return Epoch(recipe, (x,), jnp.arange(4), 2), state


def model_of(static=1):
    return {"w": jnp.array(0.0), "static": static}


@pytest.mark.parametrize("compiled_before", [False, True])
@pytest.mark.parametrize(
    ("model", "x", "wanted"),
    [
        (model_of(), jnp.arange(5.0), "data[0]: shape (4,) -> (5,)."),
        (
            model_of(),
            jnp.arange(4, dtype=jnp.bfloat16),
            "data[0]: dtype float32 -> bfloat16.",
        ),
        (
            model_of(),
            jnp.broadcast_to(jnp.asarray(1.0), 4),
            "data[0]: weak type False -> True.",
        ),
        (model_of(2), None, "state.model['static']: static value 1 -> 2."),
    ],
)
def test_a_second_compilation_within_a_run_names_the_leaf(
    model, x, wanted, compiled_before
):
    def loss(w, x):  # that no other test has compiled
        return jnp.square(w["w"] - x) * w["static"]

    def run_epochs(*epochs):
        with Progress(1, 1, 0, 0, on=False) as bar:
            runner = Runner(bar, (), lambda *_: None)
            for epoch, state in epochs:
                # One guard a run, as in `fit`.
                recipe = epoch.recipe._replace(guard=epochs[0][0].recipe.guard)
                epoch = epoch._replace(recipe=recipe)
                feed = MemoryFeed(epoch, lambda: None, epoch.batch_size)
                runner.run(feed, 0, state, UnderWay())

    first = epoch_of(loss, model_of())
    with jax.numpy_dtype_promotion("standard"):
        if compiled_before:  # by another run, whose program this one finds
            run_epochs(epoch_of(loss, model_of()))
        with warned() as messages:
            run_epochs(first, epoch_of(loss, model_of()), epoch_of(loss, model, x))
    (message,) = messages
    assert f"the step of fit is compiled again: {wanted}" in message


def test_fit_warns_where_jaxs_configuration_changes_under_it():
    def change():
        jax.config.update("jax_default_matmul_precision", "highest")

    try:
        with warned() as messages:
            run({"w": jnp.array(0.0)}, [AfterTheFirstEpoch(change)])
    finally:
        jax.config.update("jax_default_matmul_precision", None)
    assert "no argument changed" in messages[0]


def test_fit_is_silent_where_the_last_batch_is_ragged_and_where_it_goes_on():
    result = run({"w": jnp.array(0.0)}, batch_size=3)
    fit(
        result.state,
        (np.arange(4, dtype=np.float32),),
        loss=lambda w, x: jnp.square(w["w"] - x),
        optimizer=optax.sgd(0.1),
        epochs=5,
        batch_size=3,
        validation=(jnp.arange(2.0),),
        progress=False,
    )
