"""Whole numbers of scalar tables: masses to 200 bits, the law of draws, refusals."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from tests.noise import tables
from tfcactus import noise
from tfcactus.noise import floored_table, library
from tfcactus.randomness import SystemRandom

TABLES = {
    'tail': tables.gaussian_scalar(0.7), 'wavy': tables.wavy_scalar(),
    'bounded': tables.bounded_scalar(), 'truncated': tables.truncated_scalar(),
    'cactus': library.get('cactus-budget0.5'),
    'heavy': tables.gaussian_scalar(1.0, cells=3, tail_ratio=0.99)}


@pytest.mark.parametrize('table', TABLES.values(), ids=TABLES)
def test_probabilities_are_right_entry_by_entry(table):
  found = floored_table.probabilities(table)
  assert sum(found) == 2**128 and min(found) >= 0 and len(found) <= 2**16
  middle = len(found) // 2
  half = found[middle:]
  others = found[:middle][::-1]
  assert others[1:] == half[1:] if table.edge_at_zero else others == half[1:]
  with mpmath.workprec(200):
    logs = [mpmath.mpf(each) for each in table.log_density.tolist()]
    last, ratio = len(logs) - 1, mpmath.mpf(table.log_tail_ratio)
    true = [mpmath.exp(logs[i] if i <= last else logs[last] + (i - last) * ratio)
            for i in range(len(half))]
    # All cells beyond the last of these, on one side.
    beyond = true[-1] * mpmath.exp(ratio) / (1 - mpmath.exp(ratio))
    total = 2 * (mpmath.fsum(true) + beyond) - (0 if table.edge_at_zero else true[0])
    assert 2 * beyond / total < mpmath.mpf(2)**-113
    errors = [mass - 2**128 * each / total for mass, each in zip(half, true)]
    cut = 2**128 * 2 * beyond / total  # Spreads over all probabilities.
    assert all(-1.001 < error < 0.001 + cut for error in errors[1:])
    distance = (sum(map(abs, errors)) + sum(map(abs, errors[1:])) + 2 * 2**16 * 0.001 +
                cut) / 2**129
    assert distance < floored_table.DISTANCE


def law_at_edges(table, edges):
  """Returns masses of the noise between edges in units of sensitivity."""
  return np.diff(table.cdf(edges))


@pytest.mark.parametrize('name', ['tail', 'wavy', 'bounded', 'truncated', 'cactus'])
def test_draws_have_the_law_of_the_table_and_a_scale_of_1_01_is_rejected(name):
  table = TABLES[name]
  bits, count = floored_table.cell_bits(table), 4_000_000
  draws = floored_table.draw(table, SystemRandom(1), count)
  assert draws.dtype == np.int64 and np.abs(draws).max() <= 2**33

  def chance(z):
    """Returns the p-value of whole numbers: chi-square over halves of cells."""
    half = np.floor_divide(z, 2**(bits - 1))
    first = half.min()
    edges = np.arange(first, half.max() + 2) / (2 * table.bins)
    wanted = count * law_at_edges(table, edges)
    counts = np.bincount(half - first, minlength=wanted.size)
    rare = wanted < 10
    return stats.chisquare(
        [*counts[~rare], counts[rare].sum() + 10],
        [*wanted[~rare], count - wanted[~rare].sum() + 10]).pvalue

  assert chance(draws) > 1e-3
  assert chance(np.rint(1.01 * draws).astype(np.int64)) < 1e-9
  for shift in (0, 8, bits - 8):  # Uniform within a cell.
    assert stats.chisquare(np.bincount(draws >> shift & 255)).pvalue > 1e-3
  again = floored_table.draw(table, SystemRandom(1), 1000)
  assert not np.array_equal(again, floored_table.draw(table, SystemRandom(2), 1000))


@pytest.mark.parametrize('edge', [False, True])
def test_a_cell_is_whole_numbers_from_its_lower_end(edge):
  table = noise.ScalarTable.normalized(4, [0.0, -1.0], -math.inf, edge_at_zero=edge)
  bits = floored_table.cell_bits(table)
  draws = floored_table.draw(table, SystemRandom(3), 200_000)
  low, high = ((-2, 2) if edge else (-1.5, 1.5))
  assert low * 2**bits <= draws.min() < (low + 1e-3) * 2**bits
  assert (high - 1e-3) * 2**bits < draws.max() < high * 2**bits
  edges = np.arange(low, high + 1) / table.bins
  counts = np.histogram(draws / 2**bits / table.bins, edges)[0]
  assert stats.chisquare(
      counts, counts.sum() * law_at_edges(table, edges)).pvalue > 1e-4


@pytest.mark.parametrize('table', [
    tables.gaussian_scalar(1.0, cells=3, tail_ratio=0.999),
    noise.ScalarTable.normalized(2**17, [0.0, -1.0], -1.0)])
def test_tables_of_too_many_cells_are_refused(table):
  with pytest.raises(ValueError, match='at most 2\\^16 cells'):
    floored_table.cell_bits(table)
