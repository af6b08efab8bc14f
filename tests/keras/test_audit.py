"""Audits of training: shadow canaries in the run itself, and single steps from outside.

Scores and checks never take the noise that was drawn with: they take the claimed noise,
or estimate it from other canaries. A fault that changes the noise stays visible.
"""

import dataclasses
import json
import os

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras import planted
from tests.keras.planted import FAULTS, Runs, SCHEMES
from tests.keras.tiny import inner, NONE, plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus import _format, audit, correlated, keras as private_keras
from tfcactus.audit import evidence
from tfcactus.keras import DPKerasSGDOptimizer
from tfcactus.keras.gradients import engine, layer_routes, shadow
from tfcactus.keras.step import canaries as canaries_lib, private_step
from tfcactus.noise import discrete_gaussian

pytestmark = pytest.mark.filterwarnings('ignore:Released')

_DEPENDENT = {'fixed size': 'FixedSizeBatches', 'shuffled': 'ShuffledBatches'}
_DELTA = 1e-3
_TRIALS = 1500
_CLIP = 0.7


def _lower_bound(without, with_canary):
  """Returns an epsilon of Gaussian noise that is refuted at 99.99 % confidence."""
  threshold = 0.5 * _CLIP / 3  # Half of the canary's move, known beforehand.
  alarms = np.sum(without > threshold)
  misses = np.sum(with_canary <= threshold)
  return _plan(audit.gaussian_noise_upper_bound(
      alarms, misses, _TRIALS, significance=1e-4)).guarantee().lower


def _plan(noise_multiplier):
  return plan_of(noise=tfcactus.Gaussian(noise_multiplier), l2_norm_clip=_CLIP,
                 num_examples=3, sampling_prob=1.0, steps=1, delta=_DELTA)


def _moves(step, model):
  """Returns how far the canary's weight moves in each of many single steps."""
  moved = []
  for _ in range(_TRIALS):
    model.layers[-1].kernel.assign(tf.zeros((4, 1)))
    step()
    moved.append(-float(model.layers[-1].kernel[0, 0]))
  return np.array(moved)


def _model():
  return tf.keras.Sequential([
      tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1, use_bias=False)])


def _loss(y, prediction):
  return 50.0 * (y[:, 0] - prediction[:, 0])


def _data():
  x = np.zeros((3, 4), np.float32)
  x[0, 0] = -1.0  # The canary; the others have no gradient there.
  x[1, 1] = x[2, 2] = 1.0
  return tf.constant(x), tf.zeros((3, 1))


def _private_steps(plan, x, y):
  model = _model()
  private = privatized(plan, model, tf.keras.optimizers.SGD(1.0), _loss, seed=1)

  def moves(present):
    step = tf.function(lambda: private.train_step(
        (x, y, tf.constant([present, 1.0, 1.0]))))
    return _moves(step, model)

  return moves


def _drop_in_steps(plan, x, y):
  model = _model()
  optimizer = DPKerasSGDOptimizer.from_plan(plan, learning_rate=1.0, seed=1)

  def moves(present):

    @tf.function
    def step():
      with tf.GradientTape() as tape:
        loss = _loss(y, model(x)) * tf.constant([present, 1.0, 1.0])
      optimizer.minimize(loss, model.trainable_variables, tape=tape)

    return _moves(step, model)

  return moves


@pytest.mark.parametrize('steps_of', [
    pytest.param(_private_steps, marks=pytest.mark.slow),
    pytest.param(_drop_in_steps, marks=pytest.mark.more)])
def test_an_audit_of_single_steps_refutes_halved_noise_and_not_the_claim(steps_of):
  claim = _plan(1.5).guarantee().upper
  honest, halved = (
      _lower_bound(moves(0.0), moves(1.0))
      for moves in (steps_of(_plan(sigma), *_data()) for sigma in (1.5, 0.75)))
  assert 0.3 * claim < honest <= claim
  assert halved > 1.2 * claim


