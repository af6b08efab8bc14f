"""No life of private models makes a ledger count fewer steps than a state holds.

TFCACTUS_LIFE_TRIALS sets how many random lives are tried, TFCACTUS_LIFE_SEED the first.
"""

import os

import pytest

from tests.keras.ledger import lifecycles, random_lives
from tests.representatives import representatives
from tfcactus.keras.ledger import counts, weight_watch

_TRIALS = int(os.environ.get('TFCACTUS_LIFE_TRIALS', 4))
_SEED = int(os.environ.get('TFCACTUS_LIFE_SEED', 0))


def _runs(first='keras', second='h5', optimizers=('adam', 'sgd')):
  """Returns the beginning of a life with files of two runs of two steps each."""
  return [part for m, f, kind, optimizer in zip(
      ('m0', 'm1'), ('f0', 'f1'), (first, second), optimizers) for part in (
          ('new', m, optimizer), ('fit', m), ('save', m, f, kind))]


_FORKS = [('new', 'm0'), ('fit', 'm0'), ('save', 'm0', 'f0'), ('process',),
          ('load', 'f0', 'm1'), ('fit', 'm1'), ('save', 'm1', 'f1'), ('process',),
          ('load', 'f0', 'm2'), ('compile', 'm2', 'sgd'), ('fit', 'm2'),
          ('save', 'm2', 'f2', 'h5'), ('process',),
          ('load', 'f1', 'm'), ('load_weights', 'm', 'f2')]


@representatives('life, steps', [
    ([*_runs(), ('process',), ('load', 'f0', 'm'), ('load_weights', 'm', 'f1')], 4),
    (_FORKS, 6),
    ([*_runs(second='keras'), ('process',), ('load', 'f0', 'm'), ('load', 'f1', 'n'),
      ('get', 'n', 'v'), ('set', 'm', 'v')], 4)], 2)
def test_steps_of_weights_and_moments_add_up(life, steps):
  faults, made, refused = lifecycles.lived(life)
  assert faults == [] and not any(refused)
  model = made.models['m']
  assert len(made.oracle.found(model)) == steps == model.released_steps
  assert model.guarantee().steps == steps


@representatives('second, change', [
    ('keras', [('plain', 'm')]),
    ('moments', [('load_weights', 'm', 'f1'), ('fit', 'm')]),
    ('plain', [('load_weights', 'm', 'f1')]),
    ('inner', [('load_weights', 'm', 'f1'), ('save', 'm', 'f2'), ('load', 'f2', 'm')]),
    ('keras', [('load', 'f1', 'n'), ('moments', 'm', 'n'), ('fit', 'm')]),
    ('keras', [('load', 'f1', 'n'), ('compile_with', 'm', 'n'), ('fit', 'm')])], 2)
def test_no_step_with_epsilon_follows_values_that_are_not_the_files(second, change):
  faults, made, refused = lifecycles.lived([
      *_runs('keras', second, ('adam', 'adam')), ('process',), ('load', 'f0', 'm'),
      *change])
  assert faults == [] and (refused[-1] or made.models['m'].ledger().scheme is None)


@representatives('change', [
    [('compile', 'm', 'sgd'), ('fit', 'm')],
    [('load_weights', 'm', 'f0'), ('fit', 'm')],
    [('again', 'm', 'n'), ('fit', 'm')]])
def test_a_loaded_model_goes_on(change):
  _, made, refused = lifecycles.lived([
      ('new', 'm0'), ('fit', 'm0'), ('save', 'm0', 'f0'), ('process',),
      ('load', 'f0', 'm'), *change])
  assert not any(refused) and made.models['m'].guarantee().steps == 4


def test_the_oracle_finds_counts_of_two_runs_that_are_not_added(monkeypatch):
  merged = counts.Counts.merged
  monkeypatch.setattr(counts.Counts, 'merged', lambda self, other: max(
      merged(self, other)._replace(segments=each.segments) for each in (self, other)))
  life = [*_runs(), ('process',), ('load', 'f0', 'm'), ('load_weights', 'm', 'f1')]
  faults, _, _ = lifecycles.lived(life)
  assert faults == ['m: 5 steps, counts 3']


def test_the_oracle_finds_a_step_without_privacy_that_no_ledger_notices(monkeypatch):
  for kind, name in (
      (counts.Record, 'knows'), (weight_watch.Watch, 'knows'),
      (weight_watch.Watch, 'step')):
    monkeypatch.setattr(kind, name, lambda *_: True)
  faults, _, _ = lifecycles.lived([('new', 'm'), ('fit', 'm'), ('plain', 'm')])
  assert 'has the epsilon' in ''.join(faults)


@pytest.mark.parametrize('seed', range(_SEED, _SEED + _TRIALS))
def test_random_lives_have_no_fault(seed):
  life = random_lives.random_life(seed)
  faults, _, _ = lifecycles.lived(life)
  assert faults == [], lifecycles.shortest(life)
