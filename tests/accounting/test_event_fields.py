"""Fields of events: numbers out of range are refused, and none is taken for zero."""

import fractions
import json
import math

import dp_accounting
import numpy as np
import pytest

import tfcactus
from tfcactus.accounting import (
  DominatingPair,
  DominatingPairDpEvent,
  event_steps,
  NoiseTableDpEvent,
  PhiAccountant,
  TCDPAccountant,
)
from tfcactus.cli import main
from tfcactus.pairs.dominating_pair import PairBounds


def test_a_merged_release_is_never_cheaper_than_its_parts():
  """Rounding of the joint noise is on the safe side."""
  rng = np.random.default_rng(2)
  for _ in range(50):
    sigmas = rng.uniform(0.5, 9, 7)
    joint = event_steps._merged(dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(s) for s in sigmas])).noise_multiplier
    exact = np.sum(np.longdouble(sigmas)**-2)**-0.5
    assert joint <= exact <= joint * (1 + 1e-13)


_STEP = dp_accounting.GaussianDpEvent(2.0)


def _wraps(count):
  """Places in which an event may be repeated `count` times."""
  many = dp_accounting.SelfComposedDpEvent(_STEP, count)
  return [many, dp_accounting.ComposedDpEvent([many, _STEP]),
          dp_accounting.PoissonSampledDpEvent(0.1, many),
          dp_accounting.PoissonSampledDpEvent(
              0.1, dp_accounting.ComposedDpEvent([many, _STEP])),
          dp_accounting.SampledWithoutReplacementDpEvent(10, 3, many),
          dp_accounting.SelfComposedDpEvent(
              dp_accounting.PoissonSampledDpEvent(0.1, _STEP), count)]


@pytest.mark.parametrize('count', [
    -2, -1, 0.01, 0.5, 2.0, math.nan, math.inf, True, None, '3', 1j, [1], 2**60])
@pytest.mark.parametrize('place', range(6))
def test_counts_that_are_no_whole_numbers_are_refused(count, place):
  """A count of 0.01 was once taken for zero under Poisson sampling."""
  with pytest.raises(dp_accounting.UnsupportedEventError, match='count'):
    PhiAccountant().compose(_wraps(count)[place])
  if place in (0, 1, 5):
    with pytest.raises(dp_accounting.UnsupportedEventError, match='count'):
      TCDPAccountant().compose(_wraps(count)[place])


def test_nothing_released_from_a_sample_costs_nothing():
  nothing = [dp_accounting.ComposedDpEvent([]), dp_accounting.NoOpDpEvent(),
             dp_accounting.SelfComposedDpEvent(_STEP, 0),
             dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(1), 0)]
  one = PhiAccountant().compose(
      dp_accounting.PoissonSampledDpEvent(0.1, _STEP)).get_epsilon(1e-5)
  for event in nothing:
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, event)
    assert PhiAccountant()._maybe_compose(sampled, 1, True) is None
    beside = dp_accounting.PoissonSampledDpEvent(
        0.1, dp_accounting.ComposedDpEvent([_STEP, event]))
    if not isinstance(getattr(event, 'event', None), dp_accounting.LaplaceDpEvent):
      accountant = PhiAccountant()
      assert accountant._maybe_compose(beside, 1, True) is None
      assert accountant.get_epsilon(1e-5) == pytest.approx(one, rel=1e-10)


def test_releases_of_one_kind_are_counted_exactly_or_refused():
  accountant = PhiAccountant().compose(_STEP, 2**53 - 1)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='2\\^53'):
    accountant.compose(dp_accounting.ComposedDpEvent([_STEP, _STEP]))
  nested = dp_accounting.GaussianDpEvent(1.0)
  for _ in range(20):
    nested = dp_accounting.SelfComposedDpEvent(nested, 2**53)
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, nested))


@pytest.mark.parametrize('event', [
    dp_accounting.PoissonSampledDpEvent(q, _STEP)
    for q in (-0.1, 1.1, math.nan, math.inf, True, None, '0.1', 1j)] + [
        dp_accounting.SampledWithoutReplacementDpEvent(n, m, _STEP)
        for n, m in ((0, 0), (10, 11), (10, -1), (10.0, 5), (10, 5.5), ('10', 5),
                     (True, True), (math.nan, 5))] + [
        build(sigma) for sigma in (-1, math.nan, math.inf, True, '1', None, 1e-300,
                                   1e300, 10**400)
        for build in (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent,
                      lambda s: dp_accounting.PoissonSampledDpEvent(
                          0.1, dp_accounting.SelfComposedDpEvent(
                              dp_accounting.GaussianDpEvent(s), 2)))] + [
        dp_accounting.ComposedDpEvent(None), dp_accounting.ComposedDpEvent([None]),
        dp_accounting.ComposedDpEvent(_STEP),
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.ComposedDpEvent(None)),
        dp_accounting.PoissonSampledDpEvent(0.1, None)])
def test_fields_out_of_range_are_refused_in_words(event):
  with pytest.raises(dp_accounting.UnsupportedEventError):
    PhiAccountant().compose(event)


