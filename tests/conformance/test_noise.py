"""Tests that every law of noise is drawn, saved, accounted and released as stated."""

import json
import math

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from tests.conformance import laws
from tests.conformance.laws import EXAMPLES
from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, noise, release
from tfcactus.randomness import SystemRandom

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0)
PROB = 0.2


@pytest.fixture(autouse=True)
def listed(monkeypatch):
  """Lists the laws that only the tests define."""
  monkeypatch.setattr(noise, 'LAWS', (*noise.LAWS, *laws.TOY_LAWS))


def test_every_listed_law_has_an_example():
  assert {type(example.law) for example in EXAMPLES.values()} == set(noise.LAWS)
  assert len({law.kind for law in noise.LAWS}) == len(noise.LAWS)


@representatives('make_rng', [SystemRandom, np.random.default_rng])
@pytest.mark.parametrize('name', laws.DRAWN)
def test_draws_have_the_law_and_a_wrong_scale_is_seen(name, make_rng):
  law = EXAMPLES[name].law
  draws = law.sample(make_rng(1), 200_000)
  assert draws.dtype == np.float64
  sizes = laws.size(law, draws)
  follows = lambda x: laws.cdf(law, x)
  assert stats.kstest(sizes, follows).pvalue > 1e-3
  assert stats.kstest(1.05 * sizes, follows).pvalue < 1e-6
  multiplier = math.sqrt(np.mean(draws**2))
  assert multiplier == pytest.approx(law.noise_multiplier, rel=0.03)
  assert np.max(np.abs(draws)) <= law.range
  # Draws are symmetric.
  assert abs(np.mean(np.sign(draws))) < 0.02
  assert abs(np.mean(draws**3)) < 0.2 * np.mean(np.abs(draws)**3)


@pytest.mark.parametrize('name', EXAMPLES)
def test_vectors_have_their_shape_and_the_law(name):
  example = EXAMPLES[name]
  vector = example.law.sample_vector(SystemRandom(2), example.dim)
  assert vector.shape == (example.dim,) and vector.dtype == np.float64
  again = example.law.sample_vector(SystemRandom(2), example.dim)
  np.testing.assert_array_equal(vector, again)


@pytest.mark.parametrize('name', [
    name for name in EXAMPLES if isinstance(EXAMPLES[name].law, noise.ScalarNoise)])
def test_cdf_quantile_and_density_are_of_one_law(name):
  law = EXAMPLES[name].law
  x, step = laws.line(law)
  density = np.exp(law.log_density_at(x))
  assert np.sum(density) * step == pytest.approx(1, abs=1e-6)
  middle = slice(1, None, 997)
  np.testing.assert_allclose(
      np.cumsum(density)[middle] * step, law.cdf(x[middle] + step / 2), atol=1e-5)
  u = np.array([1e-9, 1e-3, 0.2, 0.5, 0.7, 0.999])
  np.testing.assert_allclose(law.cdf(law.quantile(u)), u, atol=1e-12)
  assert law.cdf(law.quantile(1e-9)) == pytest.approx(1e-9, rel=1e-3)
  assert law.std == pytest.approx(math.sqrt(np.sum(density * x * x) * step), rel=1e-4)
  for t in (0.05, 0.3):
    moment = np.log(np.sum(density * np.cosh(t * x)) * step)
    assert law.log_mgf(t) >= moment - 1e-6
  exceeds = law.sample(SystemRandom(3), (4000, 3))
  bound = law.max_error(3, 0.1)
  assert np.mean(np.any(np.abs(exceeds) > bound, 1)) == pytest.approx(0.1, abs=0.02)
  if law.log_concave:
    assert np.all(np.diff(law.log_density_at(x[np.abs(x) < 4]), 2) <= 1e-9)


def plan(law, **changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=law, l2_norm_clip=1.0, num_examples=1000, sampling_prob=0.01, steps=10,
      delta=1e-5), **changes})


@pytest.mark.parametrize('name', laws.ACCOUNTED)
def test_laws_and_plans_accept_the_same_dimensions(name):
  law = EXAMPLES[name].law
  for dim in (1, 2, 3, 26_010):
    calls = [lambda dim=dim: law.check_dim(dim), lambda dim=dim: plan(law, dim=dim),
             lambda dim=dim: plan(law).check_vector(dim)]
    for call in calls:
      if law.dim in (None, dim):
        call()
      else:
        with pytest.raises(ValueError, match=f'Expected noise.* {dim}.*Gaussian'):
          call()
  assert plan(law, dim=EXAMPLES[name].dim).guarantee().upper > 0


