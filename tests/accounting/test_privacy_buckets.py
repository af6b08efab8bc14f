"""PrivacyBuckets and the Extended Moments Accountant against enumeration."""

import math

import dp_accounting
import numpy as np
import pytest

from tests.accounting.oracles import product_delta, product_masses
from tests.representatives import representatives
from tfcactus import accounting, design, noise
from tfcactus.accounting import privacy_buckets
from tfcactus.accounting.renyi import RenyiAccountant
from tfcactus.pairs.dominating_pair import DominatingPair

P = np.array([0.1, 0.25, 0.3, 0.15, 0.2, 0.0])
Q = np.array([0.0, 0.2, 0.35, 0.25, 0.1, 0.1])


def event(p=P, q=Q):
  return accounting.DominatingPairDpEvent(DominatingPair.from_masses(p, q))


def enumerated(epsilon, steps, pdp=False, p=P, q=Q):
  """Returns delta, approximate or probabilistic, from all sequences of outcomes."""
  if not pdp:
    return product_delta([(p, q)] * steps, epsilon)
  a, b = (product_masses([mass] * steps) for mass in (p, q))
  return float(np.sum(a[a > math.exp(epsilon) * b * (1 + 1e-12)]))


def truth(epsilon, steps, pdp=False):
  return max(enumerated(epsilon, steps, pdp),
             enumerated(epsilon, steps, pdp, Q, P))


