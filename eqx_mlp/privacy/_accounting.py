"""What training has cost in privacy, by the accountants of dp-accounting."""

import functools
import math
from typing import Any

from .._checked import checked
from ._poisson import OVERFLOW

ACCOUNTANTS = ("pld", "rdp")
# The share of delta that is set aside for draws larger than the capacity.
SET_ASIDE = 1e-6


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError(
            "accounting needs dp-accounting: pip install 'eqx-mlp[privacy]'"
        ) from error
    return dp_accounting


def require_number(
    owner: str, name: str, value: Any, low: float | int, high: float | int
) -> None:
    """Raise a ValueError unless `value` is a number above `low` and below `high`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and low < value < high):
        raise ValueError(
            f"{owner}: {name} must be a number between {low} and {high}, got {value!r}"
        )


def require_accountant(owner: str, accountant: Any) -> None:
    """Raise a ValueError unless there is such an accountant."""
    if accountant not in ACCOUNTANTS:
        raise ValueError(
            f"{owner}: accountant must be 'pld' or 'rdp', got {accountant!r}"
        )


def _require(
    *,
    noise_multiplier: Any = 1.0,
    epsilon: Any = 1.0,
    delta: Any = 0.5,
    sampling_rate: Any = 0.5,
    steps: Any = 1,
    accountant: Any = "pld",
) -> None:
    owner = "privacy"
    require_number(owner, "noise_multiplier", noise_multiplier, 0, math.inf)
    require_number(owner, "epsilon", epsilon, 0, math.inf)
    require_number(owner, "delta", delta, 0, 1)
    require_number(owner, "sampling_rate", sampling_rate, 0, 1 + 1e-12)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"{owner}: steps must be an integer >= 0, got {steps!r}")
    require_accountant(owner, accountant)


@checked(_require)
def epsilon(
    *,
    noise_multiplier: float | int,
    delta: float,
    sampling_rate: float | int,
    steps: int,
    accountant: str = "pld",
) -> float:
    """The epsilon of so many steps of the Poisson-sampled Gaussian mechanism.

    Two data sets are neighbours if one is the other with one example added or removed.
    A part of delta, a millionth, is set aside for draws that are too large for a batch
    (see `privacy.Poisson`): where such draws, of probability p in all, are cut short,
    delta grows by at most (1 + exp(epsilon)) p. Source: Abadi et al. (2016) for the
    mechanism, Mironov et al. (2019) for RDP, Koskela et al. (2020) for privacy loss
    distributions (PLD), Chua et al. (2024) for truncated batches.

    Args:
        noise_multiplier: the noise's standard deviation over the clipping norm.
        delta: the other half of the guarantee.
        sampling_rate: the probability of each example to be in a batch.
        steps: how many updates.
        accountant: "pld", tight, about a tenth of a second; or "rdp", an upper bound,
            quicker.

    Raises:
        ValueError: an argument out of range.
        ImportError: dp-accounting is not there.

    >>> value = epsilon(noise_multiplier=1.1, delta=1e-5, sampling_rate=256 / 60_000,
    ...                 steps=14_100, accountant="rdp")
    >>> round(value, 3)
    2.6
    """
    if steps == 0:
        return 0.0
    key = (float(noise_multiplier), float(sampling_rate), accountant)
    value = _composed(*key, steps, delta * (1 - SET_ASIDE))
    if value > 700 or (1 + math.exp(value)) * steps * OVERFLOW > delta * SET_ASIDE:
        return math.inf
    return value


@functools.lru_cache(maxsize=1024)
def _composed(
    noise_multiplier: float, rate: float, accountant: str, steps: int, delta: float
) -> float:
    composed = _accounts(noise_multiplier, rate, accountant)
    if accountant == "pld":
        return float(composed.self_compose(steps).get_epsilon_for_delta(delta))
    dp = _dp_accounting()
    total = dp.rdp.RdpAccountant()
    return float(total.compose(composed, steps).get_epsilon(delta))


@functools.lru_cache(maxsize=16)
def _accounts(noise_multiplier: float, rate: float, accountant: str) -> Any:
    """One step, as its accountant composes it: what takes longest is done once."""
    dp = _dp_accounting()
    if accountant == "pld":
        return dp.pld.privacy_loss_distribution.from_gaussian_mechanism(
            noise_multiplier, sampling_prob=min(rate, 1.0)
        )
    event = dp.GaussianDpEvent(noise_multiplier)
    return dp.PoissonSampledDpEvent(rate, event) if rate < 1 else event


@checked(_require)
def noise_multiplier_for(
    *,
    epsilon: float | int,
    delta: float,
    sampling_rate: float | int,
    steps: int,
    accountant: str = "pld",
) -> float:
    """The least noise multiplier with which so many steps stay within epsilon.

    It is within 1e-4 of the least, and never below it. Arguments and errors are those
    of `privacy.epsilon`, whose inverse it is.

    >>> sigma = noise_multiplier_for(epsilon=3, delta=1e-5, sampling_rate=256 / 60_000,
    ...                              steps=14_100, accountant="rdp")
    >>> round(sigma, 2)
    1.01
    """

    def over(noise_multiplier: float) -> float:
        own = _epsilon(
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling_rate=sampling_rate,
            steps=steps,
            accountant=accountant,
        )
        return own - epsilon

    low, high = 0.0, 1.0
    while over(high) > 0:
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) > 0 else (low, middle)
    return high


_epsilon = epsilon
