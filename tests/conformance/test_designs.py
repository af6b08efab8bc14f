"""Tests that every design request gives a table, its proof and clear refusals.

To cover a request, list one small instance.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

from tfcactus import design, noise
from tfcactus.design import fields, truncated


class Case(NamedTuple):
  """A request and known facts about its table.

  Attributes:
    request: A small request.
    used: Returns the cost or size of a table, in the units of the budget.
    budget: The largest cost, or the size, of the table.
    certified: Whether `design.verify` proves the table optimal.
    bad: Values that are refused, by field.
  """

  request: Any
  used: Callable[[noise.ScalarTable], float]
  budget: float
  bad: dict[str, Any]
  certified: bool = False


def _moment(order: int) -> Callable[[Any], float]:
  return lambda table: table.moment(order)


def _sigma(table: Any) -> float:
  return table.noise_multiplier


def _range(table: noise.ScalarTable) -> float:
  return table.range


BAD = {'bins': 0, 'tail_ratio': 1.5, 'objective': 'tv', 'solver': 'mosek'}

CASES = {
    'Cactus': Case(design.Cactus(0.25, bins=8), _moment(2), 0.25,
                   {**BAD, 'budget': -1.0}, certified=True),
    'Monotone': Case(design.Monotone(0.5, power=1.0, bins=6), _moment(1), 0.5,
                     {**BAD, 'budget': 'much', 'power': 0.0}, certified=True),
    'Isotropic': Case(design.Isotropic(3, 0.7, bins=6), _sigma, 0.7,
                      {**BAD, 'dim': 0, 'noise_multiplier': np.inf},
                      certified=True),
    'DiscretizedGaussian': Case(
        design.DiscretizedGaussian(1.0, bins=8), _sigma, 1.0,
        {'noise_multiplier': 0.0, 'bins': 2.5, 'cells': 2, 'tail_ratio': 2.0}),
    'DiscretizedLaplace': Case(
        design.DiscretizedLaplace(1.0, bins=8), _moment(1), 1.002,
        {'scale': -1.0, 'bins': True, 'cells': 8}),
    'DiscretizedSinhNormal': Case(
        design.DiscretizedSinhNormal(1.0, 2.0, bins=8), _sigma, 1.0,
        {'sigma': 0.0, 'bend': -1.0, 'bins': 0, 'cells': 1}),
    'RadialGaussian': Case(
        design.RadialGaussian(3, 0.8, width=0.1), _sigma, 0.8,
        {'dim': -2, 'noise_multiplier': None, 'width': 0.0}),
    'Truncated': Case(
        design.Truncated(3, 1.0, 0.5, bins=3), _moment(2), 1.0,
        {'range': 0.5, 'utility': 0.0, 'epsilon': -1.0, 'steps': 0, 'norm': 3,
         'sampling_prob': 0.0, 'bins': 0, 'method': 'guess', 'order': 2.0}),
    'TruncatedGaussian': Case(
        design.TruncatedGaussian(3, utility=1.0, bins=3), _moment(2), 1.0,
        {'range': -3, 'utility': -1.0, 'scale': 1.0, 'norm': 0, 'bins': -1}),
    'TruncatedLaplace': Case(
        design.TruncatedLaplace(3, utility=1.0, bins=3), _moment(1), 1.0,
        {'range': np.nan, 'utility': None, 'norm': 1.5, 'bins': 0}),
    'Staircase': Case(
        design.Staircase(1.0, range=4, bins=6), _range, 4.0,
        {'epsilon': 0.0, 'range': 0.2, 'gamma': 1.0, 'bins': 0}),
}
"""Every request of `tfcactus.design` by name."""


@dataclasses.dataclass(frozen=True)
class TruncatedCauchy(truncated.TruncatedForm):
  """An example of a request of one's own on the base class for truncated noise."""

  mechanism = 'truncated-cauchy'

  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    middle = 0.5 * (edges[:-1] + edges[1:])
    return -np.log1p((middle / scale)**2)


@dataclasses.dataclass(frozen=True)
class Uniform:
  """An example of a request of one's own without a base class."""

  range: float
  bins: int = 4

  def __post_init__(self) -> None:
    if not self.range > 0:
      raise ValueError(f'Expected range > 0, got range={self.range!r}.')

  def solve(self) -> noise.ScalarTable:
    cells = round(2 * self.range * self.bins)
    return noise.ScalarTable.from_cell_masses(
        self.bins, np.full(cells, 1 / cells), fields.uncertified(
            'uniform', {'range': self.range}, 'Uniform noise.'))


ALL = {
    **CASES,
    'TruncatedCauchy': Case(
        TruncatedCauchy(3, utility=1.0, bins=3), _moment(2), 1.0,
        {'range': 0.1, 'utility': 0.0}),
    'Uniform': Case(Uniform(2.0), _range, 2.0, {'range': -1.0})}


@functools.cache
def _solved(name: str) -> noise.ScalarTable:
  return ALL[name].request.solve()


@pytest.fixture(params=ALL)
def name(request) -> str:
  return request.param


def test_every_request_is_listed():
  offered = {name for name in design.__all__
             if hasattr(getattr(design, name), 'solve')}
  assert set(CASES) == offered
  assert all(name == type(case.request).__name__ for name, case in ALL.items())


def test_a_table_records_how_it_was_made(name):
  table = _solved(name)
  assert {'mechanism', 'parameters', 'objective', 'lower_bound', 'gap', 'solver',
          'statement'} <= set(table.info)
  assert table.info['mechanism'] == table.name
  assert table.info['statement'].endswith('.')


def test_a_table_keeps_to_its_budget(name):
  case = ALL[name]
  used = case.used(_solved(name))
  assert 0.9 * case.budget < used <= case.budget * (1 + 1e-9)


def test_solving_twice_is_the_same(name):
  assert ALL[name].request.solve().digest == _solved(name).digest


def test_a_table_is_saved_and_loaded(name, tmp_path):
  table = _solved(name)
  path = tmp_path / 'table.npz'
  table.save(path)
  again = noise.load(path)
  assert again.digest == table.digest
  assert type(again) is type(table) and again.name == table.name
  assert again.info['statement'] == table.info['statement']
  assert _proof(again) == _proof(table)


def _proof(table: Any) -> dict[str, float] | None:
  return design.verify(table) if table.info.get('multipliers') else None


def test_a_certificate_verifies(name):
  table = _solved(name)
  if not ALL[name].certified:
    with pytest.raises(ValueError, match='certificate'):
      design.verify(table)
    return
  proof = design.verify(table)
  for key in ('objective', 'lower_bound', 'gap'):
    assert proof[key] == pytest.approx(table.info[key], rel=1e-12, abs=1e-12)
  assert 0 <= proof['gap'] < 1e-6
  assert proof['lower_bound'] <= proof['objective'] * (1 + 1e-12)


def test_a_false_claim_is_caught(name):
  """Claims a tighter budget than the table has."""
  if not ALL[name].certified:
    return
  table = _solved(name)
  parameters = dict(table.info['parameters'])
  parameters['budget'] *= 0.9
  with pytest.raises(design.SolverError, match='cost'):
    design.verify(dataclasses.replace(
        table, info={**table.info, 'parameters': parameters}))


def test_bad_fields_are_refused_by_name(name):
  case = ALL[name]
  for field, value in case.bad.items():
    with pytest.raises(ValueError, match=f'Expected.*{field}'):
      dataclasses.replace(case.request, **{field: value})
