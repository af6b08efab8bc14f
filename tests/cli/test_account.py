"""The command account: it begins accounts, and shows who spent what."""

import json

import dp_accounting
import pytest

import tfcactus
from tfcactus import _format
from tfcactus.cli import main


@pytest.fixture
def file(tmp_path):
  return str(tmp_path / 'census.account')


def test_an_account_is_begun_shown_and_drawn(file, tmp_path, capsys):
  assert main.main(['account', 'new', file, '--epsilon', '4', '--delta', '1e-6',
                    '--relation', 'replace', '--unit', 'user', '--leak', '1e-8']) == 0
  account = tfcactus.DataAccount(file)
  account.spend(dp_accounting.GaussianDpEvent(20.0), label='ages', unit='user')
  account.spend(dp_accounting.LaplaceDpEvent(30.0), label='income', unit='user')
  account.reserve(dp_accounting.GaussianDpEvent(30.0), 9, label='march', unit='user')
  account.spend(dp_accounting.GaussianDpEvent(30.0), 4, label='march', unit='user')
  capsys.readouterr()
  picture = tmp_path / 'p.png'
  assert main.main(['account', 'show', file, '--picture', str(picture)]) == 0
  out = capsys.readouterr().out
  assert picture.stat().st_size > 1000
  for words in ('replace-one', account.head, 'slot march: 5 of 9 left', 'income',
                'ages: mu <= 0.1', 'Left for what is chosen later',
                'No guarantee if results'):
    assert words in out
  assert f'mu {_format.lower(account.left.mu)} of' in out
  assert main.main(['account', 'show', file, '--json']) == 0
  shown = json.loads(capsys.readouterr().out)
  assert shown['slots'] == {'march': [4, 9]} and shown['unit'] == 'user'
  assert [entry['kind'] for entry in shown['entries']] == [
      'spend', 'spend', 'reserve', 'use']
  assert shown['left']['leak'] == account.left.leak and shown['upper'] <= 4


@pytest.mark.parametrize('arguments, words', [
    (['new', '--epsilon', '4'], '--delta'), (['show'], 'found none'),
    (['moved'], 'found none'),
    (['new', '--epsilon', '4', '--delta', '1e-6', '--leak', '1'], 'leak below')])
def test_an_account_is_refused_in_words(file, capsys, arguments, words):
  assert main.main(['account', arguments[0], file, *arguments[1:]]) == 2
  assert words in capsys.readouterr().err


def test_nothing_is_begun_twice_and_a_move_is_vouched_for(file, tmp_path, capsys):
  new = ['--epsilon', '4', '--delta', '1e-6']
  assert main.main(['account', 'new', file, *new]) == 0
  assert main.main(['account', 'new', file, *new]) == 2
  assert 'which is there' in capsys.readouterr().err
  copy = tmp_path / 'copy'
  copy.write_bytes((tmp_path / 'census.account').read_bytes())
  assert main.main(['account', 'show', str(copy)]) == 2
  assert 'account moved FILE' in capsys.readouterr().err
  assert main.main(['account', 'moved', str(copy)]) == 0
  assert 'moved; who moved it vouches' in capsys.readouterr().out
  assert main.main(['account', 'show', str(copy)]) == 0
