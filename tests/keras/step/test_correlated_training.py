"""Tests of training with noise correlated over steps: covariance and account."""

import threading
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import plan_of, privatized
from tests.representatives import representatives
import tfcactus
from tfcactus import correlated, keras as ours, sampling
from tfcactus.keras.data import batch_marks
from tfcactus.keras.ledger import counts
from tfcactus.keras.step import step_noise

pytestmark = pytest.mark.usefixtures('zero_sums')
_BATCHES, _DIM = 8, 400
X = np.zeros((16, _DIM), np.float32)
Y = np.zeros((16, 1), np.float32)
BANDED = correlated.BandedStrategy(4)
STRATEGIES = [BANDED, correlated.BlockedStrategy(4)]


def _plan(epochs=25, **changes):
  return plan_of(**{**dict(
      noise=tfcactus.Gaussian(1.5), l2_norm_clip=0.5, num_examples=16,
      sampling_prob=1 / _BATCHES, steps=epochs * _BATCHES, delta=1e-3,
      correlation=BANDED), **changes})


class _Watch(tf.keras.callbacks.Callback):
  """Keeps the weights after each step."""

  def __init__(self):
    super().__init__()
    self.weights = []

  def on_train_begin(self, logs=None):
    self.weights.append(self.model.inner.get_weights()[0].ravel())

  def on_train_batch_end(self, batch, logs=None):
    self.weights.append(self.model.inner.get_weights()[0].ravel())

  def released(self):
    """Returns the noise of all steps, over clipping norm and noise multiplier."""
    return -np.diff(np.stack(self.weights), axis=0) / (0.5 * 1.5)


def _private(plan, **settings):
  model = tf.keras.Sequential([tf.keras.layers.Input((_DIM,)), tf.keras.layers.Dense(
      1, use_bias=False, kernel_initializer='zeros')])
  # Gradients are zero, so that weights are sums of noise.
  return privatized(plan, model, tf.keras.optimizers.SGD(plan.expected_batch_size),
                    'mse', **settings)


def _fit(private, batches, epochs=1):
  watch = _Watch()
  private.fit(batches, epochs=epochs, verbose=0, callbacks=[watch])
  return watch.released()


def _white(noise):
  """Returns how far noise is from independent standard normals, in their stddevs."""
  steps, dim = noise.shape
  gram = noise @ noise.T / dim
  off = [abs(np.mean(np.diagonal(gram, lag))) * np.sqrt(dim * (steps - lag))
         for lag in range(1, min(steps, 12))]
  return max(abs(np.mean(np.diag(gram)) - 1) * np.sqrt(dim * steps / 2), *off)


@representatives('request_', STRATEGIES)
@pytest.mark.parametrize('kind', [
    sampling.CyclicAllocationSampling,
    pytest.param(sampling.CyclicPoissonSampling, marks=pytest.mark.slow)])
def test_released_noise_has_the_covariance_of_the_strategy(request_, kind):
  plan = _plan(correlation=request_)
  private = _private(plan, seed=5)
  noise = _fit(private, ours.CyclicBatches(X, Y, plan=plan, sampling=kind), epochs=25)
  assert noise.shape == (200, _DIM)
  assert _white(plan.strategy.matrix(200) @ noise) < 4.5
  # Another number of bands, another scale, and no correlation would fail.
  other = type(request_)(5).solve(200).matrix(200)
  for wrong in (other, 1.05 * plan.strategy.matrix(200), np.eye(200)):
    assert _white(wrong @ noise) > 6
  assert private.guarantee().upper == plan.guarantee(25, sampling=kind).upper
  assert 'correlated over 4 steps' in private.guarantee().statement


