"""Records are rows, and grids depend on public arguments only."""

import collections
import fractions

import numpy as np
import pytest

from tfcactus import noise, release
from tfcactus.cli import main
from tfcactus.release import additive_noise

LAW = noise.Gaussian(2.0)
QUIET = noise.Gaussian(1e-3)

STATISTICS = {
    'histogram': lambda x, **k: release.histogram(x, num_bins=8, noise=LAW, **k),
    'most_frequent': lambda x, **k: release.most_frequent(
        x, num_bins=8, noise=LAW, **k),
    'thresholds': lambda x, **k: release.thresholds(
        x, num_values=8, noise=LAW, **k),
    'quantile': lambda x, **k: release.quantile(
        x, 0.5, low=0, high=7, noise=LAW, resolution=1, **k),
    'interior_point': lambda x, **k: release.interior_point(
        x, num_values=8, noise=LAW, **k),
    'threshold_sketch': lambda x, **k: release.threshold_sketch(
        x, num_values=8, depth=2, noise=LAW, **k),
    'noisy_sum': lambda x, **k: release.noisy_sum(
        x, l2_norm_clip=1.0, noise=LAW, **k)}

Pair = collections.namedtuple('Pair', 'x y')


class _Frame:
  """Array-like with two columns, as a data frame has."""

  shape = (3, 2)

  def __array__(self, dtype=None, copy=None):
    return np.ones(self.shape, dtype)


ROWS = {
    'two dimensions': lambda: np.ones((5, 3), int),
    'one column': lambda: np.ones((5, 1), int),
    'lists of lists': lambda: [[1, 2], [3, 4]], 'a frame': _Frame,
    'images': lambda: np.ones((2, 4, 4), int),
    'batches of rows': lambda: iter([np.ones((2, 3), int), np.ones((1, 3))])}
BAD_VALUES = {
    'strings': lambda: np.array(['1', '2']), 'bytes': lambda: np.array([b'1']),
    'objects': lambda: np.array([1, None], object), 'words': lambda: ['a', 1],
    'ragged': lambda: [[1], [2, 3]], 'complex': lambda: np.array([1j, 2]),
    'NaN': lambda: [1.0, np.nan], 'too large': lambda: [10**400, 1],
    'times': lambda: np.array(['2020-01-01'], 'datetime64[D]'),
    'a masked array': lambda: np.ma.array([1, 2], mask=[False, True]),
    'a structured array': lambda: np.array([(1, 2)], 'i4,i4'),
    'a set': lambda: {1, 2}, 'a string': lambda: 'abc',
    'a dict': lambda: {'a': [1]}, 'None': lambda: None,
    'two arrays': lambda: (np.ones(2), np.ones(2)),
    'a named pair': lambda: Pair(np.ones(2), np.ones(2)),
    'a number': lambda: np.array(3), 'an int': lambda: 3,
    'numbers in place of batches': lambda: iter([1, 2, 3])}


@pytest.mark.parametrize('name', STATISTICS)
@pytest.mark.parametrize('kind', BAD_VALUES)
def test_records_that_are_no_real_numbers_are_refused(name, kind):
  with pytest.raises(ValueError, match='Expected'):
    STATISTICS[name](BAD_VALUES[kind]())


@pytest.mark.parametrize('name', [n for n in STATISTICS if n != 'noisy_sum'])
@pytest.mark.parametrize('kind', ROWS)
def test_a_record_of_several_numbers_is_refused(name, kind):
  """A histogram of images once counted each 784 times and paid for one."""
  with pytest.raises(ValueError, match='one number per record'):
    STATISTICS[name](ROWS[kind]())


@pytest.mark.parametrize('kind', [k for k in ROWS if k != 'images'])
def test_a_sum_takes_rows_as_what_one_record_adds(kind):
  rows = np.concatenate([np.asarray(batch) for batch in ROWS[kind]()]) if (
      kind == 'batches of rows') else np.asarray(ROWS[kind]())
  exact = np.sum(rows / np.linalg.norm(rows, axis=1, keepdims=True), axis=0)
  value = release.noisy_sum(ROWS[kind](), l2_norm_clip=1.0, noise=QUIET).value
  np.testing.assert_allclose(value, exact, atol=0.01)


@pytest.mark.parametrize('name', STATISTICS)
def test_the_type_of_the_same_records_changes_nothing(name):
  values = [1, 5, 5, 7]
  forms = [values, tuple(values), [1, 5.0, 5, 7], [1.0, 5.0, 5.0, 7.0],
           np.array(values, np.uint8), np.array(values, np.int64),
           np.array(values, np.uint64), np.array(values, np.float32),
           np.array(values, np.float16), np.array(values, object),
           [fractions.Fraction(v) for v in values], iter([[1, 5], [5.0, 7.0]]),
           range(5, 6)]
  made = [STATISTICS[name](records, seed=3) for records in forms]
  for one in made:
    assert one.event == made[0].event
    assert type(one.value) is type(made[0].value)
    assert one.mechanism == made[0].mechanism
  for one in made[:-1]:
    assert repr(one.value) == repr(made[0].value)
  assert repr(STATISTICS[name]([True, True], seed=3).value) == repr(
      STATISTICS[name]([1, 1], seed=3).value)


