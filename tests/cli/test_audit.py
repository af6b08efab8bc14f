"""`tfcactus audit`, and the report of `tfcactus epsilon`."""

import numpy as np
import pytest

from tests.cli.command import output
import tfcactus
from tfcactus.cli import main

STEPS = ('--noise', 'gaussian', '--noise-multiplier', '1.5', '--sampling-prob', '0.05',
         '--steps', '300')


@pytest.fixture
def scores(tmp_path):
  """A file of scores that a release of one Gaussian with noise 1 gives."""
  rng = np.random.default_rng(0)
  coins = rng.random(500) < 0.5
  lines = [f'{score!r},{int(coin)}' for score, coin in zip(
      (rng.normal(size=500) + coins).tolist(), coins)]
  path = tmp_path / 'scores.csv'
  path.write_text('\n'.join(['score,present', *lines]), encoding='utf-8')
  return str(path)


def test_audit_without_a_claim(capsys, scores):
  found = output(capsys, 'audit', scores, '--delta', '1e-5')
  assert not found['refuted'] and len(found['findings']) == 4
  assert all(0 <= finding['epsilon'] < 4.4 for finding in found['findings'])


def test_audit_of_a_false_and_of_a_true_claim(capsys, scores):
  claim = ('--noise', 'gaussian', '--steps', '1', '--noise-multiplier')
  assert output(capsys, 'audit', scores, '--delta', '1e-5', *claim, '5')['refuted']
  assert main.main(['audit', scores, '--delta', '1e-5', *claim, '1']) == 0
  said = capsys.readouterr().out
  assert 'not refuted, which does not prove it' in said and "Claim's family" in said


def test_audit_of_another_noise_tries_the_claim_alone(capsys, scores):
  found = output(capsys, 'audit', scores, '--delta', '1e-5', '--noise', 'laplace',
                 '--noise-multiplier', '1', '--steps', '1')
  assert [finding['name'] for finding in found['findings']
          if finding['p_value'] is not None] == ['Claim, by its trade-off curve']
  assert len(found['findings']) == 5


def test_samples_of_fixed_size_leave_out_what_needs_independent_canaries(
    capsys, scores):
  found = output(capsys, 'audit', scores, '--delta', '1e-5', *STEPS,
                 '--sampling', 'fixed')
  assert {finding['assumes'][:9] for finding in found['findings']} == {'coins are'}


@pytest.mark.parametrize('text, said', [
    ('score;present\n1;0', 'names score, present'), ('', 'got none'),
    ('score,present\n1,yes', 'line 2'), ('score,present\n1,0\nnan,1', 'line 3'),
    ('score,present\n1', 'line 2'), ('score,present\n1,' + 'a' * 200_000, 'CSV'),
    ('score,present\n1,0\n2,1', 'at least two')])
def test_files_that_are_no_scores_are_refused(capsys, tmp_path, text, said):
  path = tmp_path / 'scores.csv'
  path.write_text(text, encoding='utf-8')
  assert main.main(['audit', str(path), '--delta', '1e-5']) == 2
  assert said in capsys.readouterr().err


def test_a_file_in_another_encoding_is_refused_by_name(capsys, tmp_path):
  path = tmp_path / 'scores.csv'
  path.write_bytes(b'score,present,gr\xf6\xdfe\n1,1,2\n')
  assert main.main(['audit', str(path), '--delta', '1e-5']) == 2
  assert 'Expected CSV, in UTF-8, in ' in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_a_name(capsys, scores):
  plain = output(capsys, 'audit', scores, '--delta', '1e-5')
  with open(scores, 'r+b') as file:
    text = file.read()
    file.seek(0)
    file.write(b'\xef\xbb\xbf' + text)
  assert output(capsys, 'audit', scores, '--delta', '1e-5') == plain


@pytest.mark.parametrize('arguments', [
    ('--relation', 'replace'), ('--direction', 'add')])
def test_claims_on_other_neighbours_are_refused(capsys, scores, arguments):
  assert main.main(['audit', scores, '--delta', '1e-5', *STEPS, *arguments]) == 2
  assert 'a coin puts into the data' in capsys.readouterr().err


def test_steps_without_noise_are_refused(capsys, scores):
  assert main.main(['audit', scores, '--delta', '1e-5', '--steps', '10']) == 2
  assert 'Expected --noise with --steps' in capsys.readouterr().err


def test_report_of_epsilon(capsys):
  found = output(capsys, 'epsilon', *STEPS, '--delta', '1e-5', '--report',
                 '--prior', '1/4')
  report = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.5), l2_norm_clip=1.0, num_examples=100,
      sampling_prob=0.05, steps=300, delta=1e-5).guarantee().report(prior=0.25)
  assert found['report']['posterior'] == report.as_dict()['posterior']
  assert found['report']['true_positive']['0.01']['upper'] == pytest.approx(
      0.0480161, abs=1e-6)
  assert 'report' not in output(capsys, 'epsilon', *STEPS, '--delta', '1e-5')


def test_report_in_words(capsys):
  assert main.main(['epsilon', *STEPS, '--delta', '1e-5', '--report']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].startswith('epsilon <= 2.8901') and 'advantage' in lines[3]
  assert lines[-1].startswith('For any one record')
  assert main.main(['epsilon', *STEPS, '--delta', '1e-5', '--report', '--direction',
                    'add']) == 2
  assert "direction 'both'" in capsys.readouterr().err


def test_picture_of_the_trade_off_curve(capsys, tmp_path):
  pytest.importorskip('matplotlib')
  path = tmp_path / 'curve.png'
  assert main.main(['epsilon', '--noise', 'gaussian', '--noise-multiplier', '1',
                    '--steps', '1', '--delta', '1e-5', '--picture', str(path)]) == 0
  assert path.read_bytes()[:4] == b'\x89PNG'