@pytest.mark.parametrize('guarantee', ['adp', 'pdp'])
@pytest.mark.parametrize('steps', [1, 2, 3, 6])
@pytest.mark.parametrize('epsilon', [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize('settings', [
    {'buckets': 4096}, {'buckets': 64}, {'buckets': 20, 'factor': 1.3},
    {'buckets': 16, 'factor': 1.02}], ids=repr)
def test_bounds_hold(guarantee, steps, epsilon, settings):
  accountant = privacy_buckets.PrivacyBucketsAccountant(guarantee=guarantee, **settings)
  bounds = accountant.compose(event(), steps).delta_bounds(epsilon)
  exact = truth(epsilon, steps, guarantee == 'pdp')
  assert bounds.lower <= exact * (1 + 1e-9) and exact <= bounds.upper * (1 + 1e-9)
  assert accountant.get_delta(epsilon) == bounds.upper
  if settings == {'buckets': 4096} and guarantee == 'adp':
    assert bounds.upper - bounds.lower < 2e-3


def test_error_correction_pays():
  """Without error correction, the label bounds every loss of a bucket."""
  accountant = privacy_buckets.PrivacyBucketsAccountant(buckets=512)
  accountant.compose(event(), 6)
  part = accountant.compositions()['add']
  _, upper = privacy_buckets.compose_buckets(part.groups, 512, None)
  plain = upper.p_inf + float(np.sum(upper.p * np.maximum(
      -np.expm1(0.3 - upper._labels), 0.0)))
  exact = enumerated(0.3, 6)
  assert exact <= upper.upper(0.3, 'adp') < plain
  assert upper.upper(0.3, 'adp') - exact < 0.5 * (plain - exact)


def test_epsilon_bounds_invert_delta():
  accountant = privacy_buckets.PrivacyBucketsAccountant(buckets=4096)
  accountant.compose(event(), 4)
  bounds = accountant.epsilon_bounds(0.5)
  assert truth(bounds.lower, 4) >= 0.5 * (1 - 1e-6)
  assert truth(bounds.upper, 4) <= 0.5 * (1 + 1e-6)
  assert bounds.upper - bounds.lower < 1e-2
  assert accountant.get_epsilon(0.5) == bounds.upper
  # Below the mass of infinite losses there is no epsilon.
  assert accountant.get_epsilon(0.3) == math.inf


@pytest.mark.parametrize('sampling_prob', [1.0, 0.1])
def test_brackets_the_phi_accountant(sampling_prob):
  table = design.TruncatedGaussian(20, utility=6, bins=4).solve()
  step = accounting.noise_event(table)
  if sampling_prob < 1:
    step = dp_accounting.PoissonSampledDpEvent(sampling_prob, step)
  mine = privacy_buckets.PrivacyBucketsAccountant().compose(step, 20)
  phi = accounting.PhiAccountant().compose(step, 20)
  for epsilon in (0.1, 0.5, 2.0):
    a, b = mine.delta_bounds(epsilon), phi.delta_bounds(epsilon)
    assert a.lower <= b.upper and b.lower <= a.upper
    assert a.upper - a.lower < 1e-2 * a.upper


def test_a_loss_at_epsilon_does_not_count_as_larger():
  loss = 0.5 - 5e-13  # Rounding may raise it to the label of the next bucket.
  p = np.array([0.5])
  pair = DominatingPair(np.array([loss]), p, p * math.exp(-loss))
  for width in (0.1, 0.125):
    for buckets in (privacy_buckets.Buckets.of(pair, width, 64),
                    privacy_buckets.Buckets.of(pair, width, 64).repeated(3)):
      most = buckets.releases * loss  # The largest total loss.
      assert buckets.lower(most, 'pdp') == 0
      assert buckets.lower(most - 2 * buckets.releases * width, 'pdp') > 0.1


def test_continuous_noise_is_bracketed_and_has_no_pdp():
  gaussian = dp_accounting.GaussianDpEvent(4.0)
  mine = privacy_buckets.PrivacyBucketsAccountant().compose(gaussian, 10)
  phi = accounting.PhiAccountant().compose(gaussian, 10)
  bounds = mine.delta_bounds(1.0)
  assert bounds.lower <= phi.get_delta(1.0) <= bounds.upper
  assert bounds.upper - bounds.lower < 1e-3 * bounds.upper
  pdp = privacy_buckets.PrivacyBucketsAccountant(guarantee='pdp').compose(gaussian)
  with pytest.raises(ValueError, match="guarantee='adp'"):
    pdp.get_delta(1.0)


def test_nothing_and_no_privacy():
  empty = privacy_buckets.PrivacyBucketsAccountant()
  assert empty.get_delta(0.0) == 0 and empty.get_epsilon(1e-5) == 0
  open_book = privacy_buckets.PrivacyBucketsAccountant().compose(
      dp_accounting.NonPrivateDpEvent())
  assert open_book.get_delta(3.0) == 1 and open_book.get_epsilon(.1) == math.inf


@pytest.mark.parametrize('bad, words', [
    ({'guarantee': 'rdp'}, 'guarantee'), ({'buckets': 8}, 'buckets'),
    ({'factor': 1.0}, 'factor > 1'), ({'factor': math.nan}, 'factor')])
def test_bad_arguments(bad, words):
  with pytest.raises(ValueError, match=words):
    privacy_buckets.PrivacyBucketsAccountant(**bad)


class TestExtendedMoments:

  @representatives('steps', [1, 5])
  def test_is_proposition_17(self, steps):
    epsilon, both = 0.5, (P > 0) & (Q > 0)
    found = []
    for p, q in ((P, Q), (Q, P)):
      omega = 1 - (1 - np.sum(p[q == 0]))**steps
      orders = np.linspace(0.02, 300, 60_000)
      gamma = np.array([np.log(np.sum(p[both] * (p[both] / q[both])**o))
                        for o in orders])
      found.append(omega + math.exp(np.min(steps * gamma - orders * epsilon)))
    accountant = accounting.ExtendedMomentsAccountant().compose(event(), steps)
    assert accountant.get_delta(epsilon) == pytest.approx(
        min(max(found), 1.0), rel=2e-3)
    assert accountant.get_delta(epsilon) >= truth(epsilon, steps)

  def test_without_infinite_losses_is_the_moments_accountant(self):
    step = dp_accounting.PoissonSampledDpEvent(
        0.02, dp_accounting.GaussianDpEvent(1.3))
    plain = RenyiAccountant(conversion='moments').compose(step, 400)
    extended = accounting.ExtendedMomentsAccountant().compose(step, 400)
    assert extended.get_epsilon(1e-5) == pytest.approx(plain.get_epsilon(1e-5))
    assert extended.get_delta(2.0) == pytest.approx(plain.get_delta(2.0))

  def test_epsilon_and_delta_agree_and_are_sound(self):
    table = design.TruncatedGaussian(60, utility=20, bins=1).solve()
    step = accounting.noise_event(table)
    accountant = accounting.ExtendedMomentsAccountant().compose(step, 8)
    phi = accounting.PhiAccountant().compose(step, 8)
    for epsilon in (0.3, 0.5):
      delta = accountant.get_delta(epsilon)
      assert delta > phi.get_delta(epsilon)
      assert accountant.get_epsilon(delta) == pytest.approx(epsilon)
    omega = max(part.p_inf[1] for part in phi.compositions().values())
    assert accountant.get_epsilon(0.99 * omega) == math.inf
    assert accountant.get_delta(50.0) == pytest.approx(omega)
    # The conversions that know no distinguishing events answer inf.
    assert RenyiAccountant().compose(step, 8).get_epsilon(0.01) == math.inf

  def test_nothing_and_bad_orders(self):
    assert accounting.ExtendedMomentsAccountant().get_delta(0.1) == 0
    with pytest.raises(ValueError, match='orders'):
      accounting.ExtendedMomentsAccountant(orders=[1.0, 2.0])


def test_one_release_is_summed_exactly():
  """A single release needs no lattice, which would round losses."""
  bounds = accounting.PhiAccountant().compose(event()).delta_bounds(0.2)
  exact = truth(0.2, 1)
  assert bounds.lower <= exact <= bounds.upper
  assert bounds.upper - bounds.lower < 1e-10
  laplace = accounting.PhiAccountant().compose(
      accounting.noise_event(noise.Laplace(2.0))).delta_bounds(0.2)
  assert laplace.lower <= -math.expm1(0.5 * (0.2 - 0.5)) <= laplace.upper