@pytest.mark.parametrize('settings', [
    {}, {'resolution': 1}, {'resolution': 0.5}, {'resolution': 2}])
def test_a_record_that_is_no_whole_number_moves_no_grid(settings):
  """[60, 61] once paid for 7 questions and [61, 30.5] for twenty."""
  made = [release.quantile(records, 0.5, low=0, high=100, noise=LAW, **settings)
          for records in ([60, 61], [61, 30.5], [61], [], [60, 61.0],
                          iter([[60], [61.5]]), [10**25, 3.5])]
  assert len({(repr(one.event), type(one.value), one.mechanism)
              for one in made}) == 1
  size = release.num_values(low=0, high=100, **settings)
  assert size == {None: 1_000_001, 1: 101, 0.5: 201, 2: 51}[
      settings.get('resolution')]
  assert made[0].event.count == (size - 1).bit_length()
  whole = settings.get('resolution') in (1, 2)
  assert isinstance(made[0].value, int if whole else float)


def test_quantiles_of_a_shifted_and_a_huge_domain():
  days = release.quantile([20_000_017] * 900, 0.5, low=20_000_000,
                          high=20_000_100, resolution=1, noise=QUIET).value
  assert days == 20_000_017 and isinstance(days, int)
  for low, high, resolution in ((0, 1, 2), (0, 1, 1e-300), (-1e308, 1e308, 1),
                                (0, 1, -1), (0, 1, np.nan), (1, 0, None)):
    with pytest.raises(ValueError, match='Expected'):
      release.quantile([1], 0.5, low=low, high=high, resolution=resolution,
                       noise=LAW)


def test_an_integer_that_floats_do_not_hold_is_not_rounded_for_another():
  """One float among the records once rounded all integers beyond 2^53."""
  size = 2**60
  with pytest.raises(ValueError, match='floats'):
    release.interior_point([2**59 + 1, 5.0], num_values=size, noise=QUIET)
  assert release.interior_point([2**59 + 1] * 9, num_values=size,
                                noise=QUIET).value == 2**59 + 1
  assert release.interior_point([5.0] * 9, num_values=9, noise=QUIET).value == 5


@pytest.mark.parametrize('call', [
    lambda v, **k: release.noisy_value(v, sensitivity=3, noise=LAW, **k),
    lambda v, **k: release.noisy_vector([v, v], l2_sensitivity=3, noise=LAW, **k),
    lambda v, **k: release.noisy_vector([v, v], l1_sensitivity=3, noise=LAW, **k)])
@pytest.mark.parametrize('resolution', [None, 1, 4.0])
def test_numbers_are_released_on_a_public_grid(call, resolution):
  """The type of a sum once told whether the data held a fraction."""
  made = [call(value, resolution=resolution, seed=1) for value in (
      8, 8.0, np.int32(8), np.float32(8), np.uint64(8))]
  assert len({repr(one.value) for one in made}) == 1
  others = [call(value, resolution=resolution) for value in (8, 4)]
  if resolution is None:
    others.append(call(8.5))
  assert len({type(np.asarray(one.value).ravel()[0].item())
              for one in [*made, *others]}) == 1
  if resolution is not None:
    for one in others:
      assert np.all(np.asarray(one.value) % resolution == 0)
    with pytest.raises(ValueError, match='multiples'):
      call(8.5, resolution=resolution)


def test_scores_of_whole_numbers_are_no_other_scores():
  for seed in range(20):
    assert release.gap_max([1, 9, 3], sensitivity=1, noise=LAW, seed=seed
                           ).value == release.gap_max(
                               [1.0, 9.0, 3.0], sensitivity=1, noise=LAW,
                               seed=seed).value


