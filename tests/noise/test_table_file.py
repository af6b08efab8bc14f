import zipfile

import numpy as np
import pytest

from tests.noise.tables import gaussian_radial, gaussian_scalar
from tests.representatives import representatives
from tfcactus import noise


@pytest.fixture(params=[gaussian_scalar, gaussian_radial])
def saved(request, tmp_path):
  path = tmp_path / 'table.npz'
  request.param().save(path)
  return path


def rewritten(path, **changes):
  with np.load(path) as archive:
    arrays = dict(archive)
  arrays.update(changes)
  np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
  return path


def test_truncated_files_are_refused(saved):
  data = saved.read_bytes()
  for size in (0, 10, len(data) // 2, len(data) - 5):
    saved.write_bytes(data[:size])
    with pytest.raises(ValueError, match='noise table'):
      noise.load(saved)


@representatives('places', [100, 800])
def test_a_flipped_bit_is_refused_or_changes_nothing(saved, places):
  data, digest = saved.read_bytes(), noise.load(saved).digest
  refused = 0
  for place in range(0, len(data), max(len(data) // places, 1)):
    for bit in (0, 5):
      damaged = bytearray(data)
      damaged[place] ^= 1 << bit
      saved.write_bytes(bytes(damaged))
      try:
        assert noise.load(saved).digest == digest
      except ValueError:
        refused += 1
  assert refused


def test_foreign_files_are_refused(tmp_path):
  path = tmp_path / 'x.npz'
  path.write_text('not a zip')
  with pytest.raises(ValueError, match='noise table'):
    noise.load(path)
  np.savez(path, weights=np.zeros(3))
  with pytest.raises(ValueError, match='has no'):
    noise.load(path)
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('readme.txt', 'hello')
  with pytest.raises(ValueError, match='noise table'):
    noise.load(path)


def test_pickles_are_never_opened(saved):
  rewritten(saved, log_density=np.array([object()], dtype=object))
  with pytest.raises(ValueError, match='noise table'):
    noise.load(saved)


def test_altered_numbers_are_refused(saved):
  with np.load(saved) as archive:
    density = archive['log_density'].copy()
  density[[3, 4]] = density[[4, 3]] + [1e-13, -1e-13]
  rewritten(saved, log_density=density)
  with pytest.raises(ValueError, match='altered|mass'):
    noise.load(saved)


@pytest.mark.parametrize('changes, message', [
    (dict(kind=np.array('cubic')), 'kind'),
    (dict(format_version=np.array(99)), 'format'),
    (dict(log_tail_ratio=None), 'log_tail_ratio'),
    (dict(log_tail_ratio=np.array(np.nan)), 'log_tail_ratio'),
    (dict(log_density=np.zeros((2, 2))), 'log_density'),
    (dict(log_density=np.array([np.nan, 0])), 'log_density'),
    (dict(info=np.array('{oops')), 'info'),
    (dict(info=np.array('[1]')), 'info'),
    (dict(digest=np.array('0' * 16)), 'digest'),
])
def test_broken_contents_are_refused(saved, changes, message):
  rewritten(saved, **changes)
  with pytest.raises(ValueError, match=message):
    noise.load(saved)


def test_missing_file_says_so(tmp_path):
  with pytest.raises(FileNotFoundError):
    noise.load(tmp_path / 'none.npz')


def test_save_wants_the_suffix(tmp_path):
  with pytest.raises(ValueError, match='npz'):
    gaussian_scalar().save(tmp_path / 'table')