@representatives('scheme', ['whole numbers', *SCHEMES])
def test_an_honest_run_is_not_refuted(scheme):
  runs = Runs(300, 100, **(
      {'arithmetic': 'integer'} if scheme == 'whole numbers' else {'scheme': scheme}))
  seen = runs.seen()
  # Keys come from the operating system: one in a million, or six standard errors.
  found = evidence.audit_run(seen, runs.claim, significance=1e-6, families=False)
  assert not found.refuted
  # Two coordinates for each canary; one of a present canary has its contributions.
  numbers = seen.noise.size
  assert numbers == 100 * (600 - np.sum(seen.present))
  assert abs(np.mean(seen.noise**2) / planted.SIGMA**2 - 1) < 6 * (2 / numbers)**0.5
  on = seen.values[seen.drawn]
  assert on.size > 400 and not np.any(seen.drawn[:, ~seen.present])
  assert abs(np.mean(on) - 1) < 6 * planted.SIGMA / on.size**0.5
  off = seen.values[:, ~seen.present]
  assert abs(np.mean(off)) < 6 * planted.SIGMA / off.size**0.5
  bound = next(each for each in found.findings if each.name == 'Components').epsilon
  truth = runs.claim.account(1.0, 1.0).epsilon_bounds(1e-5).lower
  assert 0.2 * truth < bound < truth
  assert found.claimed >= truth


@representatives('fault', FAULTS)
def test_a_fault_planted_in_the_library_is_found_by_the_check_that_names_it(fault):
  with planted.planted(fault):
    runs = Runs(1500, 100)
    seen = runs.seen()
  found = evidence.audit_run(seen, runs.claim, families=False)
  by_name = {each.name: each.p_value for each in found.findings}
  assert by_name[f'Check of {FAULTS[fault][0]}'] < 1e-3
  assert found.refuted and 'REFUTED' in str(found)


@pytest.mark.more
def test_low_noise_in_whole_numbers_is_found(monkeypatch):
  draw = discrete_gaussian.draw
  monkeypatch.setattr(discrete_gaussian, 'draw', lambda rng, count: np.rint(
      0.97 * draw(rng, count)).astype(np.int64))
  runs = Runs(1500, 100, arithmetic='integer')
  found = evidence.audit_run(runs.seen(), runs.claim, families=False)
  assert next(each.p_value for each in found.findings
              if each.name == 'Check of noise') < 1e-3
  assert found.refuted


@pytest.mark.more
def test_the_test_of_the_claim_finds_halved_noise_as_its_pilot_estimates_it():
  with planted.planted('noise halved'):
    runs = Runs(2000)
    found = evidence.audit_run(runs.seen(), runs.claim, families=False)
  assert {each.name: each.p_value for each in found.findings}[
      'Claim, by its trade-off curve'] < 0.05


@pytest.mark.more
def test_reused_noise_is_found_under_correlated_noise():
  with planted.planted('noise of a step again'):
    runs = Runs(300, 100, scheme='cyclic, correlated')
    assert next(each for each in runs.seen().checks(runs.claim)
                if each.name == 'repeated noise').p_value < 1e-6


def test_whitening_agrees_with_dense_matrices():
  strategy = correlated.BandedStrategy(3).solve(12)
  matrix = strategy.matrix(10)
  noise = np.random.default_rng(0).normal(size=(10, 4000))
  noisy = np.linalg.solve(matrix, noise)
  np.testing.assert_allclose(
      canaries_lib.whitened(strategy, noisy, False), noise, atol=1e-12)
  noisy[2] += 1.0  # A contribution to one step.
  filtered = canaries_lib.whitened(strategy, noisy, True)
  np.testing.assert_allclose(np.mean(filtered[2]), np.linalg.norm(
      matrix[:, 2]), atol=0.06)
  np.testing.assert_allclose(np.std(filtered, axis=1), 1.0, atol=0.05)


@pytest.mark.more
def test_correlation_restarts_where_training_does():
  runs = Runs(100, 40, scheme='cyclic, correlated')
  runs.seen()
  canaries = runs.model._step.canaries
  assert canaries.steps == 40
  first, second = canaries._steps[:20], canaries._steps[20:]
  places = [place for *_, place in first + second]
  assert all(b.follows(a) for a, b in zip(places, places[1:]))
  whole = canaries.seen().noise
  canaries._steps = first + [(*each[:2], each[2]._replace(feed=-1))
                             for each in second]
  parted = canaries.seen().noise
  np.testing.assert_allclose(parted[:20], whole[:20])
  assert not np.allclose(parted[20], whole[20])  # Noise of earlier steps is not undone.


