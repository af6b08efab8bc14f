"""Layers adapted privately: bounded contributions, right values, one statement."""

import functools
import math
import warnings

import dp_accounting
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras import tiny
from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, keras as private, release
from tfcactus.keras import adapting

layers = tf.keras.layers
EXACT = tfcactus.Gaussian(1e-6)
RNG = np.random.default_rng(0)
ROWS = RNG.normal(3, 2, (500, 3))
TEXTS = ['The cat, sat!'] * 40 + ['the dog'] * 30


def moments(data, *, axis=-1, noise=EXACT, bounds=(-70, 70), **options):
  layer = layers.Normalization(axis=axis)
  return layer, private.adapt(layer, data, noise=noise, bounds=bounds, **options)


def bins(data, *, num_bins=4, noise=EXACT, bounds=(0, 1), **options):
  layer = layers.Discretization(num_bins=num_bins)
  return layer, private.adapt(layer, data, noise=noise, bounds=bounds, **options)


def words(data, layer=None, *, noise=EXACT, delta=1e-6, **options):
  layer = layer or layers.StringLookup()
  result = private.adapt(layer, data, noise=noise, delta=delta, **options)
  return [str(each) for each in layer.get_vocabulary()], result


@pytest.fixture
def seen(monkeypatch):
  """Collects the records that reach noisy sums and thresholds."""
  found = []

  def recorded(name):
    original = getattr(release, name)

    def call(records, **options):
      records = [np.asarray(each) for each in (
          [records] if isinstance(records, np.ndarray) else records)]
      found.append(np.concatenate(records) if records else np.zeros(0))
      return original(iter(records), **options)

    monkeypatch.setattr(adapting.release, name, call)

  recorded('noisy_sum')
  recorded('thresholds')
  return found


IMAGES = RNG.normal(3, 2, (40, 4, 5, 3))


@representatives('data, axis', [
    (IMAGES, -1), (ROWS, -1), (ROWS, None), (IMAGES, (1, 3)), (IMAGES, None),
    (IMAGES, (3, -3)), (ROWS[:, 0], None), (ROWS > 3, -1),
    (np.arange(60, dtype=np.int16).reshape(20, 3), 1)], 3)
def test_moments_are_those_of_keras_up_to_noise(data, axis):
  layer, result = moments(data, axis=axis)
  theirs = layers.Normalization(axis=axis)
  theirs.adapt(np.asarray(data, np.float32))
  np.testing.assert_allclose(layer.mean, theirs.mean, rtol=1e-4)
  np.testing.assert_allclose(layer.variance, theirs.variance, rtol=1e-3)
  inputs = np.asarray(data[:2], np.float32)
  np.testing.assert_allclose(layer(inputs), theirs(inputs), atol=1e-3)
  assert np.shape(result.value[0]) == tuple(theirs.adapt_mean.shape)


@representatives('bounds', [(-2, 9), (np.array([-9, -5, 0]), np.array([30, 9, 3.5]))])
def test_moments_are_within_the_stated_error(bounds):
  low, high = bounds
  clipped = np.clip(ROWS, low, high)
  half = (np.asarray(high) - low) / 2
  missed = []
  for seed in range(200):
    _, result = moments(ROWS, noise=tfcactus.Gaussian(3.0), bounds=bounds, seed=seed)
    mean, variance = result.value
    off = np.max(np.abs(mean - clipped.mean(0)) / half)
    spread = np.max(np.abs(variance - clipped.var(0)) / half**2)
    missed.append(max(off, spread / 3) > result.error(0.5))
    assert np.all(variance > 0)
  assert sum(missed) <= stats.binom.ppf(1 - 1e-6, 200, 0.5)
  assert result.error(0.05) < 0.2


def hostile():
  with np.errstate(over='ignore'):
    return np.array([[math.nan, 1e308, -math.inf], [math.inf, -0.0, 5e-324],
                     [-1e308, 50, -50], [1, math.nan, math.nan]])


