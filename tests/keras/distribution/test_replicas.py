"""Tests that replicas give the weights, counts and noise of one device."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import NONE, plan_of as tiny_plan, privatized
from tests.representatives import representatives
import tfcactus
from tfcactus import correlated
from tfcactus.keras import (
  AllocatedBatches,
  compat,
  CyclicBatches,
  DPKerasAdamOptimizer,
  DPKerasSGDOptimizer,
  EpsilonCallback,
  FixedSizeBatches,
  make_run_card,
  PoissonBatches,
  privatize,
  ShuffledBatches,
)
from tfcactus.keras.compat import precision
from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients import clipping
from tfcactus.keras.step import step_noise
from tfcactus.noise import discrete_gaussian
from tfcactus.randomness import SystemRandom

layers = tf.keras.layers
KERAS_3 = compat.versions.KERAS_3

N = 60
X = np.random.default_rng(0).normal(size=(N, 6, 6, 1)).astype(np.float32)
Y = np.arange(N) % 3


@functools.cache
def two_replicas():
  # All tests share one strategy: each new one restarts TensorFlow's collective keys.
  return tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])


def plan_of(noise=1e-3, prob=0.1, num_examples=N, **kwargs):
  return tiny_plan(
      noise=tfcactus.Gaussian(noise), l2_norm_clip=0.5, num_examples=num_examples,
      sampling_prob=prob, steps=30, **kwargs)


def inner(dtype=None):
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([
      layers.Input((6, 6, 1)), layers.Conv2D(3, 3, activation='relu', dtype=dtype),
      layers.GroupNormalization(1, dtype=dtype), layers.Flatten(),
      layers.Dense(3, dtype='float32')])


def dense(dtype=None):
  del dtype
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([
      layers.Input((6, 6, 1)), layers.Flatten(), layers.Dense(8, activation='relu'),
      layers.Dense(3)])


def recurrent(dtype=None):
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([
      layers.Input((6, 6, 1)), layers.Reshape((6, 6)), layers.LSTM(4, dtype=dtype),
      layers.Dense(3, dtype='float32')])


BATCHES = {
    'poisson': lambda plan: PoissonBatches(X, Y, plan.sampling_prob, seed=5,
                                           steps_per_epoch=15),
    'fixed': lambda plan: FixedSizeBatches(X, Y, 7, seed=5, steps_per_epoch=15),
    'shuffled': lambda plan: ShuffledBatches(X, Y, 4, seed=5),
    'allocated': lambda plan: AllocatedBatches(X, Y, 15, seed=5),
    'cyclic': lambda plan: CyclicBatches(X, Y, plan=plan, seed=5)}


def trained(strategy, plan, batches='poisson', optimizer=None, dtype=None, epochs=2,
            make=inner, class_weight=None, **kwargs):
  """Returns a trained model, and the logs of fit."""
  with replicas.scope(strategy):
    private = privatize(make(dtype), plan, seed=3, **kwargs)
    private.compile((optimizer or (lambda: tf.keras.optimizers.SGD(0.3, 0.9)))(),
                    NONE, metrics=['accuracy'], weighted_metrics=['accuracy'])
  history = private.fit(BATCHES[batches](plan), epochs=epochs, verbose=0,
                        class_weight=class_weight, callbacks=[EpsilonCallback()])
  return private, history.history


OWNERS = np.repeat(np.arange(20), [1, 5, 3, 3, 1, 5, 2, 4, 3, 3] * 2)
BATCHES['users'] = lambda plan: PoissonBatches(
    X, Y, plan.sampling_prob, seed=5, steps_per_epoch=15, units=OWNERS,
    examples_per_unit=5)


def adam():
  return tf.keras.optimizers.Adam(0.01, clipnorm=1.0)


ADAPTIVE = tfcactus.AdaptiveClipping()
CYCLIC = {'prob': 1 / 12, 'correlation': correlated.BandedStrategy(3).solve(24)}
CASES = {
    'sgd': {},
    'per layer': {'clipping': 'per_layer', 'batches': 'fixed',
                  'plan': {'prob': 7 / 60}},
    'automatic': {'clipping': 'automatic', 'batches': 'allocated',
                  'plan': {'prob': 1 / 15}, 'optimizer': adam},
    'adaptive': {'plan': {'adaptive_clipping': ADAPTIVE,
                          'noisy_accuracy': tfcactus.NoisyAccuracy()}, 'make': dense},
    'adaptive convolutions': {'plan': {'adaptive_clipping': ADAPTIVE}},
    'shuffled': {'batches': 'shuffled', 'optimizer': adam},
    'cyclic': {'batches': 'cyclic', 'plan': CYCLIC},
    'nearly always empty': {'plan': {'prob': 0.01}},
    'vectorised': {'engine': 'vectorized', 'class_weight': {0: 1.0, 1: 2.0}},
    'small parts': {'physical_batch_size': 2},
    'several views': {'augmentation_multiplicity': 2},
    'whole numbers': {'plan': {'arithmetic': 'integer'}, 'make': dense},
    'whole counts': {'plan': {
        'arithmetic': 'integer', 'adaptive_clipping': ADAPTIVE,
        'noisy_accuracy': tfcactus.NoisyAccuracy()}, 'make': dense},
    'whole numbers, nearly always empty': {'plan': {
        'arithmetic': 'integer', 'adaptive_clipping': ADAPTIVE, 'prob': 0.01},
                                           'make': dense},
    'users': {'batches': 'users', 'plan': {'unit': 'user', 'num_examples': 20}},
    'rmsprop': {'optimizer': lambda: tf.keras.optimizers.RMSprop(0.003)},
    'recurrent': {'make': recurrent, 'plan': {'adaptive_clipping': ADAPTIVE}},
    'recurrent, per layer': {'make': recurrent, 'clipping': 'per_layer'},
    'recurrent bfloat16': {'make': recurrent, 'dtype': 'mixed_bfloat16',
                           'tolerance': 2e-2},
    'mixed bfloat16': {'dtype': 'mixed_bfloat16', 'tolerance': 2e-2},
    'mixed float16': {'dtype': 'mixed_float16', 'tolerance': 2e-2}}
OFTEN = ('adaptive', 'adaptive convolutions', 'whole numbers', 'whole counts',
         'cyclic', 'users', 'recurrent')


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=() if name == 'adaptive' else
                 pytest.mark.more if name in OFTEN else pytest.mark.slow)
    for name in CASES])
def test_two_replicas_do_what_one_device_does(name):
  case = dict(CASES[name])
  plan, tolerance = plan_of(**case.pop('plan', {})), case.pop('tolerance', 1e-6)
  (one, logs), (two, others) = (
      trained(strategy, plan, **case)
      for strategy in (tf.distribute.get_strategy(), two_replicas()))
  assert one.released_steps == two.released_steps > 20
  assert one.ledger() == two.ledger()
  assert logs.keys() == others.keys()
  for key, values in logs.items():
    # Rounding may change the answer for one example.
    room = 1e-5 if tolerance < 1e-5 else 0.05
    np.testing.assert_allclose(others[key], values, rtol=room, atol=room)
  moved, start = 0.0, case.get('make', inner)().get_weights()
  for a, b, before in zip(one.inner.get_weights(), two.inner.get_weights(), start):
    np.testing.assert_allclose(b, a, atol=tolerance)
    moved = max(moved, np.abs(a - before).max())
  assert moved > 0.02
  assert_same_bits(two)


def assert_same_bits(model):
  for variable in model.inner.trainable_variables:
    first, second = compat.models.tf_variable(variable).values
    np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_gram_norms_count_the_examples_of_all_replicas():
  found = []
  for strategy in (tf.distribute.get_strategy(), two_replicas()):
    with replicas.scope(strategy):
      private = privatize(inner(), plan_of(prob=0.5))
      drawn = private._step.routes().drawn
      found.append((drawn, clipping.most_positions(drawn, 8),
                    private.physical_batch_size))
  (alone, most, rows), (both, fewer, of_half) = found
  assert alone == both == pytest.approx(30 + 8 * 15**0.5)
  assert fewer == pytest.approx(most - 1 / 8, abs=1e-9) and of_half < rows


def test_replicas_add_up_whole_numbers_and_noise_once():
  strategy, scale = two_replicas(), tf.constant(0.7, tf.float64)
  sampler = step_noise.IntegerSampler(tfcactus.Gaussian(1.3), seed=1)
  given = np.array([0.3, -2.0, 1e3])

  def one():
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    part = [tf.constant(given) * tf.cast(index + 1, tf.float64)]
    share = sampler.add_to(part, scale) if replicas.is_first() else (
        sampler.without_noise(part, scale))
    return replicas.summed(share, [tf.zeros(3, tf.float64)], functools.partial(
        sampler.total, scale=scale))[0]

  totals = tf.function(lambda: strategy.run(one))().values
  per_unit = sampler.per_unit(0.7)
  noise = discrete_gaussian.draw(SystemRandom(1, 'noise'), 3)
  whole = np.rint(given * per_unit) + np.rint(2 * given * per_unit) + noise
  for total in totals:
    np.testing.assert_array_equal(total.numpy(), whole * (1 / per_unit))


def test_replicas_that_saw_other_bits_fail_together():
  strategy = two_replicas()

  @tf.function(autograph=False)
  def told(numbers):
    def one():
      index = tf.distribute.get_replica_context().replica_id_in_sync_group
      return replicas.if_same(numbers[int(tf.get_static_value(index))], [tf.ones(3)])[0]
    return strategy.run(one)

  assert all(np.all(each.numpy() == 1) for each in told([2**62, 2**62]).values)
  with pytest.raises(tf.errors.InvalidArgumentError, match='all machines, got others'):
    told([2**62, 2**62 + 1])


def test_replicas_of_whole_numbers_need_a_plan_without_dim_and_equal_devices():
  with two_replicas().scope():
    with pytest.raises(ValueError, match='Leave dim out'):
      privatized(plan_of(arithmetic='integer', dim=323), dense())
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(tf.DeviceSpec, 'from_string', lambda name: tf.DeviceSpec(
          device_type='GPU' if name.endswith('0') else 'CPU', device_index=0))
      patch.setattr(tf.config, 'get_visible_devices', lambda kind: [])
      patch.setattr(tf.config, 'list_logical_devices', lambda kind: ['split'])
      with pytest.raises(ValueError, match='devices of one kind'):
        privatized(plan_of(arithmetic='integer'), dense())


@pytest.mark.parametrize('used, logical, alike', [
    ((0, 2), 3, True), ((0, 1), 3, False), ((0, 2), 4, False)])
def test_only_the_devices_of_the_strategy_have_to_be_alike(
    monkeypatch, used, logical, alike):
  """A GPU of another kind does not matter, unless a GPU is split into several."""
  left = iter(used)
  monkeypatch.setattr(tf.DeviceSpec, 'from_string', lambda name: tf.DeviceSpec(
      device_type='GPU', device_index=next(left)))
  monkeypatch.setattr(tf.config, 'get_visible_devices', lambda kind: [0, 1, 2])
  monkeypatch.setattr(tf.config, 'list_logical_devices', lambda kind: [0] * logical)
  monkeypatch.setattr(tf.config.experimental, 'get_device_details',
                      lambda device: {'device_name': 'other' if device == 1 else 'one'})
  with two_replicas().scope(), (contextlib.nullcontext() if alike else pytest.raises(
      ValueError, match='devices of one kind')):
    replicas.check_alike()


def test_local_steps_on_replicas_are_refused():
  with two_replicas().scope():
    with pytest.raises(ValueError, match='one replica .* got 2 replicas'):
      privatize(inner(), plan_of(unit='user'), local_steps=1, local_learning_rate=0.1)


@pytest.mark.more
def test_a_model_without_input_shapes_trains_alike_on_replicas():
  with two_replicas().scope():
    private = privatize(tf.keras.Sequential([layers.Flatten(), layers.Dense(3)]),
                        plan_of())
    private.compile(tf.keras.optimizers.SGD(0.1), NONE)
  private.fit(PoissonBatches(X, Y, 0.1), verbose=0)
  assert private.released_steps == 10 and private.guarantee().steps == 10
  assert_same_bits(private)


@pytest.mark.more
def test_arrays_on_replicas_are_counted_as_passes():
  plan, found = plan_of(1e-9), []
  for strategy in (tf.distribute.get_strategy(), two_replicas()):
    with replicas.scope(strategy):
      private = privatized(plan, dense(), tf.keras.optimizers.SGD(0.3))
    private.fit(X, Y, batch_size=15, epochs=2, verbose=0, shuffle=False)
    found.append(private)
  one, two = found
  assert one.ledger().steps == two.ledger().steps == 8
  assert one.ledger().epochs == two.ledger().epochs == 2
  assert one.ledger().sampling == two.ledger().sampling
  for a, b in zip(one.inner.get_weights(), two.inner.get_weights()):
    np.testing.assert_allclose(b, a, atol=1e-6)


def _wide():
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([layers.Input((6, 6, 1)), layers.Flatten(),
                              layers.Dense(3000), layers.Dense(3)])


def _noise_of_a_step(strategy, drop_in, randomness='host'):
  plan = plan_of(2.0)
  with strategy.scope():
    model = _wide()
    if drop_in:
      model.compile(DPKerasSGDOptimizer.from_plan(plan, learning_rate=1.0), NONE)
    else:
      private = privatize(model, plan, randomness=randomness)
      private.compile(tf.keras.optimizers.SGD(1.0), NONE)
  before = model.get_weights()
  batches = PoissonBatches(X, Y, 0.1, steps_per_epoch=1, physical_batch_size=2)
  (model if drop_in else private).fit(batches, verbose=0)
  moved = np.concatenate([(a - b).ravel() for a, b in zip(model.get_weights(), before)])
  return np.std(moved) / (2.0 * plan.l2_norm_clip / plan.expected_batch_size)


@pytest.mark.parametrize('drop_in', [
    False, pytest.param(True, marks=pytest.mark.slow)])
def test_noise_is_added_once_for_all_replicas(monkeypatch, drop_in):
  # 120,000 coordinates: a standard deviation is within .2 %; gradients are short.
  assert _noise_of_a_step(two_replicas(), drop_in) == pytest.approx(1, rel=0.02)
  monkeypatch.setattr(replicas, 'is_first', lambda of_worker: True)
  assert _noise_of_a_step(two_replicas(), drop_in) == pytest.approx(2**0.5, rel=0.02)


@pytest.mark.more
def test_noise_of_the_device_is_added_once_for_all_replicas():
  assert _noise_of_a_step(two_replicas(), False, 'device') == pytest.approx(1, rel=0.02)


@pytest.mark.more
@pytest.mark.parametrize('make', [
    lambda plan: DPKerasSGDOptimizer.from_plan(plan, learning_rate=0.3, momentum=0.9),
    pytest.param(lambda plan: DPKerasAdamOptimizer.from_plan(plan, learning_rate=0.01),
                 marks=pytest.mark.slow)])
def test_drop_in_optimizers_train_as_on_one_device(make):
  plan, found = plan_of(1e-9), []
  data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(12)
  for strategy in (tf.distribute.get_strategy(), two_replicas()):
    with replicas.scope(strategy):
      model = inner()
      model.compile(make(plan), NONE)
    model.fit(data, epochs=3, verbose=0)
    assert model.optimizer.released_steps == 15 and model.optimizer.sound
    found.append(model.get_weights())
  for a, b in zip(*found):
    np.testing.assert_allclose(b, a, atol=1e-6)


@pytest.mark.usefixtures('random_sums')
def test_drop_in_optimizers_report_epsilon_on_replicas():
  plan = plan_of(1.0)
  with two_replicas().scope():
    model = dense()
    model.compile(DPKerasSGDOptimizer.from_plan(plan), NONE)
  batches = PoissonBatches(X, Y, 0.1, physical_batch_size=2)
  epsilon = EpsilonCallback(batches=batches)
  model.fit(batches, verbose=0, callbacks=[epsilon])
  assert epsilon.guarantee.upper == plan.guarantee(10).upper


@pytest.mark.more
def test_a_gradient_that_is_not_finite_on_any_replica_is_noticed():
  x = X.copy()
  x[11] = np.inf  # Of the second replica's share.
  with two_replicas().scope():
    model = dense()
    model.compile(DPKerasSGDOptimizer.from_plan(plan_of()), NONE)
  model.fit(tf.data.Dataset.from_tensor_slices((x, Y)).batch(12), verbose=0)
  assert not model.optimizer.sound


@pytest.mark.more
def test_drop_in_optimizers_on_replicas_need_the_expected_batch_size():
  for kwargs in ({}, {'num_microbatches': 12},
                 {'expected_batch_size': 12, 'gradient_accumulation_steps': 2}):
    with two_replicas().scope():
      model = inner()
      model.compile(DPKerasSGDOptimizer(0.5, 1.0, **kwargs), NONE)
    with pytest.raises(ValueError, match='expected_batch_size, and gradient_acc'):
      model.fit(X, Y, batch_size=12, verbose=0)


@pytest.mark.usefixtures('random_sums')
def test_cards_and_journals_count_steps_and_changes_of_weights_are_noticed(tmp_path):
  plan = plan_of(1.0)
  with two_replicas().scope():
    private = privatized(plan, dense(), tf.keras.optimizers.Adam(0.1),
                         journal=tmp_path / 'journal')
  private.fit(PoissonBatches(X, Y, 0.1), verbose=0, callbacks=[
      EpsilonCallback(run_card=tmp_path / 'card')])
  card = make_run_card(private)
  assert card['released_steps'] == 10 and card['epsilon']['upper'] == (
      plan.guarantee(10).upper)
  assert card['replicas'] == 2 and card['workers'] == 1
  assert private.ledger().guarantee()[0] is not None
  private.inner.set_weights([w + 1 for w in private.inner.get_weights()])
  assert 'weights changed' in private.ledger().guarantee()[1]
  with two_replicas().scope():
    again = privatize(dense(), plan, journal=tmp_path / 'journal')
  assert again.released_steps == 10


def test_models_of_another_strategy_are_refused():
  strategy = two_replicas()
  outside = inner()
  with strategy.scope():
    inside = inner()
    with pytest.raises(ValueError, match='scope of the MirroredStrategy.*one device'):
      privatize(outside, plan_of()).build((None, 6, 6, 1))
  with pytest.raises(ValueError, match='in the scope that the model was made in'):
    privatize(inside, plan_of())
  with tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1']).scope():
    with pytest.raises(ValueError, match='of another strategy'):
      privatize(inside, plan_of())


class ParameterServerStrategyV2:  # Only names are checked.
  num_replicas_in_sync = 1  # Whatever the number of workers.


class TPUStrategy:
  num_replicas_in_sync = 1


class HomeMade:
  num_replicas_in_sync = 3


@pytest.mark.parametrize('strategy, reason', [
    (ParameterServerStrategyV2, 'no step has a sum'), (TPUStrategy, 'XLA'),
    (HomeMade, 'does not know')])
def test_other_strategies_are_refused_in_a_sentence(monkeypatch, strategy, reason):
  monkeypatch.setattr(tf.distribute, 'get_strategy', strategy)
  with pytest.raises(ValueError, match=f'{strategy.__name__}.*{reason}.*Use tf.dist'):
    replicas.check_devices()


def test_central_storage_is_refused():
  strategy = tf.distribute.experimental.CentralStorageStrategy(['CPU:0', 'CPU:1'])
  with strategy.scope():
    with pytest.raises(ValueError, match='CentralStorageStrategy.*are not tested'):
      privatize(inner(), plan_of())


@pytest.mark.skipif(not KERAS_3, reason='Keras 2 supports both')
@pytest.mark.parametrize('kwargs', [{'use_ema': True},
                                    {'gradient_accumulation_steps': 2}])
def test_optimizers_that_keras_3_cannot_run_on_replicas_are_refused(kwargs):
  with two_replicas().scope():
    private = privatize(inner(), plan_of())
    with pytest.raises(ValueError, match='use_ema=False and gradient_accum'):
      private.compile(tf.keras.optimizers.SGD(0.1, **kwargs), NONE)


def test_shares_partition_a_batch():
  index = np.arange(11)
  for total in (1, 2, 3, 16):
    parts = [part for first in range(total)
             for part in replicas.Shares(total, first, 1).of(index)]
    np.testing.assert_array_equal(np.concatenate(parts), index)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@representatives('drop_in', [False, True])
@pytest.mark.more
def test_sums_with_noise_are_rounded_once(monkeypatch, drop_in):
  """Bits below the grid of the rounded noise would reveal other shares."""
  given, totals, summed = [], [], replicas.summed

  def recorded(sums, like, rounded):
    given.extend(each.dtype for each in sums)
    step = precision.grid(rounded.keywords['scale'])
    found = summed(sums, like, rounded)
    totals.extend(each.dtype for each in found)
    on_grid = [tf.cast(each, tf.float64) / step for each in found]
    with tf.control_dependencies([tf.debugging.assert_equal(each, tf.round(each))
                                  for each in on_grid]):
      return [tf.identity(each) for each in found]

  monkeypatch.setattr(replicas, 'summed', recorded)
  with two_replicas().scope():
    model = dense() if drop_in else privatize(dense(), plan_of())
    model.compile(DPKerasSGDOptimizer.from_plan(plan_of()) if drop_in else
                  tf.keras.optimizers.SGD(0.1), NONE)
  model.fit(PoissonBatches(
      X, Y, 0.1, physical_batch_size=2, steps_per_epoch=1), verbose=0)
  assert set(given) == {tf.float64}
  assert set(totals) == {tf.float64 if drop_in else tf.float32}


def test_part_of_needs_several_workers_and_no_seed():
  with pytest.raises(ValueError, match='no seed with part_of'):
    PoissonBatches(X, Y, 0.1, part_of=2 * N, seed=1)
  with pytest.raises(ValueError, match=f'part_of >= {N}'):
    PoissonBatches(X, Y, 0.1, part_of=N - 1)
  batches = PoissonBatches(X, Y, 0.1, part_of=2 * N)
  assert batches.num_examples == 2 * N and len(batches.two_examples()[1]) == 2
  private = privatize(inner(), plan_of(num_examples=2 * N))
  private.compile('sgd', NONE)
  with pytest.raises(ValueError, match='part_of=120 examples with one worker'):
    private.fit(batches, verbose=0)
  with pytest.raises(ValueError, match='does not draw a part'):
    FixedSizeBatches(X, Y, 6).scheme.of_part(3)