@representatives('each', [1, 2])
def test_sums_along_the_weights_are_those_without_canaries(each):
  """Rows of canaries add nothing there, and their own clipped norm elsewhere."""
  model, rng = inner(seed=0), np.random.default_rng(0)
  rows = rng.normal(size=(8 * each, 6))
  rows = [tf.constant(np.where(np.arange(8 * each)[:, None] < 5 * each, rows,
                               padding * rows), tf.float32) for padding in (1, np.nan)]
  y = tf.constant(rng.integers(3, size=8 * each))
  weights = tf.constant([1.0] * 5 * each + [0.0] * 3 * each)
  numbers = tf.constant([0] * 5 * each + [2] * each + [7] * each + [0] * each, tf.int64)

  def sums(canaries, clip=0.5):
    made = engine.Engine(
        model, lambda y, out: NONE(y, out), 4, layer_routes.routes(model), each=each,
        outputs=tf.TensorSpec((None, 3)), canaries=10 if canaries else 0)
    run = tf.function(lambda x: made.run(
        x, y, weights, tf.constant(clip, tf.float64),
        numbers if canaries else None).sums)
    return [[found.numpy() for found in run(x)] for x in rows]

  for without, found in zip(sums(False), sums(True)):
    for one, other in zip(without, found[:2]):
      np.testing.assert_array_equal(one, other)
    assert len(found) == 2 + shadow.LAYERS
    both = np.concatenate(found[2:], 1)
    expected = np.zeros((10, 2))
    expected[[1, 6]] = 0.5 / 2**0.5
    np.testing.assert_allclose(both, expected, rtol=2e-5)
    assert np.all(np.linalg.norm(both[[1, 6]], axis=1) <= 0.5)


@representatives('scheme', [*SCHEMES, 'fixed size', 'shuffled'], 2)
def test_examples_are_drawn_as_without_canaries(scheme, monkeypatch):
  """Each example by itself at the claimed rate, and no canary in its place."""
  # Batches that take canaries refuse a seed.
  monkeypatch.setattr(os, 'urandom', np.random.default_rng(0).bytes)
  x = np.arange(40, dtype=np.float32)[:, None]
  plan = plan_of(sampling_prob=0.25, correlation=(
      correlated.BandedStrategy(2) if 'cyclic' in scheme else None))
  batches = {'poisson': lambda: private_keras.PoissonBatches(x, Y, 0.25),
             'allocated': lambda: private_keras.AllocatedBatches(x, Y, 4),
             'cyclic, correlated': lambda: private_keras.CyclicBatches(
                 x, Y, plan=plan),
             'fixed size': lambda: private_keras.FixedSizeBatches(x, Y, 10),
             'shuffled': lambda: private_keras.ShuffledBatches(x, Y, 10)}[scheme]()
  batches.plant(np.arange(60) % 2 == 0)
  counts, canaries, steps = np.zeros(40), np.zeros(60), 0
  for _ in range(400):
    for index in batches._draw():
      (rows, _, weights), numbers = batches._batch(index)
      assert not np.any(weights[numbers > 0]) and np.all(rows[numbers > 0] == 0)
      np.add.at(counts, rows[weights > 0, 0].astype(int), 1)
      np.add.at(canaries, numbers[numbers > 0] - 1, 1)
      assert scheme not in _DEPENDENT or np.sum(weights > 0) == 10
      steps += 1
  assert not np.any(canaries[1::2])  # The absent ones.
  each = np.concatenate([counts, canaries[::2]])
  if scheme in ('poisson', 'fixed size'):
    assert np.all(np.abs(each - steps / 4) < 5 * (steps * 3 / 16)**0.5)
  else:
    assert np.all(each == steps / 4)