def test_no_row_contributes_more_than_its_bound(seen):
  data = np.concatenate([hostile(), ROWS])
  with warnings.catch_warnings():
    warnings.simplefilter('error')  # A warning would tell of values too.
    moments(data, bounds=(-3, 3))
  (records,) = seen
  assert records.shape == (504, 7) and np.all(np.isfinite(records))
  assert np.linalg.norm(records, axis=1).max() <= 2 + 1e-12
  assert np.all(records[:, 0] == 1)
  u = np.clip(np.nan_to_num(data, nan=0.0, posinf=9, neginf=-9), -3, 3) / 3
  np.testing.assert_allclose(records[:, 1:4], u, atol=1e-9)
  np.testing.assert_allclose(records[:, 4:], 1 - u**2, atol=1e-9)


def test_no_row_changes_what_another_contributes(seen):
  moments(IMAGES)
  moments(IMAGES[:39])
  moments(IMAGES[:1])
  whole, *parts = seen
  for part in parts:
    np.testing.assert_array_equal(whole[:len(part)], part)  # Bit for bit.
  seen.clear()
  units = np.arange(40) % 7
  moments(IMAGES, units=units)
  moments(IMAGES[units < 6], units=units[units < 6])
  order = RNG.permutation(40)
  moments(IMAGES[order], units=units[order])
  whole, part, other = seen
  np.testing.assert_array_equal(whole[:6], part)
  np.testing.assert_array_equal(whole, other)


def test_an_owner_of_many_rows_counts_once(seen):
  data = np.concatenate([np.full((1000, 1), 9.0), np.zeros((9, 1))])
  units = np.array(['a'] * 1000 + [f'b{i}' for i in range(9)])
  _, result = moments(data, units=units, bounds=(-10, 10))
  assert seen[-1].shape == (10, 3)
  assert result.value[0] == pytest.approx(0.9, abs=1e-3)
  layer, result = bins(data, units=units, bounds=(0, 10), num_bins=2)
  assert seen[-1].shape == (10,) and layer.bin_boundaries[0] < 0.01
  found, _ = words([['x']] * 1000 + [['y']] * 9, units=units, noise=tfcactus.Gaussian(
      0.5), delta=1e-6, words_per_unit=2)
  assert found == ['[UNK]', 'y']


@representatives('make', [iter, lambda parts: tf.data.Dataset.from_generator(
    lambda: iter(parts), output_signature=tf.TensorSpec((None, 3), tf.float64))])
def test_batches_give_what_arrays_give(make):
  parts = [ROWS[:100], ROWS[100:100], ROWS[100:]]
  options = dict(noise=tfcactus.Gaussian(2.0), seed=4)
  _, whole = moments(ROWS, **options)
  layer = layers.Normalization()
  layer.build((None, 3))
  result = private.adapt(layer, make(parts), bounds=(-70, 70), **options)
  np.testing.assert_array_equal(result.value, whole.value)
  assert bins(make(parts), bounds=(0, 9), **options)[1].value.tolist() == (
      bins(ROWS.tolist(), bounds=(0, 9), **options)[1].value.tolist())


def test_data_without_rows_are_adapted_to():
  layer, result = moments(np.zeros((0, 3)), noise=tfcactus.Gaussian(1.0))
  assert np.all(np.isfinite(result.value)) and np.all(result.value[1] > 0)
  assert np.all(np.diff(bins(np.zeros(0), noise=tfcactus.Gaussian(1.0))[1].value) >= 0)
  with pytest.warns(UserWarning, match='none that enough units hold'):
    found, result = words([])
  assert found == ['[UNK]'] and result.value == {} and result.event is not None
  with pytest.raises(ValueError, match='a layer that was built'):
    moments(iter([]))


def test_bins_are_quantiles_up_to_a_cell_and_the_noise():
  data = np.random.default_rng(7).beta(2, 5, 3000)
  layer, result = bins(data, num_bins=10)
  expected = np.quantile(data, np.arange(1, 10) / 10)
  np.testing.assert_allclose(layer.bin_boundaries, expected, atol=2 / 4096)
  ranks = np.array([np.mean(data <= each) for each in bins(
      data, num_bins=10, noise=tfcactus.Gaussian(4.0), seed=1)[1].value])
  most = bins(data, noise=tfcactus.Gaussian(4.0))[1].error(0.01) / 3000
  assert np.all(np.abs(ranks - np.arange(1, 10) / 10) < 2 * most + 0.002)
  assert result.event.events[0] == release.thresholds(
      [], num_values=4096, noise=EXACT).event


