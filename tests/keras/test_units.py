"""Tests of user-level privacy: sums over users, their account, and local steps."""

import dataclasses
import json
import re

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import MEAN, NONE, poisson
from tests.representatives import representatives
import tfcactus
from tfcactus import correlated, keras as ours
from tfcactus.keras.compat import models

layers = tf.keras.layers
RNG = np.random.default_rng(0)
SIZES = [4, 1, 3, 1, 2, 3, 1, 2, 4, 1, 2, 1]
IDS = RNG.permutation(np.repeat(np.arange(12) * 7 + 5, SIZES))
N = len(IDS)
X = RNG.normal(size=(N, 6)).astype(np.float32)
Y = RNG.integers(0, 3, N)
WEIGHTS = RNG.uniform(0.5, 2, N).astype(np.float32)
WEIGHTS[IDS == 12] = 0
K = max(SIZES)
CLIP = 0.4


def plan_of(**changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=tfcactus.Gaussian(1e-9), l2_norm_clip=CLIP, num_examples=12,
      sampling_prob=1.0, steps=12, delta=1e-5, unit='user'), **changes})


def model_of():
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([
      layers.Input((6,)), layers.Dense(5, 'tanh'), layers.Dense(3)])


def users(x=X, y=Y, q=1.0, ids=IDS, k=K, **options):
  return ours.PoissonBatches(x, y, q, units=ids, examples_per_unit=k, **options)


def privatized(plan=None, model=None, rate=1.0, loss=NONE, **options):
  private = ours.privatize(model or model_of(), plan or plan_of(), **options)
  private.compile(tf.keras.optimizers.SGD(rate), loss, metrics=['accuracy'])
  return private


def flat(tensors):
  return np.concatenate([np.ravel(each).astype(np.float64) for each in tensors])


def weights_of(model):
  return flat(models.tf_variables(model))


def moved(batches, private, **options):
  """Returns the move of the weights in an epoch, times the number of users."""
  before = weights_of(private.inner)
  private.fit(batches, verbose=0, **options)
  return (before - weights_of(private.inner)) * private.plan.expected_batch_size


def gradient(model, x, y, weights):
  """Returns the gradient of the mean weighted loss of rows of nonzero weight."""
  there = weights > 0
  if not np.any(there):
    return np.zeros_like(weights_of(model))
  variables = models.tf_variables(model)
  with tf.GradientTape() as tape:
    loss = tf.reduce_mean(weights[there] * NONE(y[there], model(x[there])))
  return flat(tape.gradient(loss, variables))


def clipped(found, clip=CLIP):
  bound = clip * (1 - 1e-5)
  return found * min(1, bound / max(np.linalg.norm(found), 1e-30))


def loop(model, weights=None, clip=clipped, ids=IDS):
  """Returns the sum of the users' clipped mean gradients, in plain Keras."""
  weights = np.ones(N, np.float32) if weights is None else weights
  return sum(clip(gradient(model, X[ids == each], Y[ids == each], weights[ids == each]))
             for each in np.unique(ids))


CASES = {
    'as is': {}, 'physical batches of one': {'physical_batch_size': 1},
    'not a multiple': {'physical_batch_size': 5},
    'vectorised': {'engine': 'vectorized'}, 'views': {'augmentation_multiplicity': 3}}


@representatives('name', CASES)
def test_sums_equal_a_loop_over_users(name):
  private = privatized(**CASES[name])
  want = loop(private.inner, WEIGHTS)
  np.testing.assert_allclose(
      moved(users(sample_weight=WEIGHTS), private), want, atol=1e-5)


class Log(layers.Layer):
  """A layer without a finite output for negative numbers."""

  def call(self, inputs):
    return tf.math.log(inputs)


@pytest.mark.parametrize('options', [
    {}, *(pytest.param(CASES[name], marks=pytest.mark.more)
          for name in ('vectorised', 'views'))])
