"""Printed bounds are rounded to the safe side, wherever they are printed."""

import json
import pathlib
import re

import numpy as np
import pytest

from tests.representatives import representatives
import tfcactus
from tfcactus import guarantee as guarantee_lib, release
from tfcactus.cli import main

ROOT = pathlib.Path(tfcactus.__file__).parent.parent
NUMBER = r'([0-9.]+(?:e[+-]?[0-9]+)?|inf)'


def read(pattern, text):
  """Returns the numbers of a text that stand for `#` in a pattern."""
  found = re.search(re.escape(pattern).replace(r'\#', NUMBER), text)
  assert found, (pattern, text)
  return [float(group.rstrip('.')) for group in found.groups()]


def guarantee(upper, delta=1e-5, proven=True):
  return guarantee_lib.Guarantee(
      lower=0.0, estimate=upper, upper=upper, delta=delta, steps=1,
      neighboring_relation='add-or-remove-one', accountant='A', proven=proven,
      statement='S')


def test_printed_guarantees():
  """Printed bounds are never below the bounds, and close to them.

  Once, 210 of 400 bounds were printed too low, and 9e-6 as 'epsilon <= 0.0000'.
  """
  rng = np.random.default_rng(1)
  for upper in [*rng.uniform(0, 20, 200), *np.exp(rng.uniform(-20, 8, 200)), 9e-6]:
    delta = float(np.exp(rng.uniform(-30, -1)))
    told, at = read('epsilon <= # at delta # (', str(guarantee(upper, delta)))
    assert upper <= told <= upper * (1 + 1e-5) and delta <= at <= delta * (
        1 + 1e-5)
    told, at = read('epsilon # at delta # by', str(guarantee(upper, delta, False)))
    assert upper <= told and delta <= at
  assert 'epsilon <= inf at delta 1e-05 (' in str(guarantee(np.inf))


def run(capsys, *arguments):
  """Returns what a command prints, and its JSON."""
  assert main.main([*arguments]) == 0
  told = capsys.readouterr().out
  assert main.main([*arguments, '--json']) == 0
  return told, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize('sigma', ['0.71', '1.3', '2.77', '9.1', '1e5'])
def test_the_accountant_on_the_command_line(sigma, capsys):
  given = ['--noise', 'gaussian', '--noise-multiplier', sigma, '--steps', '3']
  told, exact = run(capsys, 'epsilon', *given, '--delta', '1.23456789e-5')
  upper, delta = read('epsilon <= # at delta #', told)
  lower, = read('lower bound #)', told)
  assert lower <= exact['lower'] <= exact['upper'] <= upper
  assert 1.23456789e-5 <= delta
  told, exact = run(capsys, 'delta', *given, '--epsilon', '0.123456789')
  upper, epsilon = read('delta <= # at epsilon #', told)
  lower, = read('lower bound #)', told)
  assert lower <= exact['lower'] <= exact['upper'] <= upper
  assert 0.123456789 <= epsilon


@representatives('target', ['0.7', '1.9'])
def test_what_is_calibrated(target, capsys):
  given = ['calibrate', '--noise', 'gaussian', '--target-epsilon', target,
           '--delta', '1e-6']
  for name, rest, safe in (
      ('noise_multiplier', ['--steps', '10'], lambda told, x: told >= x),
      ('sampling_prob', ['--steps', '10', '--noise-multiplier', '1.1'],
       lambda told, x: told <= x)):
    told, exact = run(capsys, *given, *rest)
    value, epsilon = read(f'{name} #: epsilon <= #', told)
    assert safe(value, exact[name]) and epsilon >= exact['epsilon']
    assert value == pytest.approx(exact[name], rel=1e-8)


@pytest.mark.parametrize('rho', ['0.0137', '0.1234567'])
def test_truncated_cdp(rho, capsys):
  told, exact = run(capsys, 'tcdp', '--rho', rho, '--omega', '12.3456789',
                    '--delta', '1e-6')
  one, omega, epsilon = read('(#, #)-tCDP: epsilon <= #', told)
  assert one >= exact['rho'] and omega <= exact['omega']
  assert epsilon >= exact['epsilon']


