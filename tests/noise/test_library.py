"""The shipped tables and their loader."""

from __future__ import annotations

import math
import pathlib

import pytest

from tests.representatives import representatives
from tfcactus import design, noise
from tfcactus.noise import library


@pytest.mark.parametrize('name', library.names())
def test_every_shipped_table(name):
  table = library.get(name)
  entry = next(e for e in library.entries() if e.name == name)
  assert table.dim == entry.dim
  assert table.noise_multiplier == pytest.approx(entry.noise_multiplier,
                                                 rel=1e-9)
  if not entry.mechanism.startswith('cactus'):
    assert table.monotone
  assert table.info['statement']
  assert entry.mechanism.replace('-paper', '') == table.info['mechanism']
  assert table.info['gap'] <= 2e-9
  assert table.info['lower_bound'] <= table.info['objective']


@representatives('name', [
    'cactus-budget0.25', 'monotone-budget4', 'monotone-chi2-budget0.1',
    'isotropic-dim5-sigma0.3', 'isotropic-chi2-dim10-sigma0.5',
    'isotropic-dim100-sigma1', 'isotropic-chi2-dim1000-sigma0.3'], 2)
def test_certificates_hold_anew(name):
  table = library.get(name)
  fresh = design.verify(table)
  assert fresh['objective'] == pytest.approx(table.info['objective'], rel=1e-10)
  assert fresh['lower_bound'] == pytest.approx(table.info['lower_bound'],
                                               rel=1e-9)


def test_what_is_shipped():
  names = set(library.names())
  assert {'isotropic-dim26010-sigma1.3', 'isotropic-dim3-sigma0.5',
          'cactus-budget0.25', 'monotone-budget0.25'} <= names
  assert list(names) and library.names() == sorted(names)


def test_the_grid_of_the_paper():
  # Figure 1 of paper 000: C = .25, n = 200, N = 1600, r = .9.
  table = library.find('cactus-paper', budget=0.25)
  assert table.bins == 200 and table.log_density.size == 1601
  assert math.exp(table.log_tail_ratio) == pytest.approx(0.9, rel=1e-14)
  # Its KL was found once more by summing over cells, in code of its own.
  assert table.info['objective'] == pytest.approx(1.72729853105, rel=1e-9)


def test_the_files_are_small():
  folder = pathlib.Path(library.__file__).parent / 'tables'
  assert sum(f.stat().st_size for f in folder.glob('*.npz')) < 4_000_000


def test_find_answers_requests():
  table = library.find('isotropic', dim=3, noise_multiplier=0.5)
  assert table is library.get('isotropic-dim3-sigma0.5')
  assert library.find('isotropic', dim=3, budget=0.75) is table
  assert library.find('cactus', budget=0.25) is (
      library.find('cactus', noise_multiplier=0.5))
  big = library.find('isotropic', dim=26010, noise_multiplier=1.3)
  assert isinstance(big, noise.RadialTable) and big.dim == 26010


@pytest.mark.parametrize('request_, words', [
    (dict(mechanism='isotropic', dim=3, noise_multiplier=0.51),
     r'Isotropic\(3, 0.51\)'),
    (dict(mechanism='isotropic', dim=3, noise_multiplier=0.5 + 1e-6),
     'Shipped'),
    (dict(mechanism='isotropic-chi2', dim=4, noise_multiplier=1),
     r"objective='chi2'"),
    (dict(mechanism='cactus-paper', budget=2),
     r'Cactus\(2, bins=200, cells=1600, tail_ratio=0.9\)'),
    (dict(mechanism='isotropic', dim=1000, noise_multiplier=1.1),
     r'Isotropic\(1000, 1.1\)'),
    (dict(mechanism='cactus', dim=3, noise_multiplier=0.5),
     'scalar queries only'),
    (dict(mechanism='cactus', budget=0.2), r'Cactus\(0.2\)'),
    (dict(mechanism='cactu', budget=0.2), 'mechanism'),
    (dict(mechanism=None, budget=0.2), 'mechanism'),
    (dict(mechanism='cactus'), 'exactly one'),
    (dict(mechanism='cactus', budget=1, noise_multiplier=1), 'exactly one'),
    (dict(mechanism='cactus', budget=math.nan), 'budget'),
    (dict(mechanism='cactus', budget=-1), 'budget'),
    (dict(mechanism='isotropic', dim=0, noise_multiplier=1), 'dim'),
    (dict(mechanism='isotropic', dim=2.5, noise_multiplier=1), 'dim'),
])
def test_find_says_what_to_do_instead(request_, words):
  with pytest.raises(ValueError, match=words):
    library.find(**request_)


@pytest.mark.parametrize('name', ['', 'nope', '../cactus-budget1', None, 3,
                                  ['cactus-budget1'], 'cactus-budget1.npz'])
def test_get_refuses_other_names(name):
  with pytest.raises(ValueError, match='Shipped'):
    library.get(name)