def test_rows_of_weight_zero_need_no_finite_gradient(options):
  x, weights = np.abs(X) + 0.5, np.ones(N, np.float32)
  first = np.unique(IDS, return_index=True)[1]  # Units are filled with their first row.
  x[first], weights[first] = -1, 0
  model = tf.keras.Sequential([layers.Input((6,)), Log(), *model_of().layers])
  want = sum(clipped(gradient(model, x[IDS == each], Y[IDS == each], weights[
      IDS == each])) for each in np.unique(IDS))
  np.testing.assert_allclose(
      moved(users(x, sample_weight=weights), privatized(model=model, **options)), want,
      atol=1e-5)


@tf.custom_gradient
def hostile(x):
  """Has a gradient where that of the output is zero."""
  return tf.identity(x), lambda upstream: upstream + 100 * x


class Hostile(layers.Layer):
  """A layer whose custom gradient does not vanish with the weight of a row."""

  def call(self, inputs):
    return hostile(inputs)


@pytest.mark.parametrize('options', [{}, pytest.param(
    CASES['vectorised'], marks=pytest.mark.more)])
def test_a_gradient_that_is_not_finite_changes_no_other_user(options):
  ids, weights = np.repeat(np.arange(16), 2), np.array([1, 0] * 16, np.float32)
  x, found = np.full((32, 6), 50, np.float32), []
  x[::2] = 1  # Rows of weight one have outputs of zero, and others large ones.
  for value in (2, -1):  # The logarithm of -1 is NaN, in a row of weight zero.
    x[-1] = value
    model = tf.keras.Sequential([
        layers.Input((6,)), Log(), *model_of().layers, Hostile()])
    found.append(moved(
        users(x, np.zeros(32, int), ids=ids, k=2, sample_weight=weights),
        privatized(plan_of(num_examples=16), model, physical_batch_size=16, **options)))
  assert np.linalg.norm(found[0] - found[1]) <= 2 * CLIP


@pytest.mark.more
def test_class_weights_weigh_rows():
  private = privatized()
  factors = np.array([1.0, 2.5, 0.0], np.float32)[Y]
  want = loop(private.inner, WEIGHTS * factors)
  np.testing.assert_allclose(
      moved(users(sample_weight=WEIGHTS), private, class_weight={1: 2.5, 2: 0}), want,
      atol=1e-5)


@pytest.mark.parametrize('options', [{}, pytest.param(
    {'local_steps': 1, 'local_learning_rate': 1.0}, marks=pytest.mark.more)])
@pytest.mark.more
def test_weights_of_tokens_weigh_parts_of_rows(options):
  """A user may have no weight at all, and a row some tokens of weight zero."""
  rng = np.random.default_rng(1)
  x, y = rng.integers(0, 9, (N, 4)), rng.integers(0, 3, (N, 4))
  weights = rng.integers(0, 2, (N, 4)).astype(np.float32)
  weights[IDS == 12] = 0
  model = tf.keras.Sequential([
      layers.Input((4,), dtype='int32'), layers.Embedding(9, 3), layers.Dense(3)])
  variables, want = models.tf_variables(model), 0
  for each in np.unique(IDS):
    found = []
    for i in np.flatnonzero((IDS == each) & weights.any(1)):
      with tf.GradientTape() as tape:
        loss = tf.reduce_sum(NONE(y[i:i + 1], model(x[i:i + 1])) * weights[i]) / 4
      found.append(flat(map(tf.convert_to_tensor, tape.gradient(loss, variables))))
    want += clipped(np.mean(found, 0)) if found else 0
  np.testing.assert_allclose(
      moved(users(x, y, sample_weight=weights), privatized(model=model, **options)),
      want, atol=1e-5)


@pytest.mark.more
def test_per_layer_and_automatic_clipping_act_on_means():
  model = model_of()
  parts = np.array([0] * 35 + [1] * 18)  # The entries of each layer.

  def per_layer(found):
    return sum(clipped(np.where(parts == i, found, 0), CLIP / 2**0.5) for i in (0, 1))

  def automatic(found):
    return found * CLIP * (1 - 1e-5) / (np.linalg.norm(found) + 0.01)

  for name, clip in ('per_layer', per_layer), ('automatic', automatic):
    model = model_of()
    want = loop(model, clip=clip)
    np.testing.assert_allclose(
        moved(users(), privatized(model=model, clipping=name)), want, atol=1e-5)


