"""Calibration finds the noise, sampling probability or steps that meet a target."""

import dp_accounting
import pytest

from tfcactus.accounting import calibration


def event(noise=1.0, steps=300, prob=0.01):
  return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(noise)), steps)


def test_noise():
  cost = calibration.account(lambda noise: event(noise=noise), 1e-5)
  found = calibration.calibrate_noise(0.8, cost)
  assert cost(found) <= 0.8 < cost(found * (1 - 1e-6))


def test_sampling_prob():
  cost = calibration.account(lambda prob: event(prob=prob), 1e-5)
  found = calibration.calibrate_sampling_prob(0.8, cost)
  assert cost(found) <= 0.8 < cost(found * (1 + 1e-6))
  assert calibration.calibrate_sampling_prob(1e4, cost) == 1.0


def test_steps():
  cost = calibration.account(lambda steps: event(steps=steps), 1e-5)
  found = calibration.calibrate_steps(0.8, cost)
  assert cost(found) <= 0.8 < cost(found + 1)
  assert calibration.calibrate_steps(1e-6, cost) == 0


def test_out_of_reach():
  with pytest.raises(ValueError, match='target_epsilon'):
    calibration.calibrate_noise(-1.0, lambda noise: 1.0)
  with pytest.raises(ValueError, match='reachable'):
    calibration.calibrate_noise(0.5, lambda noise: 1.0)
  with pytest.raises(ValueError, match='target_epsilon'):
    calibration.calibrate_sampling_prob(float('inf'), lambda prob: 1.0)


@pytest.mark.parametrize('target', [0.3, 0.7, 1.0, 2.5, 977.1])
@pytest.mark.parametrize('tolerance', [1e-15, 1e-17, 1e-300])
def test_ends_where_the_tolerance_is_below_a_float(target, tolerance):
  asked = []

  def cost(noise):
    asked.append(noise)
    assert len(asked) < 500
    return 1 / noise

  found = calibration.calibrate_noise(target, cost, tolerance=tolerance)
  assert cost(found) <= target < cost(found * (1 - 1e-13))


@pytest.mark.parametrize('end', ['low', 'high'])
def test_refuses_an_end_that_is_no_noise(end):
  with pytest.raises(ValueError, match=f'Expected {end} > 0'):
    calibration.calibrate_noise(0.5, lambda noise: 1 / noise, **{end: 0})


def test_refuses_a_negative_number_of_steps():
  with pytest.raises(ValueError, match='Expected most >= 0'):
    calibration.calibrate_steps(0.5, lambda steps: 1.0, most=-3)


@pytest.mark.parametrize('tolerance', [0, -1.0, float('nan'), 'a', None])
def test_refuses_a_tolerance(tolerance):
  with pytest.raises(ValueError, match='Expected tolerance'):
    calibration.calibrate_noise(0.5, lambda noise: 1 / noise, tolerance=tolerance)
