"""The query clips, drops what is not finite, and adds noise once."""

import inspect

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tfcactus import accounting, noise as noise_lib
from tfcactus.keras import GaussianSumQuery, TableNoiseQuery
from tfcactus.keras.tfp import stand_in


def _sum(query, records):
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  total = query.initial_sample_state(records[0])
  for record in records:
    total = query.accumulate_record(params, total, record)
  return query.get_noised_result(total, state)


def test_noise_is_added_once_scaled_by_the_clip_norm():
  query = TableNoiseQuery(noise_lib.Gaussian(0.5), 3.0, seed=1)
  zeros = [tf.zeros([4000]), tf.zeros([20, 50])]
  result, _, event = _sum(query, [zeros] * 20)
  values = np.concatenate([np.ravel(part) for part in result])
  # 5000 draws: the standard error of a standard deviation is 1 %.
  assert abs(values.std() / 1.5 - 1) < 0.04
  assert event == dp_accounting.GaussianDpEvent(0.5)


def test_radial_noise_is_joint_and_scaled(radial):
  query = TableNoiseQuery(radial, 2.0, seed=1)
  state = query.initial_global_state()
  zeros = [tf.zeros([2]), tf.zeros([])]

  @tf.function
  def many():
    return tf.map_fn(
        lambda _: tf.linalg.global_norm(query._sampler(
            [tf.TensorSpec(z.shape, tf.float64) for z in zeros],
            scale=state.l2_norm_clip)), tf.range(4000),
        fn_output_signature=tf.float64)

  rms = np.sqrt(np.mean(many().numpy()**2) / 3)
  assert abs(rms / (2 * radial.noise_multiplier) - 1) < 0.04


def test_radial_event_names_the_table(radial):
  _, _, event = _sum(TableNoiseQuery(radial, 1.0), [tf.zeros([3])])
  assert event == accounting.NoiseTableDpEvent(radial)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_contributes_exactly_zero(bad):
  query = TableNoiseQuery(noise_lib.Gaussian(1e-12), 10.0, seed=1)
  good = [tf.constant([1.0, 2.0]), tf.constant(3.0)]
  broken = [tf.constant([1.0, bad]), tf.constant(3.0)]
  result, _, _ = _sum(query, [good, broken, good])
  np.testing.assert_allclose(result[0], [2, 4], rtol=1e-6)
  np.testing.assert_allclose(result[1], 6, rtol=1e-6)
  params = query.derive_sample_params(query.initial_global_state())
  for part in query.preprocess_record(params, broken):
    assert not np.any(part)


@pytest.mark.parametrize('scale', [1e-30, 1e-3, 1.0, 1e4, 1e25, 3e38])
def test_clipped_norms_never_exceed_the_bound(scale):
  rng = np.random.default_rng(0)
  for clip in (0.1, 1.0, 1e-4, 777.7):
    query = TableNoiseQuery(noise_lib.Gaussian(1.0), clip)
    params = query.derive_sample_params(query.initial_global_state())
    raw = (rng.uniform(-1, 1, 26_010) * scale).astype(np.float32)
    parts = query.preprocess_record(params, [tf.constant(raw[:9]), raw[9:]])
    clipped = np.concatenate(parts).astype(np.float64)
    norm = np.linalg.norm(raw.astype(np.float64))
    assert np.linalg.norm(clipped) <= clip
    factor = min(1.0, clip / norm)
    # A factor that is denormal in float32 drops the record altogether.
    expected = raw * (factor if factor >= 1e-37 else 0.0)
    # TensorFlow Privacy's own tolerance.
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)


def test_records_without_a_static_shape_have_that_of_the_sum():
  # As rows of a Jacobian in TensorFlow Privacy's optimizer, on batches of any size.
  query = TableNoiseQuery(noise_lib.Gaussian(1e-12), 1.0)
  params = query.derive_sample_params(query.initial_global_state())

  @tf.function(input_signature=[tf.TensorSpec(None)] * 2)
  def total(weights, bias):
    return query.accumulate_record(
        params, [tf.ones([2, 1]), tf.ones([])], [weights, bias])

  found = total(tf.constant([[3.0], [0.0]]), tf.constant(4.0))
  np.testing.assert_allclose(found[0], [[1.6], [1.0]], rtol=1e-5)
  np.testing.assert_allclose(found[1], 1.8, rtol=1e-5)
  with pytest.raises(tf.errors.InvalidArgumentError):
    total(tf.constant([3.0]), tf.constant(4.0))


