"""Metrics to and from CLU's `Collection`, as Flax's training loops keep them.

Source: https://github.com/google/CommonLoopUtils
"""

import functools
import keyword
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from .._checked import checked
from .._dtypes import promote
from ..metrics import Metric


def _clu() -> Any:
    try:
        import clu.metrics
    except ImportError as error:
        raise ImportError(
            "CLU's metrics need CLU, which is not installed: pip install 'eqx-mlp[clu]'"
        ) from error
    return clu.metrics


@functools.cache
def _sum() -> Any:
    """CLU's metric of a sum, of which it has none."""
    import flax.struct

    class Sum(_clu().Metric):
        total: Any

        def merge(self, other: Any) -> Any:
            return type(self)(self.total + other.total)

        def compute(self) -> Any:
            return self.total

        @classmethod
        def empty(cls) -> Any:
            return cls(jnp.zeros((), jnp.float32))

    return flax.struct.dataclass(Sum)


# One class for the same names, so that compiled functions see the same type again.
@functools.cache
def _collection(kinds: tuple[tuple[str, type], ...]) -> Any:
    return _clu().Collection.create(**dict(kinds))


def _require(metrics: Any) -> None:
    if not isinstance(metrics, Mapping) or not all(
        isinstance(metric, Metric) for metric in metrics.values()
    ):
        raise TypeError(
            "to_clu takes names and the Metrics of a step or of sum_metric, such as "
            f"{{'accuracy': Metric(...)}}, got {metrics!r}"
        )
    for name in metrics:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(
                "to_clu: metrics are fields of a CLU Collection, whose names must be "
                f"Python's, such as top_2, got {name!r}"
            )


@checked(_require)
def to_clu(metrics: Mapping[str, Metric]) -> Any:
    """A `clu.metrics.Collection` with the same sums, to be merged and computed there.

    Args:
        metrics: what a step of `make_step` gives, or `sum_metric`, by name.

    Returns:
        a Collection, with an `Average` for each metric, and for one without a
        denominator a metric that only adds up.

    Raises:
        TypeError: something else than Metrics by name.
        ValueError: a name that cannot be a field.
        ImportError: CLU, the extra `clu`, is not installed.
    """
    theirs = _clu()
    out = {
        name: _sum()(metric.numerator)
        if metric.denominator is None
        else theirs.Average(metric.numerator, metric.denominator)
        for name, metric in metrics.items()
    }
    kinds = tuple((name, type(metric)) for name, metric in out.items())
    return _collection(kinds).empty().replace(**out)


@checked()
def from_clu(collection: Any) -> Any:
    """CLU's metrics as Metrics by name, or one as one.

    So a metric of CLU's goes into `evaluate` and `fit`, in a function of one example.

    Args:
        collection: a `clu.metrics.Collection`, or one `Average` or what is derived from
            it, such as `Accuracy` and `Average.from_output("loss")`.

    Raises:
        TypeError: a metric that is no sum over a count, or something else.
        ImportError: CLU, the extra `clu`, is not installed.
    """
    theirs = _clu()
    if not isinstance(collection, theirs.Collection):
        return _metric("the metric", collection)
    return {
        name: _metric(name, metric)
        for name, metric in vars(collection).items()
        if name != "_reduction_counter"
    }


def _metric(name: str, metric: Any) -> Metric:
    if isinstance(metric, _sum()):
        return Metric(_floating(metric.total), None)
    if isinstance(metric, _clu().Average):
        return Metric(_floating(metric.total), _floating(metric.count))
    raise TypeError(
        "from_clu takes what adds up: a Collection of Averages, or one of them, and "
        f"{name} is of type {type(metric).__name__}"
    )


def _floating(x: Any) -> Any:
    x = jnp.asarray(x)
    return x.astype(promote(x.dtype, jnp.float32))