@representatives('scheme', _DEPENDENT, 1)
@pytest.mark.more
def test_canaries_that_depend_on_each_other_have_bounds_of_one_run_alone(scheme):
  batches = getattr(private_keras, _DEPENDENT[scheme])
  plan = plan_of(steps=40)

  def audited(fault):
    model = privatized(plan, audit=private_keras.Audit(300))
    with planted.planted(fault):
      model.fit(batches(X, Y, 10), epochs=10, verbose=0)
    # Noise is of the operating system: at 0.05 one honest run in twenty is refuted.
    return model, model.audit(significance=1e-6, families=False)

  model, found = audited(None)
  zeroed = model.guarantee('zero-out').upper
  assert found.claimed == zeroed < model.guarantee().upper
  assert {each.name.split('(')[0].split(' of')[0] for each in found.findings} == {
      'Check', 'One run '}
  assert all(each.epsilon <= zeroed for each in found.findings if each.epsilon)
  assert f'The claim, epsilon <= {_format.upper(zeroed, 4)}, is not' in str(found)
  assert 'of one run hold. The claim is that of zero-out.' in str(found)
  assert audited('noise halved')[1].refuted and audited('clip off')[1].refuted


def test_an_audit_of_a_part_of_the_steps_says_so():
  before = privatized()
  before.fit(poisson(), epochs=2, verbose=0)
  model = privatized(model=before.inner, audit=private_keras.Audit(200))
  model.fit(poisson(), verbose=0)
  assert model.canaries.steps == 4 and model.released_steps == 12
  found = model.audit(families=False)
  assert found.note.startswith('Canaries were in 4 of 12 steps: no fault of the others')
  assert found.note in str(found) and found.claimed == model.guarantee().upper