@pytest.mark.parametrize('name', laws.REFUSED)
def test_laws_without_a_guarantee_are_refused_in_words(name):
  law = EXAMPLES[name].law
  event = law.dp_event
  for call in (law.check_accounted, law.dominating_pair,
               lambda: accounting.dominating_pair(law), lambda: plan(law),
               lambda: release.noisy_value(3, sensitivity=1.0, noise=law)):
    with pytest.raises(ValueError, match='Expected'):
      call()
  accountant = accounting.PhiAccountant()
  if accountant.supports(event):
    assert accountant.compose(event).get_epsilon(1e-5) == math.inf


@pytest.mark.parametrize('bad', [1.0, None, 'gaussian', noise.Gaussian, [1]])
def test_other_objects_are_refused_in_words(bad):
  for call in (noise.check, noise.check_scalar, plan, accounting.dominating_pair):
    with pytest.raises(ValueError, match='Expected noise to be Gaussian'):
      call(bad)
  with pytest.raises(ValueError, match='Expected noise'):
    accounting.NoiseTableDpEvent(bad)


@pytest.mark.parametrize('name', EXAMPLES)
def test_configs_restore_a_law(name):
  law = EXAMPLES[name].law
  config = json.loads(json.dumps(noise.to_config(law)))
  again = noise.from_config(config)
  assert type(again) is type(law)
  assert again == law and hash(again) == hash(law)
  assert again.digest == law.digest and again.name == law.name
  np.testing.assert_array_equal(
      *(one.sample_vector(SystemRandom(4), EXAMPLES[name].dim) for one in (law, again)))
  for damaged in ({**config, 'strange': 1}, {'kind': config['kind'], 'no': 'x'}):
    with pytest.raises(ValueError, match='Expected'):
      noise.from_config(damaged)
  for entry in set(config) - {'kind'}:
    with pytest.raises(ValueError, match='Expected'):
      noise.from_config({**config, entry: 'x'})


@pytest.mark.parametrize('name', [name for name in EXAMPLES if 'table' in name])
def test_tables_are_saved_and_loaded_with_their_digest(name, tmp_path):
  table = EXAMPLES[name].law
  table.save(tmp_path / 'table.npz')
  again = noise.load(tmp_path / 'table.npz')
  assert again == table and again.digest == table.digest


def test_only_listed_laws_are_saved_and_read(monkeypatch):
  law = EXAMPLES['logistic'].law
  config = noise.to_config(law)
  monkeypatch.setattr(noise, 'LAWS', tuple(
      law for law in noise.LAWS if law not in laws.TOY_LAWS))
  with pytest.raises(ValueError, match=r'LAWS'):
    noise.to_config(law)
  for kind in ('logistic', 'tests.conformance.logistic.Logistic', 'os.system', None):
    with pytest.raises(ValueError, match='kind gaussian'):
      noise.from_config({**config, 'kind': kind})


def gains(law, shift, epsilons=EPSILONS):
  """Returns hockey-stick divergences of a law and its shift, by summation."""
  if isinstance(law, noise.ScalarNoise):
    x, area = laws.line(law)
    p, q = (np.exp(law.log_density_at(x - by)) for by in (0, shift))
  else:
    x, area = laws.plane(law)
    p, q = (np.exp(law.log_density_at(x - by)) for by in ([0, 0], [shift, 0]))
  return np.array([
      np.sum(np.maximum(p - math.exp(e) * q, 0)) * area for e in epsilons])