@pytest.mark.more
def test_adaptive_clipping_counts_users():
  rule = tfcactus.AdaptiveClipping(
      target_unclipped_quantile=0.4, learning_rate=0.3, clipped_count_stddev=1e-6)
  model = model_of()
  norms = [np.linalg.norm(gradient(model, X[IDS == each], Y[IDS == each], np.ones(
      np.sum(IDS == each), np.float32))) for each in np.unique(IDS)]
  clip = np.median(norms) * 1.001
  private = privatized(plan_of(
      l2_norm_clip=clip, adaptive_clipping=rule), model)
  private.fit(users(), verbose=0)
  share = np.mean(np.array(norms) <= clip * (1 - 1e-5))
  np.testing.assert_allclose(
      float(private.clip_norm), clip * np.exp(-0.3 * (share - 0.4)), rtol=1e-4)


SCHEMES = {
    'poisson': lambda plan, **units: ours.PoissonBatches(
        X, Y, 0.25, steps_per_epoch=12, seed=5, **units),
    'fixed size': lambda plan, **units: ours.FixedSizeBatches(
        X, Y, 3, steps_per_epoch=12, seed=5, **units),
    'allocation': lambda plan, **units: ours.AllocatedBatches(
        X, Y, 4, seed=5, **units),
    'one pass': lambda plan, **units: ours.ShuffledBatches(X, Y, 3, seed=5, **units),
    'cyclic': lambda plan, **units: ours.CyclicBatches(
        X, Y, plan=plan, seed=5, **units),
    'nearly empty': lambda plan, **units: ours.PoissonBatches(
        X, Y, 0.02, steps_per_epoch=12, seed=5, **units)}


@representatives('name', SCHEMES)
def test_every_scheme_trains_as_a_loop_over_its_draws(name):
  strategy = correlated.BandedStrategy(2).solve(12) if name == 'cyclic' else None
  plan = plan_of(sampling_prob={'cyclic': 1 / 2, 'nearly empty': 0.02}.get(name, 0.25),
                 correlation=strategy)
  make, units = SCHEMES[name], {'units': IDS, 'examples_per_unit': 2}
  rows = list(make(plan, **units))
  private, other = privatized(plan), model_of()
  private.fit(make(plan, **units), verbose=0)
  assert private.released_steps == len(rows)
  variables = models.tf_variables(other)
  for x, y, weights in rows:
    total = 0
    for place in range(0, len(weights), 2):
      here = slice(place, place + 2)
      total += clipped(gradient(other, x[here], y[here], weights[here]))
    parts = np.split(total / plan.expected_batch_size, np.cumsum(
        [np.prod(each.shape) for each in variables])[:-1])
    for variable, part in zip(variables, parts):
      variable.assign_sub(part.reshape(variable.shape))
  np.testing.assert_allclose(weights_of(private.inner), weights_of(other), atol=1e-5)
  assert np.abs(weights_of(other) - weights_of(model_of())).max() > 1e-3


HOSTILE = {
    'huge': (np.full((9, 6), 1e30), 1.0), 'not finite': (np.full((9, 6), np.nan), 1.0),
    'some not finite': (np.where(np.arange(9)[:, None] < 4, np.inf, 50.0) + np.zeros(
        (9, 6)), 1.0),
    'weights zero': (np.ones((9, 6)), 0.0), 'weights huge': (np.ones((9, 6)), 1e20),
    'many': (np.full((1000, 6), 30.0), 1.0), 'one': (np.full((1, 6), -20.0), 1.0)}