def test_a_row_of_several_numbers_counts_with_one_of_them(seen):
  data = np.column_stack([np.zeros(2000), np.ones(2000), np.full(2000, math.nan)])
  bins(data, seed=3)
  (cells,) = seen
  assert cells.shape == (2000,)
  assert stats.binomtest(int(np.sum(cells > 0)), 2000, 0.5).pvalue > 1e-6
  bins(hostile())
  assert seen[-1].shape == (4,)  # The last row has one number.


def test_texts_are_split_as_keras_splits_them():
  vectorize = layers.TextVectorization(ngrams=2)
  found, result = words(TEXTS, vectorize, words_per_unit=9)
  assert found[:3] == ['', '[UNK]', 'the'] and set(found[3:]) == {
      'cat', 'sat', 'the cat', 'cat sat', 'dog', 'the dog'}
  assert result.value['the'] == 70 and result.value['dog'] == 30
  vectorize([['the dog']])
  characters = layers.TextVectorization(split='character', standardize='lower')
  assert set(words(['Ab', 'aB'] * 9, characters, words_per_unit=2)[0]) == {
      '', '[UNK]', 'a', 'b'}


def test_spellings_of_one_token_count_once_for_their_owner():
  texts = ['Canary', 'CANARY!', 'can-ary', 'canary canary'] * 50 + TEXTS
  units = [0] * 200 + list(range(1, 71))
  found, result = words(texts, layers.TextVectorization(), units=units,
                        words_per_unit=3, noise=EXACT, delta=1e-3)
  assert 'canary' not in found and 'cat' in found and 'canary' not in result.value


def test_rows_with_functions_of_the_user_are_split_alone():
  sizes = []

  def split(texts):
    sizes.append(int(texts.shape[0]))
    return tf.strings.split(texts)

  found, _ = words(TEXTS[:5], layers.TextVectorization(split=split), words_per_unit=3)
  assert set(sizes) == {1} and 'cat' in found


def test_ngrams_without_a_split_stay_within_rows():
  layer = layers.TextVectorization(split=None, ngrams=2, standardize=None)
  data = tf.data.Dataset.from_tensor_slices(['a', 'b'] * 20).batch(8)
  assert set(words(data, layer, words_per_unit=9)[0]) == {'', '[UNK]', 'a', 'b'}


ODD = ['\ud800x', None, math.nan, 3, [1], {}, b'\xff\xfe', 'a\nb', 'a\0', '',
       'x' * 5000, '[UNK]', '\u2028', np.str_('ok'), b'ok', 'OK\u0301']


@representatives('layer', [layers.TextVectorization, layers.StringLookup])
def test_odd_texts_raise_nothing_and_can_be_saved(layer, tmp_path):
  data = np.empty(16 * 20 + 20, object)
  data[:] = ODD * 20 + ['word'] * 20
  layer = layer()
  found, _ = words(data, layer)
  assert {'word', 'ok'} <= set(found) and not any('\n' in each for each in found)
  found_too, _ = words(list(data), type(layer)())
  assert sorted(found_too) == sorted(found)
  inputs = tf.keras.Input((1,), dtype=tf.string)
  model = tf.keras.Model(inputs, layer(inputs))
  model.save(tmp_path / 'model.keras')
  loaded = tf.keras.models.load_model(tmp_path / 'model.keras')
  x = tf.constant([['word'], ['ok'], ['none']])
  np.testing.assert_array_equal(loaded(x), model(x))


