"""Metrics over a data set, and predictions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from .._checked import checked
from .._keys import with_key
from .._types import Key, Model
from ..data import Batch
from ..distributed._layout import Layout
from ..distributed._mesh import require_mesh
from ..metrics import Metrics
from ..nn._ensemble import members_of
from ..per_example import example_keys
from ._data import padded, require_count, require_data, size_of
from ._loop import plain, run_evaluation, run_prediction
from ._step import Transform, batch_metrics, transformed


def _require(model: Any, data: Any, *, metrics: Any = None, **options: Any) -> None:
    require_data("evaluate", "data", data)
    require_metrics("evaluate", metrics)
    require_count("evaluate", batch_size=options.get("batch_size", 1))
    require_mesh("evaluate", options.get("mesh"))


@checked(_require)
def evaluate(
    model: Model,
    data: tuple,
    *,
    metrics: Metrics,
    batch_size: int = 256,
    transform: Transform | None = None,
    key: Key | None = None,
    mesh: Mesh | None = None,
) -> dict[str, Any]:
    """Metrics over all examples, with dropout switched off.

    Args:
        model: as the metrics take it.
        data: a tuple of arrays with one leading axis of examples, such as `(x, y)`.
        metrics: name to function of one example; losses will do.
        batch_size: examples at once; it changes speed and memory, not the result.
        transform: from the stored first argument of one example to what the metrics
            take.
        key: for metrics that draw; example i gets `fold_in(key, i)`.
        mesh: the devices that share each batch, as in `fit`.

    Returns:
        values by name, each a float, or a NumPy array where a metric has a shape. Of an
        `nn.Ensemble` one value for each member, along the first axis.

    Raises:
        ValueError: no example, arguments of different lengths, and what the metrics
            raise.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import evaluate, metrics
    >>> data = (jnp.eye(2), jnp.array([0, 0]))
    >>> evaluate(lambda x: x, data, metrics={"accuracy": metrics.accuracy})
    {'accuracy': 0.5}
    """
    layout = Layout(mesh)
    data, order, batch_size = _in_order(data, batch_size, layout)
    model, key = layout.kept((eqx.nn.inference_mode(model), key))
    metrics = dict(metrics)
    sums = run_evaluation(
        metrics, transform, model, data, order, batch_size, key, layout
    )
    for name, sum_ in sums.items():
        if not np.all(np.isfinite(np.asarray(sum_.numerator))):
            model, data, key = layout.local((model, data, key))
            _raise_cause(name, metrics, model, data, transform, key)
    return {name: plain(sums[name].compute()) for name in metrics}


def _require_x(model: Any, x: Any, **options: Any) -> None:
    require_data("predict", "x", (x,))
    require_count("predict", batch_size=options.get("batch_size", 1))
    require_mesh("predict", options.get("mesh"))


@checked(_require_x)
def predict(
    model: Model,
    x: PyTree,
    *,
    batch_size: int = 256,
    transform: Transform | None = None,
    mesh: Mesh | None = None,
) -> PyTree:
    """The model's output for each example, with dropout switched off.

    Args:
        model: a function of one example.
        x: examples along the leading axis.
        batch_size: examples at once.
        transform: from one stored example to what the model takes.
        mesh: the devices that share each batch, as in `fit`.

    Returns:
        outputs `[examples, ...]` in the order of `x`.

    Raises:
        ValueError: no example, and what the model raises.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import predict
    >>> predict(lambda x: 2 * x, jnp.arange(3.0), batch_size=2).tolist()
    [0.0, 2.0, 4.0]
    """
    layout = Layout(mesh)
    x, order, batch_size = _in_order(x, batch_size, layout)
    model = layout.kept(eqx.nn.inference_mode(model))
    return run_prediction(transform, model, x, order, batch_size, layout)


def _in_order(data: PyTree, batch_size: int, layout: Layout) -> tuple[PyTree, Any, int]:
    """The data on the devices, their order in whole batches, and the size of these."""
    n = size_of(data)
    batch_size = min(batch_size, n)
    order = padded(np.arange(n, dtype=np.int32), batch_size)
    return *layout.replicated((data, order)), batch_size


def require_metrics(owner: str, metrics: Any) -> None:
    """Raise a ValueError unless `metrics` maps names to functions."""
    if not hasattr(metrics, "items") or not all(callable(f) for f in metrics.values()):
        raise ValueError(
            f"{owner}: metrics must map names to functions of one example, such as "
            f"{{'accuracy': metrics.accuracy}}, got {metrics!r}"
        )


def _raise_cause(
    name: str,
    metrics: Metrics,
    model: Model,
    data: tuple,
    transform: Transform | None,
    key: Key | None,
) -> None:
    # Values could not be checked in compiled code: find the first example whose metric
    # is not finite, and call the metric on it alone, where its own checks can raise.
    @jax.jit
    def finite(row: tuple) -> jax.Array:
        example, keys = jax.tree.map(lambda x: x[None], row)
        metric = {name: metrics[name]}
        sums = batch_metrics(metric, model, Batch(example), transform, keys)[name]
        return jnp.all(jnp.isfinite(sums.numerator))

    rows = (data, example_keys(key, size_of(data)))
    bad = np.flatnonzero(~np.asarray(jax.lax.map(finite, rows, batch_size=256)))
    if bad.size:
        example, own_key = jax.tree.map(lambda x: x[bad[0]], rows)
        metric = transformed(metrics[name], transform)
        for member in members_of(model):
            with_key(metric, member, *example, key=own_key)
