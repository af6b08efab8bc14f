"""The query clips, drops what is not finite, and adds noise once."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tfcactus import noise as noise_lib
from tfcactus import privacy
from tfcactus.keras import TableNoiseQuery


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
  assert event == privacy.NoiseTableDpEvent(radial)


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
    factor = min(1.0, clip * (1 - 1e-5) / norm)
    # A factor that is denormal in float32 drops the record altogether.
    expected = raw * (factor if factor >= 1e-37 else 0.0)
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)


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
    (lambda p, s, r: TableNoiseQuery(r, float('nan')), 'finite'),
    (lambda p, s, r: TableNoiseQuery(p, 7.0), 'as in the plan'),
    (lambda p, s, r: TableNoiseQuery(1.0, 7.0), 'Gaussian'),
    (lambda p, s, r: _sum(TableNoiseQuery(r, 1.0), [tf.zeros([4])]), 'dim=4'),
    (lambda p, s, r: _sum(TableNoiseQuery(s, 1.0), [tf.zeros([4])]),
     'no valid account'),
    (lambda p, s, r: _sum(TableNoiseQuery(noise_lib.Laplace(1.0), 1.0),
                          [tf.zeros([2])]), 'no valid account'),
    (lambda p, s, r: _sum(TableNoiseQuery(noise_lib.Gaussian(1.0), 1.0),
                          [tf.zeros([2], tf.float16)]), 'float16'),
])
def test_bad_input_is_refused_in_words(make_plan, scalar, radial, call, words):
  with pytest.raises(ValueError, match=words):
    call(make_plan(), scalar, radial)
