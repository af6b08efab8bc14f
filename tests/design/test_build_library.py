"""The command that rebuilds and re-verifies the shipped tables."""

from __future__ import annotations

import pytest

from tfcactus import design
from tfcactus.design import build_library
from tfcactus.noise import library


def test_the_shipped_tables_are_the_requested_ones():
  assert sorted(build_library.requests()) == library.names()


def test_check_passes_for_one(capsys):
  assert build_library.main(['--only', 'isotropic-dim3-sigma0.5',
                             '--check']) == 0
  assert 'FAILED' not in capsys.readouterr().out


@pytest.mark.slow
def test_a_rebuild_writes_the_same_distribution(tmp_path, monkeypatch, capsys):
  name = 'isotropic-dim5-sigma1'
  assert build_library.main(['--only', name, '--reproduce']) == 0
  monkeypatch.setattr(build_library, 'TABLES', tmp_path)
  assert build_library.main(['--only', name]) == 0
  assert build_library.main(['--only', name, '--check']) == 0
  capsys.readouterr()


def test_check_fails_for_a_foreign_table(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(build_library, 'TABLES', tmp_path)
  design.Monotone(0.3, bins=8).solve().save(tmp_path / 'monotone-budget1.npz')
  assert build_library.main(['--only', 'monotone-budget1', '--check']) == 1
  assert 'FAILED' in capsys.readouterr().out


def test_an_unknown_name_is_refused(capsys):
  with pytest.raises(SystemExit):
    build_library.main(['--only', 'nonsense'])
  assert 'nonsense' in capsys.readouterr().err
