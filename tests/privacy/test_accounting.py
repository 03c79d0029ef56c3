"""The account: what enters it, what is set aside, and what is refused."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from eqx_mlp.privacy import DPSGD, epsilon, noise_multiplier_for

PRIVATE = DPSGD(
    l2_clip_norm=0.5,
    noise_multiplier=1.5,
    expected_batch_size=4,
    dataset_size=10,
    delta=1e-4,
)
ACCOUNTANTS = {"rdp": rdp.RdpAccountant, "pld": pld.PLDAccountant}
GIVEN = {"noise_multiplier": 1.0, "delta": 1e-3, "sampling_rate": 0.5, "steps": 3}


def by_dp_accounting(accountant, sigma, rate, steps, delta):
    event = dp_accounting.GaussianDpEvent(sigma)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    composed = ACCOUNTANTS[accountant]().compose(event, steps)
    return composed.get_epsilon(delta)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_millionth_of_delta_is_set_aside(accountant):
    wanted = by_dp_accounting(accountant, 1.0, 0.5, 3, 1e-3 * (1 - 1e-6))
    without = by_dp_accounting(accountant, 1.0, 0.5, 3, 1e-3)
    assert wanted > without
    got = epsilon(**GIVEN, accountant=accountant)
    assert abs(got - wanted) < 0.01 * (wanted - without)


def test_each_step_pays_for_draws_that_are_cut():
    # One draw is cut with probability below 1e-40, and costs (1 + exp(epsilon)) times
    # that: finite as long as all of it stays below a millionth of delta.
    finite = {}
    for steps in range(60, 85):
        own = by_dp_accounting("rdp", 1.0, 1.0, steps, 1e-3 * (1 - 1e-6))
        paid = math.log1p(math.exp(own)) + math.log(steps) + math.log(1e-40)
        got = epsilon(
            noise_multiplier=1.0,
            delta=1e-3,
            sampling_rate=1.0,
            steps=steps,
            accountant="rdp",
        )
        finite[steps] = paid <= math.log(1e-3 * 1e-6)
        np.testing.assert_allclose(got, own if finite[steps] else np.inf, rtol=1e-6)
    assert len(set(finite.values())) == 2


def test_an_epsilon_beyond_what_can_be_exponentiated_is_infinite():
    given = GIVEN | {"noise_multiplier": 0.01, "sampling_rate": 1.0}
    assert epsilon(**given, accountant="rdp") == np.inf


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_object_counts_with_its_own_rate_delta_and_accountant(accountant):
    private = dataclasses.replace(PRIVATE, accountant=accountant)
    assert private.sampling_rate == 0.4
    wanted = by_dp_accounting(accountant, 1.5, 0.4, 7, 1e-4)
    np.testing.assert_allclose(private.epsilon(7), wanted, rtol=1e-5)
    assert private.spent(7) == {"epsilon": private.epsilon(7)}


def test_a_begun_batch_is_a_step_of_the_epoch():
    shuffled = dataclasses.replace(PRIVATE, sampling="shuffled", accountant="rdp")
    assert shuffled.steps_per_epoch == 3  # 4, 4 and 2 examples
    for steps, epochs in [(1, 1), (3, 1), (4, 2), (6, 2), (7, 3)]:
        wanted = by_dp_accounting("rdp", 1.5, 1.0, epochs, 1e-4)
        np.testing.assert_allclose(shuffled.epsilon(steps), wanted, rtol=1e-5)


def test_the_noise_multiplier_is_the_least_to_a_ten_thousandth():
    given = {k: v for k, v in GIVEN.items() if k != "noise_multiplier"}
    of = lambda sigma: by_dp_accounting("rdp", sigma, 0.5, 3, 1e-3)
    sigma = noise_multiplier_for(epsilon=2.0, **given, accountant="rdp")
    assert of(sigma) <= 2.0 < of(sigma - 1.1e-4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_multiplier": 0}, "noise_multiplier must be a number between 0 and"),
        ({"noise_multiplier": np.nan}, "noise_multiplier must be a number"),
        ({"delta": 0.0}, "delta must be a number between 0 and 1, got 0.0"),
        ({"delta": 1.0}, "delta must be a number between 0 and 1, got 1.0"),
        ({"sampling_rate": 0.0}, "sampling_rate must be a number"),
        ({"sampling_rate": 1.1}, "sampling_rate must be a number"),
        ({"steps": -1}, "steps must be an integer >= 0, got -1"),
        ({"steps": 1.5}, "steps must be an integer >= 0, got 1.5"),
        ({"steps": True}, "steps must be an integer >= 0, got True"),
        ({"accountant": "gdp"}, "accountant must be 'pld' or 'rdp', got 'gdp'"),
    ],
)
def test_what_cannot_be_counted_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        epsilon(**GIVEN | changed)


def test_an_epsilon_of_zero_is_refused():
    given = {k: v for k, v in GIVEN.items() if k != "noise_multiplier"}
    with pytest.raises(ValueError, match="epsilon must be a number between 0 and inf"):
        noise_multiplier_for(epsilon=0, **given)