@representatives('name', HOSTILE)
def test_all_rows_of_a_user_move_the_sum_by_one_clipping_norm(name):
  """Adds, removes and replaces a user, whatever the rows; the others stay the same."""
  rows, weight = HOSTILE[name]
  place = RNG.integers(0, N)
  private = privatized(plan_of(num_examples=13))
  start = private.inner.get_weights()

  def total(rows, weight):
    x, y, weights, ids = X, Y, np.ones(N), IDS
    if rows is not None:
      x, y, weights, ids = (np.insert(into, place, part, 0) for into, part in (
          (X, rows.astype(np.float32)), (Y, np.ones(len(rows), int)),
          (weights, np.full(len(rows), weight)), (IDS, np.full(len(rows), 1000))))
    data = ours.UnitData(x, y, units=ids, examples_per_unit=K, num_units=13,
                         sample_weight=weights)
    private.inner.set_weights(start)
    return moved(ours.PoissonBatches(data, sampling_prob=1.0), private)

  without, other = total(None, 1), total(-rows[:1], 1.0)
  found = total(rows, weight)
  assert np.all(np.isfinite(found))
  assert np.linalg.norm(found - without) <= CLIP * (1 + 1e-5)
  assert np.linalg.norm(found - other) <= 2 * CLIP * (1 + 1e-5)
  if name in ('not finite', 'weights zero'):
    np.testing.assert_allclose(found, without, atol=5e-6)


@pytest.mark.more
def test_rows_clipped_one_by_one_would_exceed_the_bound():
  """Shows that the test above sees the fault: the rows of a user as users."""
  ids = np.append(IDS, 1000 + np.arange(9))
  x, y = np.append(X, np.full((9, 6), 9.0, 'float32'), 0), np.append(Y, np.ones(9, int))
  found = moved(users(x, y, ids=ids), privatized(plan_of(num_examples=21)))
  without = moved(users(), privatized())
  assert np.linalg.norm(found - without) > 4 * CLIP


def test_the_account_is_that_of_examples_in_words_of_users():
  plan = tfcactus.PrivacyPlan.for_training(
      unit='user', num_units=1000, batch_size=50, epochs=3, delta=1e-5,
      l2_norm_clip=1.0, target_epsilon=2.0)
  rows = dataclasses.replace(plan, unit='example')
  for relation in ('add-or-remove', 'zero-out', 'replace'):
    found = plan.guarantee(neighboring_relation=relation)
    assert found.upper == rows.guarantee(neighboring_relation=relation).upper
    assert 'any one user, with all rows of that user,' in found.statement
    assert 'num_units=1000' in found.statement
    assert not re.search(r'\bexamples?\b', found.statement)
  beside = dataclasses.replace(plan, releases=[dp_accounting.GaussianDpEvent(5.0)])
  assert beside.guarantee().statement.endswith(
      'is for all rows of a user together.')


@pytest.mark.parametrize('changes, words', [
    ({'unit': 'user', 'num_examples': 40, 'num_units': None}, 'or num_units with'),
    ({'num_examples': None, 'num_units': 40}, 'Expected num_examples with'),
    ({'unit': 'user', 'num_examples': 40, 'num_units': 40}, 'Expected num_examples'),
    *(({'unit': unit, 'num_examples': None, 'num_units': 40}, 'in small letters')
      for unit in ('User', '', 'user ', 3, None))])
def test_plans_name_the_unit_and_its_number(changes, words):
  with pytest.raises(ValueError, match=words):
    tfcactus.PrivacyPlan.for_training(**{**dict(
        num_examples=40, batch_size=4, epochs=1, delta=1e-5, l2_norm_clip=1.0,
        target_epsilon=2.0), **changes})


def test_the_warning_of_a_large_delta_speaks_of_the_unit():
  with pytest.warns(UserWarning, match='number of users, got delta=0.2 for 12 users: .*'
                    'publishes one user as it is'):
    plan_of(delta=0.2)


def test_plans_and_batches_of_different_units_are_refused():
  with pytest.raises(ValueError, match="unit='example', got batches that draw units"):
    privatized(plan_of(unit='example')).fit(users(), verbose=0)
  with pytest.raises(ValueError, match="unit='user', got batches that draw rows"):
    privatized(plan_of(num_examples=40, sampling_prob=0.25)).fit(poisson(), verbose=0)
  with pytest.raises(ValueError, match='num_examples=13'):
    privatized(plan_of(num_examples=13)).fit(users(), verbose=0)
  with pytest.raises(ValueError, match="as unit='user' of the plan says"):
    privatized(plan_of(num_examples=N)).fit(X, Y, batch_size=4, verbose=0)
  with pytest.raises(ValueError, match='only privatize'):
    ours.DPKerasSGDOptimizer.from_plan(plan_of(), learning_rate=0.1)


