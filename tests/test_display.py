"""What a console shows of a model is a line; of what is none, the tree with shapes."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    Ensemble,
    FitResult,
    ResidualMLP,
    init_state,
    metrics,
    select,
)

KEY = jax.random.key(0)
MODEL = MLP(4, 3, (8, 5), key=KEY)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: MODEL, "MLP(4, 3, hidden_sizes=(8, 5))"),
        (
            lambda: eqx.nn.inference_mode(
                MLP(4, 3, (), activation=jax.nn.gelu, dropout_rate=0.5,
                    use_bias=False, dtype=jnp.bfloat16, key=KEY)
            ),
            "MLP(4, 3, hidden_sizes=(), use_bias=False, dtype='bfloat16', "
            "activation=gelu, dropout_rate=0.5, inference=True)",
        ),
        (
            lambda: ResidualMLP(4, 3, 8, 2, hidden_size=5, remat=True, key=KEY),
            "ResidualMLP(4, 3, width=8, depth=2, hidden_size=5, remat=True)",
        ),
        (
            lambda: Ensemble(
                [MLP(4, 3, (5,), dropout_rate=p, key=KEY) for p in (0.1, 0.2)]
            ),
            "Ensemble(2 x MLP(4, 3, hidden_sizes=(5,), dropout_rate=f32[2]))",
        ),
        (lambda: metrics.Metric(jnp.array(3.0), jnp.array(4.0)), "Metric(3.0 / 4.0)"),
        (lambda: metrics.Metric(jnp.ones((2, 2)), None), "Metric(f32[2,2])"),
        (
            lambda: init_state(MODEL, optax.adam(1e-3), key=KEY),
            "TrainState(MLP(4, 3, hidden_sizes=(8, 5)), "
            "opt_state=(ScaleByAdamState, EmptyState), step=0)",
        ),
    ],
)  # fmt: skip
def test_a_repr_is_one_line(make, shown):
    assert repr(make()) == shown


def test_a_result_shows_its_last_epoch():
    state = init_state({"w": jnp.ones(2)}, optax.sgd(0.1), key=KEY)
    history = {
        "loss": np.array([2.0, 1.25]),
        "recall": np.ones((2, 3)),
        "seconds": np.array([3.0, 0.5]),
        "step_loss": np.ones(2),
        "compile_seconds": np.array(3.0),
    }
    assert repr(FitResult(state, history)) == (
        "FitResult(TrainState({'w': f32[2]}, opt_state=(EmptyState, EmptyState), "
        "step=0), epochs=2, loss=1.25, seconds=0.5)"
    )
    nothing = {"loss": np.zeros(0), "seconds": np.zeros(0)}
    assert repr(FitResult(state, nothing)).endswith("step=0), epochs=0)")


def test_what_is_no_model_is_shown_as_a_tree():
    for tree in (
        eqx.filter(MODEL, eqx.is_array),  # the structure of its gradient
        eqx.partition(MODEL, eqx.is_array)[1],
        select("layers.0")(MODEL),
        eqx.tree_at(lambda m: m.layers, MODEL, True),
        eqx.filter(Ensemble([MODEL]), lambda x: False),
    ):
        assert repr(tree) == eqx.tree_pformat(tree)
    # The tree of a model is still to be had.
    assert "weight=f32[8,4]" in eqx.tree_pformat(MODEL)


def test_a_repr_reads_no_array_that_is_traced_or_gone():
    shown = []
    state = init_state(MODEL, optax.sgd(0.1), key=KEY)

    @eqx.filter_jit
    def f(state):
        shown.append(repr(state))
        shown.append(repr(state.model))
        shown.append(repr(metrics.Metric(jnp.ones(()), state.step.astype(float))))
        return state

    f(state)
    assert shown[0].startswith("TrainState(\n")
    assert shown[1:] == ["MLP(4, 3, hidden_sizes=(8, 5))", "Metric(f32[] / f32[])"]
    state.step.delete()
    assert repr(state).startswith("TrainState(\n")


# Treescope looks at every name in NumPy, some of which are on their way out.
of_numpy = pytest.mark.filterwarnings("ignore:The chararray:DeprecationWarning")


@of_numpy
def test_a_notebook_shows_a_tree_where_treescope_is_there(monkeypatch):
    treescope = pytest.importorskip("treescope")
    state = init_state(MODEL, optax.sgd(0.1), key=KEY)
    for shown in (MODEL, state):
        html = shown._repr_mimebundle_(include=None, exclude=None)["text/html"]
        assert "treescope" in html
        assert "float32(8, 4)" in treescope.render_to_text(shown)
    monkeypatch.setitem(sys.modules, "treescope", None)
    assert MODEL._repr_mimebundle_() == {}


@of_numpy
def test_ipython_shows_the_tree_and_the_line():
    pytest.importorskip("treescope")
    formatters = pytest.importorskip("IPython.core.formatters")
    formatter = formatters.DisplayFormatter()
    formatter.active_types = ["text/plain", "text/html"]
    shown, _ = formatter.format(MODEL)
    assert shown["text/plain"] == repr(MODEL)
    assert "treescope" in shown["text/html"]