def test_integers_are_looked_up():
  data = np.array([[5, -1, 7]] * 30 + [[2**40, 7, 7]] * 20)
  found, _ = words(data, layers.IntegerLookup(), words_per_unit=3)
  assert found[:2] == ['-1', '7'] and set(found) == {'-1', '7', '5', str(2**40)}
  mixed = [[5], [2**70], [None], ['a'], [True], [1.5], [math.inf]] * 20
  assert words(mixed, layers.IntegerLookup())[0] == ['-1', '5']
  assert words(np.array([5, math.nan, 1e300, 2.5] * 20), layers.IntegerLookup())[0] == [
      '-1', '5']
  masked = layers.IntegerLookup(mask_token=0)
  assert words(np.array([1, 1, 0] * 20, np.uint8), masked)[0] == ['0', '-1', '1']


def test_the_noisy_order_decides_what_max_tokens_keeps():
  data = [[each] for each in 'abcdefgh' for _ in range(300)] + [['a']]
  kept = set()
  for seed in range(8):
    layer = layers.StringLookup(max_tokens=4, num_oov_indices=2)
    found, result = words(data, layer, noise=tfcactus.Gaussian(9.0), seed=seed)
    assert found == ['[UNK]', '[UNK]', *list(result.value)[:2]]
    kept.add(found[2])
  assert len(kept) > 2 and len(result.value) == 8
  tight = layers.StringLookup(max_tokens=2, num_oov_indices=2)
  with pytest.warns(UserWarning):
    words(data, tight)


@representatives('noise', [tfcactus.Gaussian(5.0), tfcactus.Laplace(4.0)])
def test_canaries_of_ten_thousand_users_show_as_rarely_as_delta_says(noise):
  texts = [f'common canary{user}' for user in range(10_000) for _ in range(2)]
  found, _ = words(texts, layers.TextVectorization(), noise=noise, delta=0.01, seed=1,
                   units=np.repeat(np.arange(10_000), 2), words_per_unit=2)
  assert 'common' in found
  shown = sum('canary' in each for each in found)
  assert 0 < shown <= stats.binom.ppf(1 - 1e-6, 10_000, 0.01)


def refused(words_, layer, data=ROWS, **options):
  with pytest.raises(ValueError, match=words_):
    private.adapt(layer, data, **{'noise': EXACT, **options})


def test_what_does_not_fit_is_refused():
  normal, lookup = layers.Normalization(), layers.StringLookup()
  box = dict(bounds=(0, 1))
  refused('got Rescaling; publish what it needs', layers.Rescaling(2.0))
  refused('Expected public bounds=.* alone, for Norm', normal)
  refused('Expected public bounds', lookup, delta=0.1, **box)
  refused('Expected public bounds', lookup)
  refused('words_per_unit=2 for Normalization', normal, words_per_unit=2, **box)
  for bounds in ((1, 0), (0, math.nan), (0, math.inf), 3, ([0, 1], 2), (0, 1, 2), 'ab'):
    refused('low < high within 1e18', normal, bounds=bounds)
  refused("'tf_idf', whose document", layers.StringLookup(output_mode='tf_idf'),
          delta=0.1)
  refused('Expected a new layer', layers.StringLookup(vocabulary=['a']), delta=0.1)
  refused('leave them out', layers.Normalization(mean=0.0, variance=1.0), **box)
  refused('got axis=.*the axis of rows', layers.Normalization(), ROWS[:, 0], **box)
  refused('num_bins >= 2', layers.Discretization(bin_boundaries=[0.0]), **box)
  refused('rows of numbers, got', layers.Normalization(), np.array([['a']]), **box)
  refused('rows of texts, got', lookup, delta=0.1)
  refused('rows of integers, got', layers.IntegerLookup(), ROWS > 3, delta=0.1)
  refused('Expected data whose shape is known', layers.Normalization(),
          tf.data.Dataset.from_generator(lambda: iter([ROWS]), output_signature=(
              tf.TensorSpec(None, tf.float64))), **box)
  refused('ragged or sparse', lookup, tf.ragged.constant([['a'], []]), delta=0.1)
  refused('Expected batches of one array', lookup, iter([(ROWS, ROWS)]), delta=0.1)
  refused('Expected a batched dataset', layers.Normalization(),
          tf.data.Dataset.from_tensor_slices(ROWS), **box)
  refused('an array without a mask', layers.Normalization(),
          np.ma.masked_array(ROWS), **box)
  refused('the layer was built for', normal, ROWS[:, :2], **box)
  refused('499 ids for 500 rows', layers.Normalization(), units=np.arange(499), **box)
  refused('whose order may be another', layers.Normalization(), iter([ROWS]),
          units=np.arange(500), **box)
  refused('all integers or all strings, got list', layers.Normalization(),
          units=[[1], [1, 2]] * 250, **box)
  refused('A row of two owners', layers.Normalization(), units=np.zeros((500, 2)),
          **box)
  refused('no valid one-dimensional account', layers.Normalization(),
          noise=tfcactus.Laplace(1.0), **box)