@pytest.mark.parametrize('event', [
    dp_accounting.PoissonSampledDpEvent(
        0.1, dp_accounting.SelfComposedDpEvent(_STEP, np.int64(4))),
    dp_accounting.PoissonSampledDpEvent(
        np.float64(0.1), dp_accounting.ComposedDpEvent([
            _STEP, dp_accounting.SelfComposedDpEvent(_STEP, 3)])),
    dp_accounting.PoissonSampledDpEvent(fractions.Fraction(1, 10),
                                        dp_accounting.GaussianDpEvent(1))])
def test_numbers_of_other_types_are_the_numbers_they_are(event):
  want = PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
      0.1, dp_accounting.GaussianDpEvent(1.0))).get_epsilon(1e-5)
  assert PhiAccountant().compose(event).get_epsilon(1e-5) == pytest.approx(
      want, rel=1e-10)


def test_a_small_fixed_share_on_the_command_line_is_not_rounded_to_zero(capsys):
  """Shares below 1e-9 were once rounded to no record at all."""
  assert main.main(['delta', '--noise', 'gaussian', '--noise-multiplier', '1',
                   '--sampling', 'fixed', '--sampling-prob', '1/10000000000',
                   '--steps', '1', '--epsilon', '0', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  # Replaced records are two standard deviations apart.
  total_variation = math.erf(1 / math.sqrt(2))
  assert found['upper'] == pytest.approx(1e-10 * total_variation, rel=1e-3)


@pytest.mark.parametrize('fields', [
    '"steps": 2.5', '"steps": true', '"steps": null', '"steps": [2]',
    '"steps": NaN', '"steps": "2.5"', '"steps": 3, "steps": 2', '"steps": 0',
    '"steps": 2, "noise_multiplier": [1]', '"steps": 2, "noise_multiplier": true',
    '"steps": 2, "sampling_prob": NaN', '"steps": 2, "sampling_prob": [0.5]'])
def test_a_file_of_steps_is_never_rounded(fields, tmp_path, capsys):
  """2.5 steps once counted as two, and of two numbers the last one was taken."""
  multiplier = '' if 'noise_mu' in fields else ', "noise_multiplier": 1'
  path = tmp_path / 'steps.json'
  path.write_text(f'[{{"noise": "gaussian"{multiplier}, {fields}}}]')
  assert main.main(['epsilon', '--steps-file', str(path), '--delta', '1e-5']) == 2
  assert capsys.readouterr().err.count('\n') == 1


def test_a_group_of_steps_names_each_number_once(capsys):
  with pytest.raises(SystemExit):
    main.main(['epsilon', '--delta', '1e-5', '--step',
              'noise=gaussian,noise_multiplier=1,steps=9,steps=2'])
  assert 'each name once' in capsys.readouterr().err


def test_a_probability_that_vanishes_by_rounding_is_not_zero():
  """A record in a sample of a sample once cost nothing if the product underflowed."""
  rare = dp_accounting.PoissonSampledDpEvent(1e-200, _STEP)
  assert PhiAccountant().compose(rare).get_delta(0.0) > 0
  for event in (dp_accounting.PoissonSampledDpEvent(1e-200, rare),
                dp_accounting.SampledWithoutReplacementDpEvent(10**400, 1, _STEP)):
    with pytest.raises(dp_accounting.UnsupportedEventError):
      PhiAccountant().compose(event)
  # Nor is a delta below all floats.
  assert PhiAccountant().compose(rare).get_delta(50.0) > 0


def test_losses_and_masses_are_as_right_as_accountants_assume():
  p, q = np.array([0.9999, 1e-4]), np.array([1e-4, 0.9999])
  loss = np.log(p) - np.log(q)
  # The account of a loss lowered by 6e-12 was too small by as much.
  with pytest.raises(ValueError, match='log'):
    DominatingPairDpEvent(DominatingPair(loss - 6e-12, p, q))
  # After many steps a missing share of 1e-12 is no longer small.
  low = DominatingPair.from_masses([0.5001 - 9e-13, 0.4999], [0.4999, 0.5001])
  assert math.fsum(low.p) == pytest.approx(1, abs=1e-15)
  assert PhiAccountant().compose(
      DominatingPairDpEvent(low), 10**9).get_delta(0.0) >= 1 - 1e-9


_HALF = np.array([0.5, 0.5])


def _pair(**changes):
  p, q = np.array([0.6, 0.4]), np.array([0.3, 0.7])
  return DominatingPair(**{
      'loss': np.log(p / q), 'p': p, 'q': q, 'p_inf': 0.0, 'q_inf': 0.0,
      **changes})


@pytest.mark.parametrize('make', [
    lambda: _pair(p=_HALF * 0, q=_HALF * 0), lambda: _pair(p=_HALF),
    lambda: _pair(loss=np.zeros(2)), lambda: _pair(loss=np.array([math.nan, 0])),
    lambda: _pair(p=np.array([1.6, -0.6])), lambda: _pair(p_inf=0.1),
    lambda: _pair(p_inf=-0.1), lambda: _pair(q_inf=math.nan),
    lambda: _pair(p=np.array([0.6, math.inf])), lambda: _pair(p=[0.6, 0.4]),
    lambda: _pair(p=np.full(2, 1e308)),
    lambda: _pair(q=np.array([-math.inf, math.inf])),
    lambda: _pair(p=np.array([1.0, 0.0])), lambda: _pair(q=np.array([0.3])),
    lambda: _pair(p=np.array([[0.6, 0.4]])), lambda: None,
    lambda: DominatingPair.from_masses([0.5, 0.4999], [0.5, 0.5]),
    lambda: DominatingPair.from_masses([0.5, 0.5 - 1e-10], [0.5, 0.5])])
def test_masses_that_are_no_pair_are_refused(make):
  """Masses that are no pair once had an epsilon of 1e-13."""
  with pytest.raises(ValueError, match='Expected'):
    DominatingPairDpEvent(make())


def test_bounds_with_room_for_rounding_are_pairs():
  bounds = tfcactus.SinhNormal(0.5, 0.8).dominating_pair()
  assert math.fsum(bounds.lower.q) < 1 - 2e-13
  for found in (bounds, bounds.reversed()):
    DominatingPairDpEvent(found)
    with pytest.raises(ValueError, match='to sum to 1 within -1e-13'):
      DominatingPairDpEvent(found.lower)


@pytest.mark.parametrize('less, more', [
    ([0.5, 0.5], [0.6, 0.4]), ([0.55, 0.45], [0.55 + 1e-9, 0.45 - 1e-9]),
    ([0.99, 0.01], [1.0, 0.0]), ([0.1, 0.9], [1e-200, 1.0])])
def test_bounds_that_are_swapped_are_refused(less, more):
  """A lower pair above the upper one was once accounted by the upper one."""
  lower, upper = (DominatingPair.from_masses(p, p[::-1]) for p in (less, more))
  for order in (lambda pair: pair, DominatingPair.reversed):
    DominatingPairDpEvent(PairBounds(order(lower), order(upper)))
    with pytest.raises(ValueError, match='upper pair to dominate'):
      DominatingPairDpEvent(PairBounds(order(upper), order(lower)))


@pytest.mark.parametrize('seed', range(5))
def test_bounds_that_cross_are_refused(seed):
  """The lower pair is above at few levels, found at the corners of both profiles."""
  rng = np.random.default_rng(seed)
  for _ in range(50):
    lower, upper = (DominatingPair.from_masses(*rng.dirichlet([0.3, 1, 1, 1], 2))
                    for _ in range(2))
    levels = np.append(np.linspace(-15, 15, 201), [*lower.loss, *upper.loss])
    above = max(lower.hockey_stick(x) - upper.hockey_stick(x) for x in levels)
    try:
      DominatingPairDpEvent(PairBounds(lower, upper))
      assert above < 1e-11
    except ValueError:
      assert above > 1e-12


def test_valid_pairs_are_accepted():
  rng = np.random.default_rng(4)
  p, q = rng.random((2, 100_000))
  exact = [DominatingPair.from_masses(p / np.sum(p), q / np.sum(q)), _pair(),
           DominatingPair.from_masses([1, 0, 0], [0.5, 0.5, 0]),
           DominatingPair.from_masses([1e-310, 1 - 1e-310], [0.5, 0.5]),
           tfcactus.accounting.dominating_pair(tfcactus.Laplace(2.0)).upper]
  for pair in exact:
    assert DominatingPairDpEvent(pair).pair is pair
  for noise in (tfcactus.Laplace(2.0), tfcactus.Gaussian(0.5), tfcactus.Gaussian(50.0)):
    DominatingPairDpEvent(tfcactus.accounting.dominating_pair(noise))
  for bad in (3, None, 'gaussian'):
    with pytest.raises(ValueError, match='Expected noise'):
      NoiseTableDpEvent(bad)
  with pytest.raises(ValueError, match='NeighboringRelation'):
    DominatingPairDpEvent(_pair(), 'add')


@pytest.mark.parametrize('make', [
    tfcactus.Gaussian, tfcactus.Laplace, lambda s: tfcactus.SinhNormal(s, 1.0),
    lambda s: tfcactus.SinhNormal(1.0, s)])
def test_noise_that_cannot_be_accounted_is_refused(make):
  """A multiplier of 1e300 once divided by zero, and one of 1e-300 overflowed."""
  for size in (1e-300, 1e300, 1e-101, 1e101, 10**400, math.nan, 0, -1, True):
    with pytest.raises(ValueError, match='Expected'):
      make(size)


def test_the_ends_of_the_range_are_accounted():
  for size, exact in ((1e-100, 1.5e200), (1e100, 0.0)):
    bounds = PhiAccountant().compose(
        dp_accounting.GaussianDpEvent(size), 3).epsilon_bounds(1e-5)
    assert bounds.upper == pytest.approx(exact, rel=1e-7) == bounds.lower
  total_variation = PhiAccountant().compose(
      dp_accounting.GaussianDpEvent(1e100)).get_delta(0.0)
  assert total_variation == pytest.approx(1e-100 / math.sqrt(2 * math.pi))