@pytest.mark.usefixtures('random_sums')
def test_rows_of_one_batch_given_by_hand_have_no_guarantee():
  private = privatized()
  private.train_on_batch(*users()[0])
  with pytest.raises(ValueError, match='unknown'):
    private.guarantee()


@pytest.mark.usefixtures('random_sums')
def test_logs_and_cards_speak_of_users(tmp_path):
  plan = plan_of(noise=tfcactus.Gaussian(2.0), sampling_prob=0.25)
  private = privatized(plan, journal=tmp_path / 'run.journal')
  epsilon = ours.EpsilonCallback(run_card=tmp_path / 'card.json')
  logs = private.fit(users(q=0.25), epochs=2, verbose=0, callbacks=[epsilon]).history
  assert logs['epsilon'][-1] >= plan.guarantee(8).upper > logs['epsilon'][0]
  card = json.loads((tmp_path / 'card.json').read_text())
  assert card['privacy_unit'] == 'one user of the training set'
  assert 'For any one user, with all rows of that user,' in card['statement']
  assert card['local_steps'] is None
  assert 'Physical batch' in private.privacy_summary()
  assert private.privacy_summary().endswith(' users.')


@pytest.mark.usefixtures('random_sums')
def test_saved_runs_and_journals_keep_the_unit(tmp_path):
  plan = plan_of(noise=tfcactus.Gaussian(2.0), sampling_prob=0.25)
  path = tmp_path / 'run.journal'
  private = privatized(plan, journal=path, loss=MEAN)
  private.fit(users(q=0.25), verbose=0)
  private.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert again.plan == plan and again.guarantee().upper == private.guarantee().upper
  again.fit(users(q=0.25), verbose=0)
  assert again.guarantee().upper == plan.guarantee(8).upper
  other = dataclasses.replace(plan, unit='household')
  with pytest.raises(ValueError, match='journal .* plan'):
    privatized(other, journal=path).fit(users(q=0.25), verbose=0)
  with pytest.raises(ValueError, match='not trained privately by another plan'):
    privatized(other, private.inner)
  found = privatized(other, loss=MEAN)
  with pytest.raises(ValueError, match='unit, arithmetic, noisy_accuracy or releases'):
    found.load_weights(tmp_path / 'm.keras')
    found.guarantee()


def test_unit_batches_evaluate_and_predict_rows():
  private = privatized()
  assert private.predict(users(), verbose=0).shape == (12 * K, 3)
  loss, accuracy = private.evaluate(users(), verbose=0)[:2]
  logits = private.inner.predict(X, verbose=0)
  np.testing.assert_allclose(accuracy, np.mean(logits.argmax(1) == Y), atol=0.2)
  plain = model_of()
  plain.compile('sgd', MEAN)
  plain.fit(users().for_plain_training(), verbose=0)
  assert np.isfinite(loss)


def test_logged_losses_are_of_rows():
  private = privatized(rate=0.0)
  logs = private.fit(users(), verbose=0).history
  want = NONE(Y, private.inner(X)).numpy()
  np.testing.assert_allclose(logs['loss'][0], want.mean(), rtol=1e-5)


def _local(local=0.3, steps=3, **options):
  return privatized(local_steps=steps, local_learning_rate=local, **options)


def local_loop(model, rate=0.3, steps=3, weights=None):
  """Returns the sum of clipped differences of each user's steps, in plain Keras."""
  weights = np.ones(N, np.float32) if weights is None else weights
  start, variables, total = model.get_weights(), models.tf_variables(model), 0
  for each in np.unique(IDS):
    here = IDS == each
    for _ in range(steps):
      found, places = gradient(model, X[here], Y[here], weights[here]), np.cumsum(
          [np.prod(variable.shape) for variable in variables])[:-1]
      for variable, part in zip(variables, np.split(found, places)):
        variable.assign_sub(rate * part.reshape(variable.shape))
    total += clipped(flat(start) - weights_of(model))
    model.set_weights(start)
  return total