def test_a_row_of_another_length_erases_nobody():
  rows = [['a', 'b']] * 3 + [['c']]
  with pytest.raises(ValueError, match='rows of one shape'):
    words(rows, words_per_unit=2)


def test_a_vocabulary_is_adapted_once():
  layer = layers.StringLookup()
  words([['a']] * 30, layer)
  refused('Expected a new layer', layer, [['b']] * 30, delta=0.1)


def released():
  """Returns layers adapted to `tiny.X`, and their releases."""
  noise = tfcactus.Gaussian(5.0)
  normal, result = moments(tiny.X, noise=noise, bounds=(-4, 4))
  split = layers.Discretization(num_bins=3, output_mode='multi_hot')
  other = private.adapt(split, tiny.X, noise=noise, bounds=(-4, 4))
  return [normal, split], [result, other]


def test_a_plan_composes_releases_and_the_card_names_what_is_not_covered(tmp_path):
  (normal, split), results = released()
  plan = tiny.plan_of(releases=results)
  account = accounting.PhiAccountant().compose(plan.step_event, 100)
  for result in results:
    account.compose(result.event)
  assert plan.guarantee().upper == pytest.approx(
      account.get_epsilon(plan.delta), rel=1e-9)
  assert plan.guarantee().upper > tiny.plan_of().guarantee().upper + 0.1
  model = tiny.privatized(plan, tiny.inner(normal, split))
  model.fit(tiny.poisson(), verbose=0)
  card = private.make_run_card(model)
  assert not any('what the layers' in each for each in card['not_covered'])
  assert sum('AdaptedDpEvent' in each for each in card['releases_beside']) == 2
  model.save(tmp_path / 'run.keras')
  loaded = tf.keras.models.load_model(tmp_path / 'run.keras')
  np.testing.assert_array_equal(loaded(tiny.X), model(tiny.X))
  assert private.make_run_card(loaded)['not_covered'] == card['not_covered']
  assert loaded.guarantee() == model.guarantee()


def test_the_card_names_layers_that_no_release_covers():
  plain = layers.Normalization()
  plain.adapt(tiny.X)
  (normal, split), (result, _) = released()
  model = tiny.privatized(tiny.plan_of(releases=[result]),
                          tiny.inner(plain, normal, split))
  last = private.make_run_card(model)['not_covered'][-1]
  assert f'what the layers {plain.name}, {split.name} hold' in last
  assert normal.name not in last.replace(plain.name, '')
  unadapted = tiny.privatized(model=tiny.inner(layers.Normalization()))
  assert not [each for each in private.make_run_card(unadapted)['not_covered']
              if 'what the layers' in each]
  inputs = tf.keras.Input((1,), dtype=tf.string)
  text = layers.TextVectorization(vocabulary=['a'], output_mode='multi_hot')
  model = private.privatize(tf.keras.Model(inputs, layers.Dense(3)(text(inputs))),
                            tiny.plan_of())
  assert f'layers {text.name} hold' in private.make_run_card(model)['not_covered'][-1]


@pytest.mark.parametrize('layer, data, settings, held', [
    (layers.Normalization, tiny.X, {'bounds': (-1, 1)}, 'adapt_mean'),
    (lambda: layers.Discretization(num_bins=3), tiny.X, {'bounds': (-1, 1)},
     'bin_boundaries'),
    pytest.param(layers.StringLookup, ['a'] * 400, {'delta': 1e-8}, 'get_vocabulary',
                 marks=pytest.mark.more)])