@pytest.mark.more
def test_canaries_of_users_and_rows_clipped_one_by_one(monkeypatch):
  plan = plan_of(unit='user', num_examples=20, sampling_prob=0.5, steps=8)

  def seen():
    model = privatized(plan, audit=private_keras.Audit(300))
    model.fit(private_keras.PoissonBatches(
        X, Y, 0.5, units=np.arange(40) // 2, examples_per_unit=2), epochs=4, verbose=0)
    return model._step.canaries.seen()

  claim = audit.Claim.of_plan(plan)
  assert min(check.p_value for check in seen().checks(claim)) > 1e-8
  run = private_step.Step.run
  monkeypatch.setattr(private_step.Step, 'run', lambda self, *args: run(
      self, *args[:5], 1, *args[6:]))
  assert next(check for check in seen().checks(claim)
              if check.name == 'amplitude').p_value < 1e-9


def test_the_model_reports_its_audit_and_the_run_card_keeps_it(tmp_path):
  model = privatized(audit=private_keras.Audit(200))
  with pytest.raises(ValueError, match='No step was released yet'):
    model.audit()
  path = tmp_path / 'card.json'
  model.fit(poisson(), epochs=2, verbose=0,
            callbacks=[private_keras.EpsilonCallback(run_card=path)])
  found = model.audit()
  assert model.canaries.steps == 8 and model.canaries.count == 200
  assert "Claim's family" in str(found)
  # Keys come from the operating system: one honest run in twenty is refuted at 0.05.
  assert all(each.p_value > 1e-8 for each in found.findings if each.p_value is not None)
  assert found.claimed == model.guarantee().upper
  card = json.loads(path.read_text())['audit']
  assert card['canaries'] == 200 and card['steps'] == 8
  assert card['refuted'] == model.audit(families=False).refuted
  assert any('Check of noise' in line for line in card['words'])
  assert (tmp_path / 'card.json.audit.png').stat().st_size > 1000
  model.save(tmp_path / 'm.keras')
  loaded = tf.keras.models.load_model(tmp_path / 'm.keras')
  with pytest.raises(ValueError, match='got one without canaries'):
    loaded.audit()
  assert 'audit' not in private_keras.make_run_card(loaded)
  model.train_on_batch(X, Y)
  with pytest.raises(ValueError, match='No epsilon'):
    model.audit()


@pytest.mark.more
def test_an_audit_beside_private_validation_is_of_the_steps_alone():
  sides = private_keras.Split(0.4, key=bytes(32)).sides(X, Y)
  validation = private_keras.PrivateValidation(
      sides.validation, noise=tfcactus.Gaussian(20.0), releases=2)
  plan = plan_of(num_examples=sides.training.num_examples, steps=8,
                 releases=[validation, plan_of().step_event])
  model = privatized(plan, audit=private_keras.Audit(200))
  model.fit(private_keras.PoissonBatches(sides.training, sampling_prob=0.25), epochs=2,
            callbacks=[validation], verbose=0)
  claimed = model.audit(families=False).claimed
  assert claimed == dataclasses.replace(plan, releases=()).guarantee().upper
  assert claimed < model.guarantee().upper
  assert private_keras.make_run_card(model)['audit']['canaries'] == 200


_AUDIT = private_keras.Audit(100)


@pytest.mark.parametrize('make, said', [
    (lambda: privatized(audit=300), 'Expected audit='),
    (lambda: private_keras.Audit(99), 'canaries'),
    (lambda: privatized(audit=_AUDIT, seed=1), 'got seed=1: whoever knows the seed'),
    (lambda: privatized(audit=_AUDIT, clipping='per_layer'), 'take a share'),
    (lambda: privatized(audit=_AUDIT, clipping='automatic'), 'take a share'),
    (lambda: privatized(plan_of(unit='user'), audit=_AUDIT, local_steps=2,
                        local_learning_rate=0.1), 'local_steps=None'),
    (lambda: privatized(plan_of(adaptive_clipping=tfcactus.AdaptiveClipping()),
                        audit=_AUDIT), 'adaptive_clipping'),
    (lambda: privatized(plan_of(
        noise=tfcactus.Laplace(1.0), accounting='scalar-unproven'), audit=_AUDIT),
     'Expected a plan of Gaussian noise'),
    (lambda: privatized().audit(), 'got one without canaries')])
def test_audits_that_would_say_less_than_they_seem_to_are_refused(make, said):
  with pytest.raises(ValueError, match=said):
    make()


@pytest.mark.parametrize('plan, batches, said', [
    (plan_of(num_examples=400, sampling_prob=1 / 400), lambda: (
        private_keras.FixedSizeBatches(np.resize(X, (400, 6)), np.resize(Y, 400), 1)),
     'at least 400 canaries'),
    (plan_of(), lambda: poisson(seed=1), 'a seed'),
    (plan_of(), lambda: private_keras.PoissonBatches(X[:20], Y[:20], 0.25, part_of=40),
     'part_of'),
    (plan_of(), lambda: X, 'drawn beside the examples')])
def test_batches_that_do_not_take_canaries_are_refused(plan, batches, said):
  model = privatized(plan, audit=_AUDIT)
  with pytest.raises(ValueError, match=said):
    given = batches()
    model.fit(given, *([Y] if isinstance(given, np.ndarray) else []), verbose=0)
  assert model.released_steps == 0


@pytest.mark.more
def test_batches_of_an_audit_serve_other_models():
  batches = poisson()
  audited = privatized(audit=_AUDIT)
  audited.fit(batches, verbose=0)
  audited.fit(batches, verbose=0)
  plain = privatized()
  plain.fit(batches, verbose=0)
  assert plain.released_steps == 4
  with pytest.raises(ValueError, match='canaries of another model'):
    privatized(audit=_AUDIT).fit(batches, verbose=0)


@pytest.mark.more
def test_weights_move_by_one_distribution_with_and_without_an_audit():
  """A two-sample test that also tells a noise multiplier that is a half larger."""

  class Watch(tf.keras.callbacks.Callback):

    def __init__(self):
      super().__init__()
      self.weights = []

    def on_train_batch_end(self, batch, logs=None):
      self.weights.append(np.concatenate(
          [np.ravel(each) for each in self.model.inner.get_weights()]))

  def moves(sigma=1.0, **options):
    model, watch = inner(), Watch()
    model.set_weights([np.zeros_like(each) for each in model.get_weights()])
    # Weights stay where gradients are those of zero weights.
    made = privatized(plan_of(noise=tfcactus.Gaussian(sigma)), model,
                      tf.keras.optimizers.SGD(1e-6), **options)
    made.fit(poisson(steps_per_epoch=400), verbose=0, callbacks=[watch])
    return np.diff(watch.weights, axis=0) * 1e6

  without = moves()
  centre = np.mean(without, axis=0)
  for options, same in (({'audit': _AUDIT}, True), ({'sigma': 1.5}, False)):
    apart = stats.ks_2samp(
        np.ravel(without - centre), np.ravel(moves(**options) - centre)).pvalue
    assert (apart > 1e-7) == same, apart