@representatives('options', [
    {'physical_batch_size': 5}, {}, {'physical_batch_size': 1}], number=1)
@representatives('steps', [3, 1], number=1)
def test_local_steps_equal_a_loop_over_users(options, steps):
  private = _local(steps=steps, **options)
  want = local_loop(private.inner, 0.3, steps, WEIGHTS)
  np.testing.assert_allclose(
      moved(users(sample_weight=WEIGHTS), private), want, atol=1e-5)


def test_one_small_local_step_is_a_gradient():
  private = _local(0.01, 1, plan=plan_of(l2_norm_clip=1e3))
  want = sum(gradient(private.inner, X[IDS == each], Y[IDS == each], np.ones(
      np.sum(IDS == each), np.float32)) for each in np.unique(IDS))
  np.testing.assert_allclose(moved(users(), private), 0.01 * want, atol=1e-4)


@pytest.mark.more
def test_local_steps_restore_the_weights_to_the_bit():
  """A learning rate of zero shows the weights after a step of all users."""
  private = privatized(
      rate=0.0, local_steps=5, local_learning_rate=3.3, physical_batch_size=5)
  before = private.inner.get_weights()
  private.fit(users(), verbose=0)
  for a, b in zip(before, private.inner.get_weights()):
    np.testing.assert_array_equal(a, b)


@representatives('scale', [np.nan, 1.0, 1e30])
def test_local_steps_of_a_user_leave_the_others_alone(scale):
  """The worst user comes first: its id is the least."""
  rows = np.full((3, 6), 50.0, np.float32)
  x, y = np.concatenate([rows, X]), np.concatenate([[0, 1, 2], Y])
  weights = np.concatenate([np.full(3, scale), np.ones(N)])
  data = [ours.UnitData(x[part:], y[part:], units=np.concatenate([[1] * 3, IDS])[part:],
                        examples_per_unit=K, num_units=13,
                        sample_weight=np.nan_to_num(weights, nan=1e38)[part:])
          for part in (0, 3)]
  found, want = (moved(ours.PoissonBatches(each, sampling_prob=1.0), _local(
      plan=plan_of(num_examples=13))) for each in data)
  assert np.linalg.norm(found - want) <= CLIP * (1 + 1e-5)
  if scale != 1:
    np.testing.assert_allclose(found, want, atol=5e-6)


def test_rows_of_a_user_may_mix_in_local_steps():

  class Centred(layers.Layer):
    """Subtracts the mean over the batch."""

    def call(self, inputs):
      return inputs - tf.reduce_mean(inputs, 0, keepdims=True)

  tf.keras.utils.set_random_seed(1)
  model = tf.keras.Sequential([layers.Input((6,)), Centred(), layers.Dense(3)])
  here = np.flatnonzero(np.isin(IDS, [id_ for id_ in np.unique(IDS)
                                      if np.sum(IDS == id_) == 4]))
  want = 0
  for each in np.unique(IDS[here]):
    rows = IDS == each
    want += clipped(0.2 * gradient(model, X[rows], Y[rows], np.ones(4, np.float32)))
  private = privatized(plan_of(num_examples=2), model, local_steps=1,
                       local_learning_rate=0.2)
  np.testing.assert_allclose(
      moved(users(X[here], Y[here], ids=IDS[here], k=4), private), want, atol=1e-5)