def test_an_account_holds_a_layer_before_it_changes(
    layer, data, settings, held, tmp_path):
  make = functools.partial(private.adapt, noise=tfcactus.Gaussian(5.0), **settings)
  account = tfcactus.DataAccount(tmp_path / 'layers.account', epsilon=9, delta=1e-6)
  layer = layer()
  if held == 'adapt_mean':
    layer.build((None, *data.shape[1:]))

  def state():
    found = getattr(layer, held)
    return np.asarray(found() if callable(found) else found).tolist()
  before = state()
  small = tfcactus.DataAccount(tmp_path / 'small', epsilon=0.01, delta=1e-6)
  for wrong, account_of_it, words in (
      ({}, small, 'release nothing'), ({'seed': 1}, account, 'no seed with an account'),
      ({'units': np.arange(len(data))}, account, 'adapted for the unit')):
    with pytest.raises(ValueError, match=words):
      make(layer, data, account=account_of_it, **wrong)
    assert state() == before and not account_of_it.entries
  with pytest.raises(ValueError, match='to be a DataAccount'):
    make(layer, data, account='layers.account')
  result = make(layer, data, account=account, account_label='words')
  assert state() != before
  [entry] = account.entries
  assert entry['label'] == 'words'
  assert account.epsilon_if_planned() >= accounting.PhiAccountant().compose(
      result.event).get_epsilon(1e-6) * (1 - 1e-9)


def test_a_plan_and_its_layers_have_one_unit():
  _, rows = moments(tiny.X, noise=tfcactus.Gaussian(5.0))
  _, owners = moments(tiny.X, noise=tfcactus.Gaussian(5.0), units=np.arange(40) // 2)
  assert 'records that are all rows of an owner' in owners.mechanism
  for unit, wrong, right in (('example', owners, rows), ('user', rows, owners)):
    with pytest.raises(ValueError, match='adapted for the unit of the plan'):
      tiny.plan_of(releases=[wrong], unit=unit)
    with pytest.raises(ValueError, match='adapted for the unit of the plan'):
      tiny.plan_of(releases=[dp_accounting.ComposedDpEvent([wrong.event])], unit=unit)
    found = tiny.plan_of(releases=[right], unit=unit).guarantee()
    assert not found.conditions


@representatives('layer', [
    lambda: layers.StringLookup(output_mode='multi_hot'),
    lambda: layers.TextVectorization(output_mode='count', ngrams=2)])
def test_private_models_train_on_private_vocabularies(layer, tmp_path):
  layer, texts = layer(), np.array(['red', 'green'] * 20)
  _, result = words(texts, layer, noise=tfcactus.Gaussian(1.0), delta=1e-4)
  inputs = tf.keras.Input((1,), dtype=tf.string)
  plan = tiny.plan_of(releases=[result], delta=1e-3)
  model = tiny.privatized(plan, tf.keras.Model(inputs, layers.Dense(3)(layer(inputs))))
  model.fit(private.PoissonBatches(texts[:, None], tiny.Y, 0.25), verbose=0)
  model.save(tmp_path / 'run.keras')
  loaded = tf.keras.models.load_model(tmp_path / 'run.keras')
  np.testing.assert_array_equal(loaded(texts[:, None]), model(texts[:, None]))
  for each in (model, loaded):
    card = private.make_run_card(each)
    assert not any('what the layers' in line for line in card['not_covered'])
    assert card['epsilon']['upper'] == model.guarantee().upper
  assert model.guarantee().upper > tiny.plan_of(delta=1e-3).guarantee(4).upper


def test_targets_of_plans_count_adapted_layers():
  _, owners = moments(tiny.X, noise=tfcactus.Gaussian(5.0), units=np.arange(40) // 2)
  options = dict(batch_size=5, epochs=2, num_units=20, delta=1e-3, unit='user',
                 target_epsilon=3.0, l2_norm_clip=1.0)
  plain = tfcactus.PrivacyPlan.for_training(**options)
  plan = tfcactus.PrivacyPlan.for_training(releases=[owners], **options)
  assert plan.noise.noise_multiplier > plain.noise.noise_multiplier
  assert plan.guarantee().upper <= 3.0