@pytest.mark.parametrize('clip', [1e-200, 2.6e-16, 0.3, 1.0, 7.7, 1e200])
@pytest.mark.parametrize('dim', [None, 1, 3, 4000])
def test_no_record_adds_more_than_the_clip_norm(clip, dim):
  """A record of 1e308 once added 1.9 clip norms of 2.6e-16."""
  rng = np.random.default_rng(5)
  sizes = np.array([5e-324, 1e-310, 1e-300, 1e-20, 1.0, 1e20, 1e154, 1e300, 1e308])
  sizes = np.append(sizes, clip * np.array([0.5, 1 - 1e-15, 1.0, 1 + 1e-15, 3.0]))
  rows = rng.uniform(0.1, 1, (sizes.size, dim or 1)) * sizes[:, None]
  rows *= rng.choice([-1, 1], rows.shape)
  step = 2.0**(np.floor(np.log2(clip)) - 30)
  steps = additive_noise._clipped_steps(rows if dim else rows[:, 0], clip, step)
  steps = steps.reshape(sizes.size, -1)
  limit = fractions.Fraction(clip) / fractions.Fraction(step)
  norms = [sum(int(x)**2 for x in row) for row in steps]
  assert all(norm <= limit**2 for norm in norms)
  long = np.max(np.abs(rows), axis=1) >= clip
  slack = 1 - 1e-6 * (1 + np.sqrt(dim or 1))
  assert all(norm >= (limit * fractions.Fraction(slack))**2
             for norm, is_long in zip(norms, long) if is_long)


def test_a_sum_of_no_records_has_the_shape_of_others():
  for records in ([], iter([]), np.zeros((0, 3)), iter([np.zeros((0, 3))])):
    if np.shape(records) == (0,):
      records = iter([])
    value = release.noisy_sum(records, l2_norm_clip=1, noise=LAW, dim=3).value
    assert value.shape == (3,) and value.dtype == np.float64
  with pytest.raises(ValueError, match='one shape'):
    release.noisy_sum(iter([np.ones(3)]), l2_norm_clip=1, noise=LAW, dim=3)
  with pytest.raises(ValueError, match='dim'):
    release.noisy_sum(iter([]), l2_norm_clip=1, noise=LAW)


@pytest.mark.parametrize('call', [
    lambda law: release.noisy_value(5, sensitivity=1, noise=law),
    lambda law: release.noisy_value(5, sensitivity=1, noise=law, resolution=1),
    lambda law: release.noisy_vector([5, 6], l2_sensitivity=1, noise=law),
    lambda law: release.noisy_sum([1.0], l2_norm_clip=1, noise=law),
    lambda law: release.histogram([1], num_bins=4, noise=law),
    lambda law: release.thresholds([1], num_values=4, noise=law)])
def test_noise_too_large_for_its_grid_is_refused(call):
  """Cast to int64, such noise was once the same number in each run."""
  with pytest.raises(ValueError, match='exact steps'):
    call(noise.Gaussian(1e20))
  values = [call(noise.Gaussian(1e4)).value for _ in range(3)]
  # Three whole numbers of this noise are all alike once in a billion runs.
  assert len({repr(value) for value in values}) > 1


def test_tf_data_has_to_be_batched():
  tf = pytest.importorskip('tensorflow')
  rows = tf.data.Dataset.from_tensor_slices(np.ones((6, 4), np.int64))
  for dataset in (rows, rows.batch(2, drop_remainder=True)):
    for name in ('histogram', 'quantile', 'noisy_sum'):
      with pytest.raises(ValueError, match='Expected a batched dataset'):
        STATISTICS[name](dataset)
  with pytest.raises(ValueError, match='one number per record'):
    STATISTICS['histogram'](rows.batch(2))
  assert STATISTICS['noisy_sum'](rows.batch(4)).value.shape == (4,)
  for name in STATISTICS:
    for batch in (tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([1, 2]),
                  tf.constant(['a'])):
      with pytest.raises(ValueError, match='Expected'):
        STATISTICS[name](batch)


@pytest.mark.parametrize('bad', [
    {'num_bins': 2**40}, {'num_bins': True}, {'num_bins': 2.0},
    {'outside': None}])
def test_domains_are_checked_before_anything_is_counted(bad):
  with pytest.raises(ValueError, match='Expected'):
    release.histogram([1], **{'num_bins': 4, 'noise': LAW, **bad})
  with pytest.raises(ValueError, match='depth'):
    release.threshold_sketch([1], num_values=9, depth=64, noise=LAW)


def test_the_command_line_counts_rows_too(tmp_path, capsys):
  def run(data, statistic, *rest):
    path = str(tmp_path / 'data.npy')
    np.save(path, data)
    code = main.main(['release', statistic, path, '--delta', '1e-6',
                     '--noise-multiplier', '2', *rest])
    return code, capsys.readouterr()

  images = np.ones((3, 784), np.int64)
  for statistic in ('histogram', 'thresholds', 'most-frequent'):
    code, told = run(images, statistic, '--bins', '4')
    assert code == 2 and 'one number per record' in told.err
  priced = []
  for data in (np.array([60, 61]), np.array([61, 30.5])):
    code, told = run(data, 'quantile', '--low', '0', '--high', '100')
    assert code == 0
    priced.append(told.out.split('epsilon <=')[1].split()[0])
    assert '.' in told.out.splitlines()[0]
  assert priced[0] == priced[1]
