"""Tests of private validation: its noise, sensitivity, account, and stops by it."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, privatized, X, Y
import tfcactus
from tfcactus import accounting, guarantee as guarantee_lib
from tfcactus.keras import (
  EpsilonCallback,
  make_run_card,
  PoissonBatches,
  PrivateEarlyStopping,
  PrivateValidation,
  Split,
  UnitData,
)
from tfcactus.keras.data import data_sources
from tfcactus.randomness import SystemRandom
from tfcactus.release import noise_sources

# What counts here is what is released and when: no test looks at gradients.
pytestmark = pytest.mark.usefixtures('random_sums')

KEY = bytes(range(32))
MONITOR = 'val_private_accuracy'


def divided(split=None, **kwargs):
  return (split or Split(0.4, key=KEY)).sides(X, Y, **kwargs)


def validation_of(data=None, **changes):
  return PrivateValidation(divided().validation if data is None else data, **{
      **dict(noise=tfcactus.Gaussian(20.0), releases=5), **changes})


def model_of(validation, training=None, steps=20, **changes):
  training = divided().training if training is None else training
  plan = plan_of(**{**dict(num_examples=training.num_examples, steps=steps,
                           releases=[validation]), **changes})
  return privatized(plan), PoissonBatches(training, sampling_prob=0.25)


def fitted(validation, *callbacks, epochs=5, **changes):
  model, batches = model_of(validation, **changes)
  history = model.fit(batches, epochs=epochs, callbacks=[*callbacks, validation],
                      verbose=0).history
  return model, history


def exact(validation, model):
  """Returns the exact vector of a validation, and the number of its examples."""
  validation.set_model(model)
  validation._run = None
  return validation._sums()


def seeded(monkeypatch, seed=0):
  rng = SystemRandom(seed)
  monkeypatch.setattr(noise_sources, 'generator', lambda given: rng)


def test_logs_have_metrics_with_their_standard_error():
  validation = validation_of(
      metrics=['accuracy', ('loss', 3.0)], noise=tfcactus.Gaussian(1e-3))
  model, history = fitted(validation)
  held = divided().validation
  x, y = held.rows(np.arange(held.num_examples))
  losses = np.asarray(NONE(y, model(x)))
  accuracy = np.mean(np.argmax(model(x), 1) == y)
  assert validation.num_examples == held.num_examples  # Next to no noise.
  assert history[MONITOR][-1] == pytest.approx(accuracy, abs=1e-3)
  assert history['val_private_loss'][-1] == pytest.approx(
      np.mean(np.minimum(losses, 3.0)), abs=1e-3)
  error = 1e-3 * math.sqrt(2) / 2 / held.num_examples
  assert history[f'{MONITOR}_error'] == pytest.approx([error] * 5, rel=1e-12)
  assert history['val_private_loss_error'][0] == pytest.approx(3 * error)


@pytest.mark.parametrize('metrics', [
    ['accuracy'], ['accuracy', ('loss', 2.0)],
    ['accuracy', ('loss', 0.5), ('margin', lambda y, z: z[:, 0] - z[:, 1], 3.0)]])
def test_noise_has_the_accounted_scale(metrics, monkeypatch):
  seeded(monkeypatch)
  count, sigma = 800, 7.0
  validation = validation_of(metrics=metrics, releases=count, num_examples=16,
                             noise=tfcactus.Gaussian(sigma))
  model, _ = model_of(validation, steps=count)
  total, _ = exact(validation, model)
  scale = sigma * math.sqrt(len(metrics)) / 2
  noise = np.array([(validation._noisy(total, validation._sensitivity, 2.0**-20) -
                     total) / scale for _ in range(count)])
  law = stats.chi2(noise.size)
  assert 1e-4 < law.cdf(np.sum(noise**2)) < 1 - 1e-4
  # Noise of 0.85 times the scale would be rejected.
  assert not 1e-4 < law.cdf(np.sum((0.85 * noise)**2)) < 1 - 1e-4
  # What the logs show is this noise, in units of the metric.
  bound = 1.0
  errors = noise[:, 0] * scale / 16 * bound
  assert np.std(errors) == pytest.approx(sigma * math.sqrt(len(metrics)) / 32, rel=0.1)


def test_twenty_answers_of_half_sensitivity_cost_half_as_much():
  # Reference number of the design: sigma = 17 answers, twenty releases.
  plan = plan_of(steps=1, releases=[accounting.ValidationDpEvent(
      accounting.noise_event(tfcactus.Gaussian(34.0)), 20, 'coin', 'a split')])
  cost = plan.guarantee().sides[1]
  account = accounting.PhiAccountant().compose(accounting.noise_event(
      tfcactus.Gaussian(1 / 0.13153)))
  assert cost.upper == pytest.approx(account.get_epsilon(1e-5), rel=1e-3)


def fuzz_rows(rng, count):
  """Returns rows of all sorts, some unusable, with labels."""
  x = rng.normal(size=(count, 6)).astype(np.float32) * 10.0**rng.integers(-2, 4)
  x[rng.random(count) < 0.2] = rng.choice([np.nan, np.inf, -np.inf])
  x[rng.random(count) < 0.1] = 0
  return x, rng.integers(0, 3, count)


@pytest.mark.parametrize('units', [False, True])
def test_one_record_moves_the_vector_by_at_most_the_sensitivity(units):
  rng = np.random.default_rng(3)
  metrics = ['accuracy', ('loss', 1.5), (
      'first', lambda y, z: 1 / (z[:, 0] - z[:, 0]), 2.0)]  # Always NaN.
  model, reach = model_of(validation_of())[0], []

  made = []

  def sums(x, y, ids):
    data = UnitData(x, y, units=ids, examples_per_unit=12) if units else (
        data_sources.ArrayData(x, y))
    if not made:
      made.append(validation_of(data, metrics=metrics))
      exact(made[0], model)
    made[0]._data = data  # Traced once.
    total, count = made[0]._sums()
    assert np.all(np.rint(total * 2**20) == total * 2**20)
    return np.append(total, count)

  for _ in range(25):
    count = int(rng.integers(3, 12))
    x, y = fuzz_rows(rng, count)
    ids = rng.integers(0, 4, count) if units else np.arange(count)
    one = rng.choice(ids)
    others = ids != one
    if not others.any():
      continue
    whole = sums(x, y, ids)
    without = sums(x[others], y[others], ids[others])
    other = x.copy(), y.copy()
    other[0][~others], other[1][~others] = fuzz_rows(rng, int((~others).sum()))
    replaced = sums(*other, ids)
    zeroed = x.copy()
    zeroed[~others] = np.nan  # An example that contributes nothing.
    np.testing.assert_array_equal(sums(zeroed, y, ids), without)
    assert np.linalg.norm((whole - without)[:-1]) <= math.sqrt(3) / 2
    assert np.linalg.norm((whole - replaced)[:-1]) <= math.sqrt(3)
    assert abs(whole - without)[-1] <= 1 and abs(whole - replaced)[-1] <= 1
    reach.append(np.max(np.abs((whole - replaced)[0])))
  assert max(reach) == 1 or units  # The bound under replace is attained.


@pytest.mark.more
def test_a_model_that_mixes_rows_in_inference_is_run_on_single_rows():
  mixing = tf.keras.layers.Lambda(lambda z: z - tf.reduce_mean(z, 0, keepdims=True))
  validation = validation_of(metrics=['accuracy', ('loss', 2.0)])
  plan = plan_of(num_examples=22, releases=[validation])
  with pytest.warns(UserWarning, match='statistic over the batch'):
    model = privatized(plan, inner(mixing))
  total, count = exact(validation, model)
  assert validation._size == 1
  held = divided().validation
  alone = [PrivateValidation(*held.rows(np.array([i])), noise=tfcactus.Gaussian(1.0),
                             metrics=['accuracy', ('loss', 2.0)], releases=1)
           for i in range(held.num_examples)]
  np.testing.assert_allclose(total, sum(exact(each, model)[0] for each in alone))
  assert count == held.num_examples


def test_early_stopping_pays_for_all_planned_steps(monkeypatch):
  monkeypatch.setattr(PrivateValidation, '_noisy', lambda self, vector, *_: (
      np.ones(len(vector)) * 10))  # No improvement.
  validation, callback = validation_of(), EpsilonCallback()
  model, history = fitted(
      validation, callback, PrivateEarlyStopping(patience=1))
  assert len(history['loss']) == 2 and model.released_steps == 8
  planned = model.plan.guarantee()
  assert planned.steps == 20 and model.guarantee().upper == planned.upper
  assert history['epsilon'] == [planned.upper] * 2
  assert callback.guarantee == model.guarantee()
  assert make_run_card(model)['epsilon']['upper'] == planned.upper
  # The epsilon of the steps that ran is smaller, and is shown nowhere.
  assert model.plan.guarantee(8).upper < planned.upper
  assert 'Of these 20, 8 were released; all count' in model.guarantee().statement


def test_training_beyond_the_plan_is_labelled():
  validation = validation_of()
  model, history = fitted(validation)
  del history
  assert model.guarantee().conditions == ()
  _, batches = model_of(validation)
  with pytest.warns(UserWarning, match='beyond steps=20'):
    model.fit(batches, epochs=1, verbose=0)
  found = model.guarantee()
  assert found.steps == 24 and 'beyond the 20 planned' in found.conditions[0]


def test_a_planned_target_counts_the_steps_that_it_allows():
  validation = validation_of()
  plan = plan_of(num_examples=22, steps=1000, releases=[validation])
  plan = dataclasses.replace(plan, target_epsilon=plan.guarantee(20).upper)
  model, batches = privatized(plan), PoissonBatches(
      divided().training, sampling_prob=0.25)
  model.fit(batches, epochs=1, verbose=0)
  assert model.guarantee().steps == plan.steps_within(plan.target_epsilon) == 20
  with pytest.raises(ValueError, match='Expected target_epsilon of the plan'):
    model.fit(batches, callbacks=[EpsilonCallback(target_epsilon=1e3)], verbose=0)


def test_the_guarantee_is_the_maximum_of_the_sides():
  for multiplier, larger in ((20.0, 0), (0.5, 1)):
    validation = validation_of(noise=tfcactus.Gaussian(multiplier))
    model, _ = fitted(validation)
    found = model.guarantee()
    alone = plan_of(num_examples=22, steps=20).guarantee()
    beside = accounting.PhiAccountant().compose(
        accounting.noise_event(tfcactus.Gaussian(multiplier)), 6).get_epsilon(1e-5)
    assert found.sides[0].upper == alone.upper and found.sides[1].upper == beside
    assert found.upper == max(alone.upper, beside) == found.sides[larger].upper
    assert '6 planned releases of validation' in found.statement
    with pytest.raises(ValueError, match='ask each of its `sides`'):
      found.report()
    assert found.sides[1].report(false_positive=[0.01])
    # A person with rows on both sides pays for both.
    assert model.guarantee(rows_of_one=2).upper > found.upper


def test_two_validations_of_one_event_are_refused_in_one_fit():
  validation, another = validation_of(), validation_of()
  model, batches = model_of(validation)
  with pytest.raises(ValueError, match='got two, of which the plan counts one'):
    model.fit(batches, epochs=5, callbacks=[validation, another], verbose=0)
  assert model.released_steps == 0


def test_without_a_split_the_guarantee_composes():
  validation = PrivateValidation(X, Y, noise=tfcactus.Gaussian(3.0), releases=5)
  plan = plan_of(steps=20, releases=[validation])
  both = guarantee_lib.guarantee(
      plan.step_event, 20, 1e-5, 'add-or-remove', statement='', releases=[
          validation.event.all_releases])
  model = privatized(plan)
  model.fit(PoissonBatches(X, Y, 0.25), epochs=5, callbacks=[validation], verbose=0)
  assert model.guarantee().upper == both.upper > plan_of(steps=20).guarantee().upper
  assert 'Covers 1 statistic released' in model.guarantee().statement


def test_a_split_of_fixed_size_has_no_guarantee_under_add_or_remove():
  last = Split(by='position', rule=lambda place: place >= 22, key=KEY)
  sides = divided(last)
  validation = validation_of(sides.validation)
  model, batches = model_of(validation, sides.training)
  model.fit(batches, epochs=5, callbacks=[validation], verbose=0)
  with pytest.raises(ValueError, match='an added record moves others'):
    model.guarantee('add-or-remove')
  # The relation that is proved takes the place of the default.
  assert model.guarantee().neighboring_relation == 'replace-special'
  assert model.guarantee('replace').neighboring_relation == 'replace-one'
  with pytest.raises(ValueError, match='another id'):
    plan_of(releases=[accounting.ValidationDpEvent(
        accounting.noise_event(tfcactus.Gaussian(3.0)), 1, 'id', 'x')]).guarantee(
            None, 'replace')


def test_callbacks_of_keras_work_on_the_releases(tmp_path):
  path = str(tmp_path / 'best.keras')
  validation = validation_of(noise=tfcactus.Gaussian(0.5))
  model, history = fitted(
      validation, tf.keras.callbacks.ModelCheckpoint(
          path, monitor=MONITOR, mode='max', save_best_only=True),
      tf.keras.callbacks.ReduceLROnPlateau(
          monitor=MONITOR, mode='max', factor=0.5, patience=0, min_delta=1.0),
      PrivateEarlyStopping(patience=9))
  assert float(np.asarray(model.optimizer.learning_rate)) < 0.01 / 4
  assert model.guarantee().upper == model.plan.guarantee().upper  # Weights are known.
  loaded = tf.keras.models.load_model(path)
  assert loaded.plan.releases == model.plan.releases
  assert loaded.guarantee().sides and len(history[MONITOR]) == 5


def test_best_weights_come_back(monkeypatch):
  values = iter([3.0, 9.0, 1.0, 1.0, 1.0])
  monkeypatch.setattr(PrivateValidation, '_noisy', lambda self, vector, *_: (
      np.full(len(vector), next(values))))
  seen = []
  validation = validation_of(num_examples=14)
  model, history = fitted(
      validation, PrivateEarlyStopping(patience=2), tf.keras.callbacks.LambdaCallback(
          on_epoch_end=lambda epoch, logs: seen.append(
              model_weights(validation.model))))
  assert len(history[MONITOR]) == 4
  np.testing.assert_array_equal(model_weights(model), seen[1])
  assert model.guarantee().upper == model.plan.guarantee().upper


def model_weights(model):
  return np.concatenate([np.asarray(w).ravel() for w in model.inner.get_weights()])


def test_epochs_without_a_release_stop_nothing():
  validation = validation_of(every=2, releases=2)
  _, history = fitted(validation, PrivateEarlyStopping(patience=1), epochs=4, steps=16)
  assert len(history['loss']) == 4
  assert len(history[MONITOR]) == 2


def test_epochs_after_the_last_release_are_trained():
  validation = validation_of(every=2, releases=3)
  model, history = fitted(validation, epochs=7, steps=28)
  assert len(history['loss']) == 7 and len(history[MONITOR]) == 3
  assert model.released_steps == 28
  few = validation_of(every=2, releases=3)
  model, batches = model_of(few, steps=32)
  with pytest.raises(ValueError, match='plan more releases'):
    model.fit(batches, epochs=8, callbacks=[few], verbose=0)
  assert model.released_steps == 0


def test_more_releases_than_planned_are_refused():
  validation = validation_of()
  model, history = fitted(validation)
  _, batches = model_of(validation)
  assert len(history[MONITOR]) == 5
  for again in (validation, validation_of()):
    with pytest.raises(ValueError, match='Expected at most 5 releases'):
      model.fit(batches, callbacks=[again], verbose=0)
  few = validation_of(releases=3)
  model, batches = model_of(few)
  with pytest.raises(ValueError, match='less often'):
    model.fit(batches, epochs=5, callbacks=[few], verbose=0)
  assert model.released_steps == 0  # Refused before any step.
  assert few.num_examples is None


def test_a_resumed_training_goes_on_with_the_releases_left(tmp_path):
  path = str(tmp_path / 'm.keras')
  validation = validation_of()
  model, _ = fitted(validation, epochs=2)
  model.save(path)
  resumed = tf.keras.models.load_model(path)
  _, batches = model_of(validation)
  with pytest.raises(ValueError, match='Expected num_examples, which the first part'):
    resumed.fit(batches, callbacks=[validation_of()], verbose=0)
  again = validation_of(num_examples=validation.num_examples)
  assert again.event == validation.event
  history = resumed.fit(batches, epochs=3, callbacks=[again], verbose=0).history
  assert len(history[MONITOR]) == 3
  with pytest.raises(ValueError, match='Expected at most 5 releases'):
    resumed.fit(batches, callbacks=[again], verbose=0)


def test_batches_and_validation_are_sides_of_the_same_data():
  validation = validation_of()
  model, batches = model_of(validation)
  order = np.random.default_rng(0).permutation(40)
  shuffled = Split(0.4, key=KEY).sides(X[order], Y[order]).training
  for data in (divided(Split(0.4)).training, divided().validation, X[:22]):
    wrong = PoissonBatches(data, None if data is not X[:22] and not isinstance(
        data, np.ndarray) else Y[:22], sampling_prob=0.25)
    with pytest.raises(ValueError, match='batches of the training side'):
      model.fit(wrong, callbacks=[validation], verbose=0)
  with pytest.raises(ValueError, match='batches of the training side'):
    model.fit(X[:22], Y[:22], batch_size=11, callbacks=[validation], verbose=0)
  with pytest.raises(ValueError, match='the same data, divided by one'):
    model.fit(PoissonBatches(shuffled, sampling_prob=0.25), callbacks=[validation],
              verbose=0)
  # Equal data may be divided twice.
  whole = PrivateValidation(X, Y, split=Split(0.4, key=KEY), releases=5,
                            noise=tfcactus.Gaussian(20.0))
  model.fit(batches, callbacks=[whole], verbose=0)


def test_events_made_by_hand_name_no_split():
  event = accounting.ValidationDpEvent(
      accounting.noise_event(tfcactus.Gaussian(20.0)), 6, 'coin')
  model = privatized(plan_of(releases=[event]))
  with pytest.raises(ValueError, match='batches of the training side'):
    model.fit(PoissonBatches(X, Y, 0.25), verbose=0)


def test_one_key_with_other_settings_is_another_split():
  validation = validation_of(divided(Split(0.5, key=KEY)).validation)
  model, batches = model_of(validation)
  with pytest.raises(ValueError, match='training side of the split'):
    model.fit(batches, callbacks=[validation], verbose=0)


def test_one_key_with_coins_of_ids_and_of_places_is_two_divisions():
  split = Split(0.4, key=KEY)
  training = split.sides(X, Y, ids=np.arange(len(X)) + 100).training
  validation = validation_of(split.sides(X, Y).validation)
  model, batches = model_of(validation, training)
  with pytest.raises(ValueError, match='training side of the split'):
    model.fit(batches, epochs=5, callbacks=[validation], verbose=0)


def test_another_plan_does_not_forget_the_validation():
  validation = validation_of()
  model, _ = fitted(validation)
  for changes in ({'releases': []}, {'steps': 5, 'target_epsilon': None}):
    with pytest.raises(ValueError, match='not trained privately by another plan'):
      tfcactus.keras.privatize(
          model.inner, dataclasses.replace(model.plan, **changes))


def test_a_cheaper_validation_does_not_take_over_the_steps(tmp_path):
  model, _ = fitted(validation_of(noise=tfcactus.Gaussian(0.5)))
  model.save_weights(tmp_path / 'w.weights.h5')
  other = privatized(dataclasses.replace(model.plan, releases=[validation_of()]))
  other.load_weights(tmp_path / 'w.weights.h5')
  with pytest.raises(ValueError, match='or releases than this one'):
    other.guarantee()


@pytest.mark.parametrize('monitor', ['loss', 'val_loss', 'accuracy', 'clip_norm'])
def test_raw_metrics_stop_nothing(monitor):
  validation = validation_of()
  with pytest.raises(ValueError, match=f'got monitor={monitor!r}'):
    fitted(validation, PrivateEarlyStopping(monitor, mode='min'))


def test_a_raw_log_of_the_same_name_is_refused():
  validation = validation_of()
  model, batches = model_of(validation)
  fake = tf.keras.callbacks.LambdaCallback(
      on_epoch_end=lambda epoch, logs: logs.update({MONITOR: 1.0}))
  fake.writes_logs = True
  with pytest.raises(ValueError, match='a value that may have no noise'):
    model.fit(batches, callbacks=[fake, validation], verbose=0)


def test_the_card_lists_what_private_validation_leaves_open():
  model, _ = fitted(validation_of())
  lines = make_run_card(model)['not_covered']
  assert any('early stopping by anything but' in line for line in lines)
  plain = privatized(plan_of())
  assert not set(make_run_card(plain)['not_covered'][:2]) & set(lines)
  assert make_run_card(plain)['not_covered'][2:] == lines[2:]


@pytest.mark.parametrize('make, text', [
    (lambda: validation_of(metrics=['auc']), 'Expected metrics of'),
    (lambda: validation_of(metrics=[]), 'different names'),
    (lambda: validation_of(metrics=None), 'metrics to be a list of'),
    (lambda: validation_of(metrics=['accuracy', 'accuracy']), 'different names'),
    (lambda: validation_of(metrics=[('loss', -1)]), 'the bound of loss'),
    (lambda: validation_of(divided().training), 'got its training side'),
    (lambda: validation_of(releases=0), 'Expected releases'),
    (lambda: validation_of(noise=tfcactus.Laplace(3.0), metrics=[
        'accuracy', ('loss', 1.0)]), 'dim'),
    (lambda: PrivateEarlyStopping('val_private_margin'), "Expected mode='max' or"),
    (lambda: plan_of(releases=[validation_of(), validation_of(
        divided(Split(0.5)).validation)]), 'sides of one split'),
    (lambda: PrivateEarlyStopping(patience='two'), 'patience to be an integer'),
    (lambda: validation_of(split=0.2), r'split=0.2; Split\(0.1\) makes one'),
    (lambda: EpsilonCallback(batches=X), 'of its own, got ndarray'),
    (lambda: tf.keras.Sequential([tf.keras.layers.Dense(3)]), ''),
])
def test_refusals(make, text):
  if text:
    with pytest.raises(ValueError, match=text):
      make()
    return
  plain = make()
  plain.compile('sgd', NONE)
  for callback in (validation_of(), PrivateEarlyStopping()):
    with pytest.raises(ValueError, match='Expected (a PrivateModel|to monitor)'):
      plain.fit(X, Y, callbacks=[callback], verbose=0)


def test_a_plan_without_the_validation_is_refused():
  model = privatized(plan_of())
  with pytest.raises(ValueError, match='once among its releases'):
    model.fit(PoissonBatches(X, Y, 0.25), callbacks=[validation_of()], verbose=0)
  twice = validation_of()
  model, batches = model_of(twice, releases=[twice, twice])
  with pytest.raises(ValueError, match='once among its releases'):
    model.fit(batches, callbacks=[twice], verbose=0)


def test_drop_in_optimizers_take_no_plan_with_validation():
  with pytest.raises(ValueError, match='keeps training and validation records apart'):
    plan_of(releases=[validation_of()]).check_drop_in()


def test_units_need_a_plan_of_units():
  ids = np.arange(40) // 2
  sides = Split(0.4, key=KEY).sides(X, Y, units=ids, examples_per_unit=2)
  validation = validation_of(sides.validation)
  plan = plan_of(num_examples=sides.training.num_examples, steps=20, unit='user',
                 releases=[validation])
  model, batches = privatized(plan), PoissonBatches(sides.training, sampling_prob=0.25)
  model.fit(batches, epochs=5, callbacks=[validation], verbose=0)
  found = model.guarantee()
  assert 'For any one user' in found.statement and found.conditions == ()
  rows = validation_of()
  model = privatized(plan_of(num_examples=22, unit='user', releases=[rows]))
  with pytest.raises(ValueError, match='Expected batches'):
    model.fit(PoissonBatches(divided().training, sampling_prob=0.25),
              callbacks=[rows], verbose=0)
