"""Tests of splits: who is on which side, and what may move nobody else."""

import numpy as np
import pytest
from scipy import stats

from tfcactus import relations
from tfcactus.keras import PoissonBatches, Split, UnitData

N = 600
X = np.arange(N, dtype=np.float32)[:, None]
IDS = np.array([f'person {i}' for i in range(N)])
KEY = bytes(range(32))


def rows(data):
  return set(data.rows(np.arange(data.num_examples))[0].ravel().astype(int).tolist())


def held(split, count=N, **kwargs):
  return rows(split.sides(X[:count], **kwargs).validation)


def test_each_record_is_on_one_side():
  for split, kwargs in ((Split(0.3), {}), (Split(0.3, by='id'), {'ids': IDS}),
                        (Split(by='position', rule=lambda place: place >= 500), {})):
    training, validation = split.sides(X, np.arange(N), **kwargs)
    assert not rows(training) & rows(validation)
    assert rows(training) | rows(validation) == set(range(N))
    x, y = validation.rows(np.arange(validation.num_examples))
    np.testing.assert_array_equal(x[:, 0], y)
    assert training.side.split is split is validation.side.split
    assert validation.side.held_out and not training.side.held_out


def test_coins_are_fresh_and_have_the_stated_probability():
  assert len({frozenset(held(Split(0.5))) for _ in range(5)}) == 5
  rng = np.random.default_rng(0)
  found = [len(held(Split(0.2, key=rng.bytes(32)))) for _ in range(150)]
  law = stats.binom(150 * N, 0.2)
  assert law.ppf(1e-6) < sum(found) < law.ppf(1 - 1e-6)
  # Coins of a probability 2 % higher would be rejected.
  assert not law.ppf(1e-6) < 0.22 * 150 * N < law.ppf(1 - 1e-6)
  # Coins of different records are independent: counts vary as binomials do.
  assert 0.7 < np.var(found) / (N * 0.16) < 1.4


def test_a_key_repeats_the_coins_and_is_not_shown():
  split = Split(0.4, key=KEY)
  assert held(split) == held(Split(0.4, key=KEY)) != held(Split(0.4))
  names = [each.sides(X).training.side.name for each in (
      split, Split(0.4, key=KEY), Split(0.1, key=KEY), Split(0.4))]
  assert names[0] == names[1] and len(set(names)) == 3
  assert str(KEY) not in repr(split) and KEY.hex() not in repr(split)


def test_ids_that_repeat_are_refused():
  with pytest.raises(ValueError, match='ids that differ'):
    Split(0.4).sides(X[:4], ids=['a', 'b', 'a', 'c'])


@pytest.mark.parametrize('split', [
    Split(0.4, key=KEY), Split(0.4, by='id'),
    Split(by='id', rule=lambda each: each.endswith('7'))])
def test_a_record_with_an_id_moves_no_other(split):
  whole = held(split, ids=IDS)
  rng = np.random.default_rng(0)
  for _ in range(20):
    kept = np.sort(rng.choice(N, rng.integers(300, N), replace=False))
    part = split.sides(X[kept], ids=IDS[kept]).validation
    assert rows(part) == whole & set(kept.tolist())


def test_a_split_of_fixed_size_moves_others_and_is_refused_under_add_or_remove():
  last = Split(by='position', rule=lambda place: place >= 500)
  front = rows(last.sides(np.concatenate([[[-1.]], X])).validation)
  assert front != held(last)  # An added record moved another to the other side.
  with pytest.raises(ValueError, match='an added record moves others'):
    last.check_relation('add-or-remove')
  assert last.check_relation('replace') == relations.REPLACE
  assert last.check_relation('zero-out') == relations.ZERO_OUT
  with pytest.raises(ValueError, match='has another id'):
    Split(by='id').check_relation('replace')
  assert set(Split().relations) == set(relations.NAMES.values())


def test_all_rows_of_a_unit_are_on_one_side():
  ids = np.random.default_rng(1).integers(0, 60, N)
  split = Split(0.3, key=KEY)
  sides = split.sides(X, units=ids, examples_per_unit=50)
  assert all(isinstance(side, UnitData) for side in sides)
  found = [{int(ids[row]) for row in rows(side)} for side in sides]
  assert not found[0] & found[1] and found[0] | found[1] == set(ids.tolist())
  assert [side.num_examples for side in sides] == [len(part) for part in found]
  assert [set(side.ids.tolist()) for side in sides] == found
  # The coin belongs to the unit: fewer rows, and fewer units, change no side.
  few = split.sides(X[ids < 40], units=ids[ids < 40], examples_per_unit=2)
  assert set(few.validation.ids.tolist()) == {each for each in found[1] if each < 40}
  # Units without rows contribute nothing to either side.
  more = split.sides(UnitData(X, units=ids, examples_per_unit=50, num_units=70))
  assert rows(more.validation) == rows(sides.validation)
  assert sum(side.num_examples for side in more) == 70


def test_batches_draw_from_the_training_side_alone():
  sides = Split(0.5).sides(X, np.arange(N))
  batches = PoissonBatches(sides.training, sampling_prob=1.0)
  x, _, weights = batches[0]
  assert set(np.asarray(x)[np.asarray(weights) > 0, 0].astype(int)) == (
      rows(sides.training))


@pytest.mark.parametrize('make, text', [
    (lambda: Split(1.0), 'Expected fraction in'),
    (lambda: Split(by='hash'), 'Expected by in'),
    (lambda: Split(key=b'secret'), '32 bytes of the key of another Split'),
    (lambda: Split(rule=lambda place: True), 'Expected a rule, a function of one'),
    (lambda: Split(by='id', rule='odd'), 'Expected a rule, a function of one place'),
    (lambda: Split(by='position'), 'Expected a rule, a function'),
    (lambda: Split(by='id').sides(X), 'Expected ids, one'),
    (lambda: Split(1e-9).sides(X), 'examples on both sides'),
    (lambda: Split().sides(X, ids=np.arange(5)), r'Expected ids of shape \(600,\)'),
    (lambda: Split().sides(X, ids=X[:, 0]), 'Expected ids to be all integers'),
    (lambda: Split().sides(X, units=IDS, examples_per_unit=1, ids=IDS), 'without ids'),
    (lambda: Split(by='position', rule=lambda place: place > 9).sides(
        X, units=IDS, examples_per_unit=1), 'depend on the ids of others'),
    (lambda: Split(by='position', rule=lambda place: place % 2).sides(X),
     'returns True or False'),
    (lambda: Split().sides(Split().sides(X).training), 'not divided yet'),
    (lambda: UnitData(Split(key=KEY).sides(X).training, units=IDS[:5],
                      examples_per_unit=1), 'rows of one owner on both sides'),
    (lambda: Split().check_relation('swap'), 'Expected neighboring_relation'),
])
def test_refusals(make, text):
  with pytest.raises(ValueError, match=text):
    make()