@pytest.mark.parametrize('shift', [1, 2])
@pytest.mark.parametrize('name', laws.ACCOUNTED)
def test_pairs_bracket_divergences_of_the_density(name, shift):
  law = EXAMPLES[name].law
  bounds = law.dominating_pair(shift)
  for pair in (bounds.lower, bounds.upper):
    for mass, rest in ((pair.p, pair.p_inf), (pair.q, pair.q_inf)):
      assert np.all(mass >= 0) and 0 <= rest <= 1
      assert np.sum(mass) + rest <= 1 + 1e-9
    both = np.minimum(pair.p, pair.q) > 1e-290
    np.testing.assert_allclose(
        pair.loss[both], np.log(pair.p[both] / pair.q[both]), atol=1e-9)
  assert np.sum(bounds.upper.p) + bounds.upper.p_inf == pytest.approx(1, abs=1e-9)
  # The sum over a grid errs by about 1e-4 where a density has edges off it.
  slack = 1e-9 if isinstance(law, noise.ScalarTable) else 3e-4
  shares = (1.0, 0.5, 0.9) if isinstance(law, noise.ScalarNoise) else (1.0,)
  found = [gains(law, share * shift) for share in shares]
  for index, epsilon in enumerate(EPSILONS):
    lower, upper = (
        pair.hockey_stick(epsilon) for pair in (bounds.lower, bounds.upper))
    assert lower <= upper * (1 + 1e-9)
    assert max(values[index] for values in found) <= upper + slack
    assert upper - lower <= 0.1 * upper + 1e-4
    if getattr(law, 'monotone', True):
      assert lower <= found[0][index] + slack


@pytest.mark.parametrize('name', laws.SCALAR)
def test_pairs_dominate_samples_that_overlap(name):
  """Covers a replaced record and a zeroed one in samples of a fixed size."""
  law = EXAMPLES[name].law
  x, step = laws.line(law)
  at = lambda mean: np.exp(law.log_density_at(x - mean))
  mixed = lambda rest, drawn: (1 - PROB) * at(rest) + PROB * at(drawn)
  gain = lambda p, q, e: np.sum(np.maximum(p - math.exp(e) * q, 0)) * step
  replaced, zeroed = law.replaced_pair(PROB), law.zeroed_pair(PROB)
  slack = 1e-9 if isinstance(law, noise.ScalarTable) else 1e-6
  for epsilon in EPSILONS:
    for one, other in ((1, -1), (1, -0.5), (1, 0)):
      assert gain(mixed(0, one), mixed(0, other), epsilon) <= (
          replaced.upper.hockey_stick(epsilon) + slack)
    for rest in (-1, 0, 0.5, 1):
      p, q = mixed(rest, 1), mixed(rest, 0)
      assert gain(p, q, epsilon) <= zeroed.upper.hockey_stick(epsilon) + slack
      assert gain(q, p, epsilon) <= (
          zeroed.upper.reversed().hockey_stick(epsilon) + slack)
    for bounds in (replaced, zeroed):
      assert bounds.lower.hockey_stick(epsilon) <= (
          bounds.upper.hockey_stick(epsilon) + 1e-9)


@representatives('name', laws.ACCOUNTED, 2)
def test_the_accountant_composes_its_event(name):
  law = EXAMPLES[name].law
  event = law.dp_event
  assert noise.of_event(event) == law
  assert accounting.noise_event(law) == event
  delta = float(gains(law, 1, [0.5])[0])
  if delta > 1e-6:
    once = accounting.PhiAccountant().compose(event).epsilon_bounds(delta)
    assert once.upper >= 0.5 - 2e-2
    assert once.lower <= 0.5 + 2e-2 or not getattr(law, 'monotone', True)
  for relation in dp_accounting.NeighboringRelation:
    for sampled in (
        event, dp_accounting.PoissonSampledDpEvent(0.05, event),
        dp_accounting.SampledWithoutReplacementDpEvent(100, 5, event)):
      accountant = accounting.PhiAccountant(relation)
      assert accountant.supports(sampled)
      bounds = accountant.compose(sampled, 3).epsilon_bounds(1e-3)
      assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper < math.inf


@pytest.mark.parametrize('name', laws.ACCOUNTED)
def test_releases_take_it_or_refuse_in_words(name):
  example = EXAMPLES[name]
  if example.scalar:
    made = release.noisy_value(3, sensitivity=2.0, noise=example.law, seed=1)
    assert made.event == example.law.dp_event
    assert made.error(0.05) >= 2 * example.law.max_error(1, 0.05)
  else:
    with pytest.raises(ValueError, match='Expected noise .* scalar'):
      release.noisy_value(3, sensitivity=2.0, noise=example.law)
  vector = np.arange(example.dim, dtype=float)
  made = release.noisy_vector(
      vector, l2_sensitivity=2.0, noise=example.law, seed=1)
  assert made.value.shape == vector.shape
  assert math.isfinite(made.error(0.05))
  if example.law.dim is not None:
    with pytest.raises(ValueError, match='Expected noise'):
      release.noisy_vector(np.ones(7), l2_sensitivity=2.0, noise=example.law)