def test_noise_begins_anew_with_each_fit_and_costs_no_more():
  plan = _plan()
  private, batches = _private(plan, seed=5), ours.CyclicBatches(X, Y, plan=plan)
  first, second = _fit(private, batches, 6), _fit(private, batches, 6)
  matrix = plan.strategy.matrix(48)
  for part in (first, second):
    assert _white(matrix @ part) < 4.5
  # Noise that went on would correlate the last step with the next first one.
  joint = np.vstack([first, second])
  across = np.mean(joint[47] * joint[48]) / np.mean(joint[47]**2)
  within = np.mean(joint[46] * joint[47]) / np.mean(joint[47]**2)
  assert abs(across) < 4.5 / np.sqrt(_DIM) and within < -0.3
  assert private.guarantee().upper == plan.guarantee(12).upper


def test_a_fit_after_one_that_was_broken_off_begins_anew():

  class Stop(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      if batch == 4:
        raise KeyboardInterrupt

  plan = _plan()
  private, batches = _private(plan, seed=5), ours.CyclicBatches(X, Y, plan=plan)
  with pytest.raises(KeyboardInterrupt):
    private.fit(batches, epochs=1, verbose=0, callbacks=[Stop()])
  noise = _fit(private, batches, 6)
  assert _white(plan.strategy.matrix(48) @ noise) < 4.5
  ledger = private.ledger()
  assert (ledger.steps, ledger.epochs) == (5 + 48, 7)
  assert private.guarantee().upper == plan.guarantee(7).upper


def test_steps_on_other_batches_have_independent_noise_and_no_epsilon():
  plan = _plan()
  private = _private(plan, seed=5)
  weights = [private.inner.get_weights()[0].ravel()]
  for _ in range(40):
    private.train_on_batch(X[:2], Y[:2])
    weights.append(private.inner.get_weights()[0].ravel())
  noise = -np.diff(weights, axis=0) / (0.5 * 1.5)
  assert _white(noise * plan.strategy.coefficients[0]) < 4.5
  assert private.ledger().sampling == counts.UNKNOWN
  with pytest.raises(ValueError, match='No epsilon'):
    private.guarantee()


@pytest.mark.slow
def test_steps_within_one_execution_are_correlated_too():
  plan = _plan()
  private, watch = _private(plan, seed=5), _Watch()
  private.compile(tf.keras.optimizers.SGD(plan.expected_batch_size), 'mse',
                  steps_per_execution=8)
  private.fit(ours.CyclicBatches(X, Y, plan=plan), epochs=25, verbose=0,
              callbacks=[watch])
  sums = watch.released()  # Of eight steps each.
  assert sums.shape[0] == 25
  inverse = np.linalg.inv(plan.strategy.matrix(200))
  parts = np.add.reduceat(inverse, np.arange(0, 200, 8), axis=0)
  whiten = np.linalg.inv(np.linalg.cholesky(parts @ parts.T))
  assert _white(whiten @ sums) < 4.5 < 6 < _white(sums / np.sqrt(8))


def test_noise_is_not_saved_and_a_loaded_model_draws_anew(tmp_path):
  plan, path = _plan(), tmp_path / 'model.keras'
  private, batches = _private(plan), ours.CyclicBatches(X, Y, plan=plan)
  _fit(private, batches, 2)
  kept = private._step._sampler._rows._kept
  assert kept.shape == (3, _DIM)
  private.save(path)
  with zipfile.ZipFile(path) as file:
    everything = b''.join(map(file.read, file.namelist()))
  for row in kept:
    for dtype in (np.float32, np.float64):
      assert row.astype(dtype)[:4].tobytes() not in everything
  plain = _private(_plan(correlation=None))
  assert len(private.variables) == len(plain.variables)
  again = tf.keras.models.load_model(path)
  assert again.plan == plan and again.plan.strategy == plan.strategy
  assert again.guarantee() == private.guarantee()
  ends = private.inner.get_weights()[0].ravel()
  ways = []
  for one in (private, again):
    one.fit(batches, verbose=0)
    ways.append(one.inner.get_weights()[0].ravel() - ends)
    assert one.guarantee().upper == plan.guarantee(3).upper
  assert abs(np.corrcoef(*ways)[0, 1]) < 6 / np.sqrt(_DIM)  # Equal noise gives one.


def test_a_journal_counts_epochs_and_is_of_one_correlation(tmp_path):
  path, plan = tmp_path / 'journal', _plan()
  _fit(_private(plan, journal=path), ours.CyclicBatches(X, Y, plan=plan), 2)
  resumed = _private(plan, journal=path)
  _fit(resumed, ours.CyclicBatches(X, Y, plan=plan), 1)
  assert resumed.guarantee().upper == plan.guarantee(3).upper
  for other in (correlated.BandedStrategy(8), None):
    with pytest.raises(ValueError, match='journal of another'):
      _private(_plan(correlation=other), journal=path)


def test_weights_of_another_correlation_have_no_epsilon(tmp_path):
  plan = _plan()
  private = _private(plan)
  _fit(private, ours.CyclicBatches(X, Y, plan=plan))
  other = _private(_plan(correlation=correlated.BlockedStrategy(4)))
  private.save_weights(tmp_path / 'w.weights.h5')
  other.load_weights(tmp_path / 'w.weights.h5')
  with pytest.raises(ValueError, match='under a plan with another noise'):
    other.guarantee()


def test_seeds_repeat_a_run():
  plan = _plan()
  once, twice = (_fit(_private(plan, seed=1), ours.CyclicBatches(
      X, Y, plan=plan, seed=2), 3) for _ in range(2))
  np.testing.assert_array_equal(once, twice)


def test_one_band_is_independent_noise():
  plan = _plan(correlation=correlated.BandedStrategy(1))
  for batches in (ours.CyclicBatches(X, Y, plan=plan),
                  ours.PoissonBatches(X, Y, 1 / _BATCHES)):
    private = _private(plan, seed=5)
    assert _white(_fit(private, batches, 5)) < 4.5
    assert 'correlated' not in private.guarantee().statement


def test_large_models_repeat_draws_and_keep_none(monkeypatch):
  monkeypatch.setattr('tfcactus.keras.step.step_noise._REPLAYED_FROM', 1)
  plan = _plan(correlation=STRATEGIES[1])
  private = _private(plan, seed=5)
  noise = _fit(private, ours.CyclicBatches(X, Y, plan=plan), 25)
  assert private._step._sampler._rows._last is None
  assert _white(plan.strategy.matrix(200) @ noise) < 4.5


def test_run_cards_name_the_correlation(tmp_path):
  plan = _plan()
  private = _private(plan)
  _fit(private, ours.CyclicBatches(X, Y, plan=plan))
  card = ours.make_run_card(private)
  assert card['correlation'] == {
      'kind': 'banded_toeplitz', 'bands': 4, 'digest': plan.strategy.digest}
  assert card['sampling'] == 'cyclic_allocation' and card['proven']
  assert ours.make_run_card(_private(_plan(correlation=None)))['correlation'] is None


@pytest.mark.parametrize('data', [
    lambda: (X, Y), lambda: (tf.data.Dataset.from_tensor_slices((X, Y)).batch(2),),
    lambda: (ours.PoissonBatches(X, Y, 1 / _BATCHES),),
    lambda: (ours.AllocatedBatches(X, Y, _BATCHES),),
    lambda: (ours.FixedSizeBatches(X, Y, 2),), lambda: (ours.ShuffledBatches(X, Y, 2),),
    lambda: (ours.CyclicBatches(X, Y, plan=_plan(
        correlation=correlated.BandedStrategy(2))),)])
def test_other_batches_are_refused(data):
  with pytest.raises(ValueError, match=r'CyclicBatches\(x, y, plan=plan\)'):
    _private(_plan()).fit(*data(), verbose=0)


@pytest.mark.parametrize('make,words', [
    (lambda: ours.DPKerasSGDOptimizer.from_plan(_plan()), 'without a correlation'),
    (lambda: ours.CyclicBatches(X, Y, plan=None), 'plan=PrivacyPlan'),
    (lambda: ours.CyclicBatches(X, Y, plan=_plan(), sampling='allocation'),
     'CyclicAllocationSampling or CyclicPoissonSampling'),
    (lambda: ours.CyclicBatches(X[:9], Y[:9], plan=_plan()), 'num_examples=16'),
    (lambda: ours.CyclicBatches(X, Y, plan=_plan(
        correlation=correlated.BandedStrategy(3))), 'multiple of groups'),
    (lambda: ours.CyclicBatches(X, Y, plan=_plan(sampling_prob=0.3)), 'whole number'),
])
def test_plans_and_batches_that_do_not_go_together_raise(make, words):
  with pytest.raises(ValueError, match=words):
    make()


def test_noise_begins_anew_when_the_number_of_weights_changes():
  plan = _plan(correlation=STRATEGIES[1])
  sampler = step_noise.CorrelatedSampler(plan.noise, plan.strategy, seed=4)
  places = [batch_marks.Place(1, step, step % 8, 8) for step in range(6)]
  drawn = [sampler._next(place, size)
           for place, size in zip(places, (1, 50, 50, 70_000, 70_000, 1))]
  assert [noise.size for noise in drawn] == [1, 50, 50, 70_000, 70_000, 1]
  # The draw before, of one number, is not broadcast.
  assert np.std(drawn[1]) > 10 * abs(np.mean(drawn[1])) / np.sqrt(50) / 4.5
  scale = plan.strategy.scales[0] * 1.5
  for noise in (drawn[1], drawn[3]):
    assert abs(np.std(noise) / scale - 1) < 4.5 / np.sqrt(2 * noise.size)
  assert np.corrcoef(drawn[3], drawn[4])[0, 1] < -0.5


def test_a_batch_out_of_its_place_begins_anew():
  plan = _plan()
  sampler = step_noise.CorrelatedSampler(plan.noise, plan.strategy, seed=4)

  def correlation(before, after):
    a = sampler._next(None if before is None else batch_marks.Place(*before), 20_000)
    b = sampler._next(None if after is None else batch_marks.Place(*after), 20_000)
    return np.corrcoef(a, b)[0, 1]

  assert correlation((1, 5, 5, 8), (1, 6, 6, 8)) < -0.3
  assert correlation((1, 7, 7, 8), (1, 8, 0, 8)) < -0.3
  for before, after in (((1, 5, 5, 8), (2, 6, 6, 8)), ((1, 5, 5, 8), (1, 7, 7, 8)),
                        ((1, 5, 5, 8), (1, 6, 0, 8)), ((1, 5, 5, 8), (1, 5, 5, 8)),
                        ((1, 5, 5, 8), (1, 4, 4, 8)), (None, None),
                        (None, (1, 6, 6, 8)), ((1, 5, 5, 8), None)):
    assert abs(correlation(before, after)) < 4.5 / np.sqrt(20_000), (before, after)


def test_steps_per_epoch_and_scheme_cannot_be_set():
  batches = ours.CyclicBatches(X, Y, plan=_plan())
  for name in ('steps_per_epoch', 'scheme'):
    with pytest.raises(AttributeError):
      setattr(batches, name, 1)


def test_noise_of_concurrent_fits_is_not_correlated():
  """Each draw is of its own step, also if steps of other fits lie between."""
  plan, seen = _plan(correlation=correlated.BandedStrategy(8)), []
  private = _private(plan)
  real = private._step._sampler._next
  private._step._sampler._next = lambda place, size: seen.append(place) or real(
      place, size)
  threads = [threading.Thread(target=private.fit, args=(
      ours.CyclicBatches(X, Y, plan=plan),), kwargs={'epochs': 3, 'verbose': 0})
             for _ in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for feed in {place.feed for place in seen if place}:
    steps = [place.serial for place in seen if place and place.feed == feed]
    assert steps == sorted(set(steps))
