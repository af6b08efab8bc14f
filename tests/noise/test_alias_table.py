"""Alias tables: the masses that they keep, and the comparison of a draw."""

import numpy as np
import pytest

from tests.noise.tables import bounded_scalar
from tfcactus.noise import alias_table, discrete_gaussian, floored_table

LAWS = {'full': discrete_gaussian.probabilities,
        'few': lambda: floored_table.probabilities(bounded_scalar()),
        'one': lambda: [0, 2**128],
        'equal': lambda: [2**112] * 2**16}


@pytest.mark.parametrize('law', LAWS.values(), ids=LAWS)
def test_a_table_keeps_the_masses_exactly(law):
  masses, given = [0] * 2**16, law()
  packed, fine = alias_table.table(given)
  for column, (coarse, rest) in enumerate(zip(packed.tolist(), fine.tolist())):
    limit, other = (coarse >> 16 << 64) + rest, coarse & 0xFFFF
    masses[column] += limit
    masses[other] += 2**112 - limit
  assert masses == given + [0] * (2**16 - len(given))


class Words:
  """Stands in for a `KeyStream`: its words are as given."""

  def __init__(self, *words):
    self.left = [np.array(each, np.uint64) for each in words]

  def words(self, count):
    assert self.left[0].size == count
    return self.left.pop(0)


def test_a_draw_compares_all_112_bits():
  table = discrete_gaussian.table()
  packed, fine = (each.tolist() for each in table)
  for column in (40_000, 32_768 + 3_000, 5):
    coarse, other = packed[column] >> 16, packed[column] & 0xFFFF
    for leading, rest, result in (
        (coarse - 1, None, column), (coarse + 1, None, other),
        (coarse, fine[column] - 1, column), (coarse, fine[column], other)):
      if leading < 0 or rest is not None and rest < 0:
        continue
      words = [[leading << 16 | column], *([] if rest is None else [[rest]])]
      assert alias_table.draw(Words(*words), 1, table) == result
