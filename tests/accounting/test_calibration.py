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