@pytest.mark.parametrize('record', [tf.ones([3]), tf.ones([1, 3]), np.ones(1), 1.0])
def test_records_are_not_broadcast_over_the_rows_of_a_sum(record):
  query = TableNoiseQuery(noise_lib.Gaussian(1.0), 1.0)
  params = query.derive_sample_params(query.initial_global_state())
  state = query.initial_sample_state(tf.zeros([5, 3]))
  done = query.preprocess_record(params, record)
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    query.accumulate_preprocessed_record(state, done)
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    query.accumulate_preprocessed_record(state, record)


def test_a_plan_gives_noise_and_clip(make_plan, radial):
  query = TableNoiseQuery(make_plan(radial, l2_norm_clip=2.5))
  assert query.l2_norm_clip == 2.5 and query.noise is radial
  assert query.initial_global_state()._asdict()['l2_norm_clip'].numpy() == 2.5


def test_scalar_noise_on_a_vector_only_by_a_plan_that_says_unproven(
    make_plan, scalar):
  query = TableNoiseQuery(make_plan(scalar, proven=False))
  _, _, event = _sum(query, [tf.zeros([5])])
  assert isinstance(event, dp_accounting.UnsupportedDpEvent)


@pytest.mark.parametrize('call, words', [
    (lambda p, s, r: TableNoiseQuery(r), 'Expected l2_norm_clip'),
    (lambda p, s, r: TableNoiseQuery(r, 0.0), 'l2_norm_clip > 0'),
    # Of a record of norm 1e-170 in float64 the square is zero: nothing clips it.
    (lambda p, s, r: TableNoiseQuery(r, 1e-200), 'l2_norm_clip from 1e-30'),
    (lambda p, s, r: TableNoiseQuery(r, float('nan')), 'finite'),
    (lambda p, s, r: TableNoiseQuery(p, 7.0), 'as in the plan'),
    (lambda p, s, r: TableNoiseQuery(1.0, 7.0), 'Gaussian'),
    (lambda p, s, r: _sum(TableNoiseQuery(r, 1.0), [tf.zeros([4])]), 'dim=4'),
    (lambda p, s, r: _sum(TableNoiseQuery(s, 1.0), [tf.zeros([4])]),
     'no valid one-dimensional account'),
    (lambda p, s, r: _sum(TableNoiseQuery(noise_lib.Laplace(1.0), 1.0),
                          [tf.zeros([2])]), 'no valid one-dimensional account'),
    (lambda p, s, r: _sum(TableNoiseQuery(noise_lib.Gaussian(1.0), 1.0),
                          [tf.zeros([2], tf.float16)]), 'float16'),
])
def test_bad_input_is_refused_in_words(make_plan, scalar, radial, call, words):
  with pytest.raises(ValueError, match=words):
    call(make_plan(), scalar, radial)


def test_a_clip_norm_may_be_a_variable():
  clip = tf.Variable(5.0)
  records = [tf.constant([-6.0, 8.0]), tf.constant([4.0, -3.0])]
  query = GaussianSumQuery(clip, 2.0, seed=1)
  params = query.derive_sample_params(query.initial_global_state())
  np.testing.assert_allclose(
      query.preprocess_record(params, records[0]), [-3, 4], rtol=1e-6)
  assert _sum(query, records)[2] == dp_accounting.GaussianDpEvent(2.0 / 5.0)
  clip.assign(0.0)
  noisy, _, event = _sum(query, records)
  assert event == dp_accounting.NoOpDpEvent() and np.all(noisy != 0)
  for bad in (-1.0, 1e-31, 1e31, np.nan, np.inf):
    clip.assign(bad)
    with pytest.raises(tf.errors.InvalidArgumentError, match='to be 0, or from'):
      query.initial_global_state()
  with pytest.raises(ValueError, match='a scalar of floats'):
    GaussianSumQuery(tf.Variable([1.0]), 2.0)
  # Of a table the noise moves with it: what is accounted stays.
  clip.assign(5.0)
  table = TableNoiseQuery(noise_lib.Gaussian(0.5), clip, seed=1)
  zeros = [tf.zeros([20_000])]
  assert abs(np.std(_sum(table, zeros)[0]) / 2.5 - 1) < 0.03
  clip.assign(10.0)
  noisy, _, event = _sum(table, zeros)
  assert abs(np.std(noisy) / 5 - 1) < 0.03
  assert event == dp_accounting.GaussianDpEvent(0.5)


