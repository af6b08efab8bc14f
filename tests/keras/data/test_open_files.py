"""Tests of files that must not change: checksums of rows, and descriptors."""

import os

import numpy as np
import pytest

from tfcactus.keras.data import open_files


@pytest.mark.parametrize('dtype', ['<f4', '<f2', '|b1', '>i8', '|u1'])
def test_a_checksum_depends_on_each_byte_of_its_row_alone(dtype):
  rng = np.random.default_rng(0)
  arrays = [rng.integers(0, 2, (5, 2, 3)).astype(dtype), np.zeros((5, 0), dtype),
            rng.integers(0, 2, 5).astype(dtype)]
  sums = open_files.row_checksums(arrays)
  for part in (0, 2):
    for place in range(arrays[part][3].nbytes):
      other = [array.copy() for array in arrays]
      other[part].view(np.uint8).reshape(5, -1)[3, place] ^= 1
      found = open_files.row_checksums(other)
      assert list(found != sums) == [False] * 3 + [True, False]
  order = [4, 4, 0]
  np.testing.assert_array_equal(
      open_files.row_checksums([array[order] for array in arrays]), sums[order])
  assert not open_files.row_checksums([array[:0] for array in arrays]).size


def test_descriptors_are_closed(tmp_path):
  (tmp_path / 'a').write_bytes(b'abc')
  files = open_files.OpenFiles([str(tmp_path / 'a')])
  descriptor, = files.descriptors
  assert os.pread(descriptor, 3, 0) == b'abc'
  files.check_unchanged()
  del files
  with pytest.raises(OSError):
    os.fstat(descriptor)