def test_releases_and_gaps(tmp_path, capsys):
  path = str(tmp_path / 'column.txt')
  np.savetxt(path, np.arange(50) % 7, fmt='%d')
  for beta in ('0.05', '0.123456789', '1e-9'):
    told, exact = run(capsys, 'release', 'histogram', path, '--bins', '7',
                      '--noise-multiplier', '2.3', '--delta', '1e-6', '--beta', beta)
    epsilon, delta = read('epsilon <= # at delta #', told)
    assert epsilon >= exact['epsilon'] and delta >= 1e-6
    error, probability = read('count: # with probability #', told)
    assert error >= exact['error'] and probability <= 1 - float(beta)
    told, exact = run(capsys, 'gap', '--options', '100', '--noise-multiplier', '2',
                      '--beta', beta)
    for method, gap in exact.items():
      probability, told_gap = read(
          f'{method}: the best of 100 options is selected with probability # or more '
          'if its score leads by #', told)
      assert told_gap >= gap and probability <= 1 - float(beta)
  made = release.noisy_value(3.0, sensitivity=1, noise=tfcactus.Gaussian(7.7))
  assert 'with probability 0.999999' in made.report(1e-6, beta=1e-20)
  epsilon, = read('-tCDP, epsilon #', made.report(1e-6))
  assert epsilon >= made.tcdp(1e-6).epsilon(1e-6)


def test_designs(capsys):
  told, exact = run(capsys, 'design', 'monotone', '--budget', '0.3', '--bins', '5',
                    '--cells', '40')
  objective, bound = read('objective #, no table of this grid below # (', told)
  assert objective >= exact['objective'] and bound <= exact['lower_bound']
  assert read('(gap #)', told)[0] >= exact['gap']
  told, exact = run(capsys, 'design', 'truncated', '--range', '5', '--utility',
                    '1.5', '--epsilon', '0.31234567', '--steps', '1', '--bins', '10')
  delta, epsilon = read('delta <= # at epsilon #', told)
  assert delta >= exact['delta'] and epsilon >= 0.31234567
  assert read('shift: the density never increases with |z|; # of delta', told)[0] >= (
      exact['omega'])
  told, exact = run(capsys, 'tables')
  for row, line in zip(exact, told.splitlines()[1:]):
    objective, bound = map(float, line.split()[3:5])
    assert objective >= row['objective'] and bound <= row['lower_bound']


def test_the_search_for_the_least_epsilon():
  said = []
  found = tfcactus.optimal_noise(
      delta=1e-5, sampling_prob=0.1, steps=20, variance=1.0, dim=2000,
      progress=said.append)
  assert read('epsilon <= # for', found.certified)[0] >= found.epsilon
  assert read('epsilon <= #', said[0])[0] >= found.epsilon


BOUND = re.compile(
    r'\{[^{}:\n]*\b(?:upper|lower|epsilon|delta|lower_bound|gap|omega|guarantee|'
    r'sampling_prob)\b'
    r'[^{}:\n]*:[-+<>^ ,]*\d*\.?\d*[efg%]\}')
# Widths of bounds, differences of them, and what a benchmark was asked for.
NO_BOUND = {'{bounds.upper - bounds.lower:.1e}', '{upper - reference:+.1e}',
            '{delta:g}', '{row["epsilon"]:g}', '{row["delta"]:g}',
            '{row["sampling_prob"]:g}', '{row["sampling_prob"]:.4g}',
            '{row["upper"] - row["lower"]:.1e}',
            '{100 * (row["epsilon"] / row["epsilon_gaussian"] - 1):+.2f}'}


def test_no_other_place_rounds_a_bound_to_nearest():
  assert BOUND.findall("f'epsilon <= {guarantee.upper:.4f} at {delta:g}'") == [
      '{guarantee.upper:.4f}', '{delta:g}']
  found = {}
  for folder in ('tfcactus', 'training', 'benchmarks'):
    for file in sorted((ROOT / folder).rglob('*.py')):
      allowed = NO_BOUND if folder == 'benchmarks' else set()
      hits = set(BOUND.findall(file.read_text(encoding='utf-8'))) - allowed
      if hits:
        found[str(file.relative_to(ROOT))] = hits
  assert not found