def _on(base):
  """`TableNoiseQuery` on another base class of queries."""
  body = {name: value for name, value in vars(TableNoiseQuery).items()
          if name not in ('__dict__', '__weakref__', '_abc_impl',
                          '__abstractmethods__')}
  return type('Query', (base,), body)


def _methods(cls):
  """Names of public methods, with the names and defaults of their arguments."""
  return {
      name: [(p.name, p.default) for p in inspect.signature(
          method).parameters.values()]
      for name, method in inspect.getmembers(cls, callable)
      if not name.startswith('_')}


def _plain(value):
  return tf.nest.map_structure(
      lambda part: (part.dtype, part.shape, part.numpy().tolist())
      if tf.is_tensor(part) else part, value)


needs_tfp = pytest.mark.skipif(
    not stand_in.AVAILABLE, reason='needs TensorFlow Privacy to compare with')


@needs_tfp
def test_the_stand_in_has_the_methods_of_tensorflow_privacys_query():
  assert _methods(_on(stand_in._SumQuery)) == _methods(TableNoiseQuery)


@needs_tfp
@pytest.mark.parametrize('call', [
    lambda q: q.derive_metrics(q.initial_global_state()),
    lambda q: q.initial_sample_state(3.0),
    lambda q: q.initial_sample_state([1, 2.5, True]),
    lambda q: q.initial_sample_state({'a': np.ones((2, 3)), 'b': np.float16(1)}),
    lambda q: q.initial_sample_state(tf.TensorSpec([2], tf.float16)),
    lambda q: q.initial_sample_state(
        (tf.ones([2], tf.int8), [tf.Variable([1.0, 2.0])], ())),
    lambda q: q.initial_sample_state(),
    lambda q: q.initial_sample_state([tf.ones([]), None]),
    lambda q: q.initial_sample_state('text'),
    lambda q: q.accumulate_preprocessed_record(
        [tf.ones([2]), tf.ones([])], [None, tf.ones([])]),
    lambda q: q.accumulate_preprocessed_record([tf.ones([2])], [[1.0, 2.0]]),
    lambda q: q.accumulate_preprocessed_record(1.0, 2),
    lambda q: q.accumulate_record(0.0, tf.ones([2]), tf.ones([2])),
    lambda q: q.accumulate_record(tf.constant(0.5), 0.0, 3.0),
    lambda q: q.merge_sample_states([1.0, 2.0], [tf.ones([]), 3.0]),
    lambda q: q.merge_sample_states([1.0], [None]),
    lambda q: q.merge_sample_states({'a': 1.0}, {'b': 1.0}),
    lambda q: q.preprocess_record(tf.constant(0.5), tf.ones([3])),
    lambda q: q.derive_sample_params(q.initial_global_state()),
    lambda q: q.get_noised_result(tf.ones([3]), q.initial_global_state())[2],
])
def test_the_stand_in_does_what_tensorflow_privacys_query_does(call):
  outcomes = []
  for cls in (TableNoiseQuery, _on(stand_in._SumQuery)):
    try:
      outcomes.append(_plain(call(cls(noise_lib.Gaussian(1e-9), 1.0, seed=1))))
    except Exception as error:  # pylint: disable=broad-except
      outcomes.append(type(error))
  assert outcomes[0] == outcomes[1]