def test_local_steps_draw_dropout_afresh_for_each_user_and_step():
  tf.keras.utils.set_random_seed(1)
  model = tf.keras.Sequential([
      layers.Input((1000,)), layers.Dropout(0.5), layers.Dense(1, use_bias=False)])
  private = ours.privatize(
      model, plan_of(num_examples=40, l2_norm_clip=1e3), local_steps=2,
      local_learning_rate=1.0)
  private.compile(tf.keras.optimizers.SGD(1.0), lambda y, found: found[:, 0])
  found = moved(ours.PoissonBatches(
      np.ones((40, 1000), np.float32), np.zeros(40), 1.0, units=np.arange(40),
      examples_per_unit=1), private)
  # A weight moves by 2 in each of 80 draws that keep it, one half of them.
  assert abs(found.mean() - 80) < 6 * np.sqrt(80 / 1000)
  # Six standard errors or more. Draws shared by both steps would double it.
  assert 0.73 < found.var() / 80 < 1.4


@pytest.mark.more
def test_another_number_of_rows_asks_for_another_compile():
  private = privatized()
  private.fit(users(k=2), epochs=1, verbose=0)
  with pytest.raises(ValueError, match='call compile.. again'):
    private.fit(users(k=3), epochs=1, verbose=0)
  private.compile('sgd', NONE)
  private.fit(users(k=3), epochs=1, verbose=0)


def test_a_step_that_ends_in_an_error_leaves_no_guarantee():

  class Checked(layers.Layer):
    """Ends with an error in rows whose sum is far from zero."""

    def call(self, inputs):
      with tf.control_dependencies([
          tf.debugging.Assert(tf.reduce_max(inputs) < 1e6, ['too large'])]):
        return tf.identity(inputs)

  tf.keras.utils.set_random_seed(1)
  model = tf.keras.Sequential([
      layers.Input((6,)), layers.Dense(6), Checked(), layers.Dense(3)])
  # The second step of a user with a huge learning rate fails.
  private = privatized(plan_of(), model, local_steps=2, local_learning_rate=1e12)
  start = model.get_weights()
  with pytest.raises(tf.errors.InvalidArgumentError):
    private.fit(users(), verbose=0)
  if any(np.any(a != b) for a, b in zip(start, model.get_weights())):
    with pytest.raises(ValueError, match='weights changed outside'):
      private.guarantee()


def test_layers_that_keep_state_or_add_losses_have_no_local_steps():
  with pytest.raises(ValueError, match='write no variables|treat each example alone'):
    _local(model=tf.keras.Sequential([
        layers.Input((6,)), layers.BatchNormalization(), layers.Dense(3)]))
  model = tf.keras.Sequential([
      layers.Input((6,)), layers.Dense(3, activity_regularizer='l2')])
  with pytest.raises(ValueError, match='layers that add none with local_steps'):
    _local(model=model).fit(users(), verbose=0)


@pytest.mark.more
def test_local_steps_are_saved_and_on_the_card(tmp_path):
  private = privatized(local_steps=2, local_learning_rate=0.5, loss=MEAN)
  private.fit(users(), verbose=0)
  assert private.guarantee().upper == plan_of().guarantee(1).upper
  private.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  card = ours.make_run_card(again)
  assert (card['local_steps'], card['local_learning_rate']) == (2, 0.5)
  assert 'Each user takes 2 steps of SGD' in again.privacy_summary()


@pytest.mark.parametrize('options, words', [
    ({'local_steps': 1}, 'both local_steps and local_learning_rate'),
    ({'local_learning_rate': 1.0}, 'both local_steps and local_learning_rate'),
    ({'local_steps': 0, 'local_learning_rate': 1.0}, 'local_steps >= 1'),
    ({'local_steps': True, 'local_learning_rate': 1.0}, 'integer'),
    ({'local_steps': 1, 'local_learning_rate': 0.0}, 'local_learning_rate > 0'),
    ({'local_steps': 1, 'local_learning_rate': 1.0, 'augmentation_multiplicity': 2},
     'got 1 replicas and augmentation_multiplicity=2')])
def test_invalid_local_steps_raise(options, words):
  with pytest.raises(ValueError, match=words):
    privatized(**options)


def test_local_steps_need_a_plan_of_a_unit():
  with pytest.raises(ValueError, match="a plan of a unit with local_steps"):
    privatized(plan_of(unit='example'), local_steps=1, local_learning_rate=0.1)
