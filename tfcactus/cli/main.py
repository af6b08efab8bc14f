"""The `tfcactus` command: what noise costs, and which tables are shipped."""

from __future__ import annotations

import argparse
import dataclasses
import fractions
import json
import sys
import time
from typing import Any
from typing import Callable
from typing import Optional
from typing import Sequence

import dp_accounting

from tfcactus import _checks
from tfcactus import _format
from tfcactus import accounting
from tfcactus import design
from tfcactus import noise as noise_lib
from tfcactus import relations
from tfcactus.accounting import calibration
from tfcactus.cli import design as design_commands
from tfcactus.cli import release
from tfcactus.noise import library

_SAMPLINGS = ('poisson', 'fixed')


def _fraction(text: str) -> fractions.Fraction:
  """A number such as 0.004 or 250/60000."""
  try:
    return fractions.Fraction(text)
  except (ValueError, ZeroDivisionError):
    raise argparse.ArgumentTypeError(
        f'Expected a number or a fraction such as 250/60000, got {text!r}.'
    ) from None


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  """A dict of names and values, each given once."""
  names = [name for name, _ in pairs]
  if len(set(names)) < len(names):
    raise ValueError(f'Expected each name once, got {", ".join(names)}.')
  return dict(pairs)


def _typed(name: str, kinds: tuple[type, ...], value: Any) -> Any:
  """A value from JSON or text, refused where it would have to be rounded."""
  if isinstance(value, bool) or not isinstance(value, (*kinds, str)):
    raise ValueError(
        f'Expected {name} to be {" or ".join(kind.__name__ for kind in kinds)}, '
        f'got {value!r}.')
  return kinds[-1](value)


@dataclasses.dataclass(frozen=True)
class _Group:
  """Equal steps, as typed."""

  noise: str
  noise_multiplier: Optional[float] = None
  sampling_prob: fractions.Fraction = fractions.Fraction(1)
  steps: int = 1
  sampling: str = 'poisson'
  bend: Optional[float] = None

  @classmethod
  def parse(cls, text: str) -> _Group:
    """From `noise=gaussian,noise_multiplier=1,sampling_prob=1/100,steps=9`."""
    try:
      return cls.of(_distinct(
          [part.split('=', 1) for part in text.split(',')]))
    except ValueError as error:
      raise argparse.ArgumentTypeError(
          f'Expected a step such as noise=gaussian,noise_multiplier=1,'
          f'sampling_prob=1/100,steps=50, got {text!r}: {error}') from None

  @classmethod
  def of(cls, values: dict[str, Any]) -> _Group:
    """From names and values."""
    number = lambda name: lambda v: _typed(name, (int, float), v)
    kinds = {'noise': str, 'noise_multiplier': number('noise_multiplier'),
             'steps': lambda v: _typed('steps', (int,), v),
             'sampling_prob': lambda v: fractions.Fraction(str(v)),
             'sampling': str, 'bend': number('bend')}
    unknown = set(values) - set(kinds)
    if unknown or 'noise' not in values:
      raise ValueError(f'Expected noise and some of {", ".join(kinds)}, got '
                       f'{", ".join(values)}.')
    return cls(**{name: kinds[name](value) for name, value in values.items()})

  def event(self) -> dp_accounting.DpEvent:
    """The event of all its steps."""
    steps = _checks.integer('steps', self.steps, 1)
    prob = _checks.sampling_prob(float(self.sampling_prob))
    if self.sampling not in _SAMPLINGS:
      raise ValueError(
          f'Expected sampling in {_SAMPLINGS}, got {self.sampling!r}.')
    event = accounting.noise_event(self._noise())
    if self.sampling == 'fixed':
      event = dp_accounting.SampledWithoutReplacementDpEvent(
          self.sampling_prob.denominator, self.sampling_prob.numerator, event)
    elif prob < 1:
      event = dp_accounting.PoissonSampledDpEvent(prob, event)
    return dp_accounting.SelfComposedDpEvent(event, steps)

  def _noise(self) -> noise_lib.Noise:
    if self.noise in release.FAMILIES:
      if self.noise_multiplier is None:
        raise ValueError(
            f'Expected --noise-multiplier with --noise {self.noise}.')
      return release.make_noise(self.noise, self.noise_multiplier, self.bend)
    if self.noise_multiplier is not None:
      raise ValueError(
          'Expected no --noise-multiplier with a table, which has its own, got '
          f'{self.noise_multiplier}.')
    if self.noise.endswith('.npz'):
      return noise_lib.load(self.noise)
    return library.get(self.noise)


def _add_steps(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('--noise', help='gaussian, laplace, sinh-normal, the name of a shipped '
      'table, or FILE.npz')
  add('--noise-multiplier', type=float,
      help='standard deviation of the Gaussian over the sensitivity; for the '
      'Laplace its scale b, for the sinh-normal its sigma')
  add('--bend', type=float,
      help='where the tails of the sinh-normal turn, over the sensitivity')
  add('--sampling-prob', type=_fraction, default=fractions.Fraction(1),
      help='such as 0.004 or 250/60000')
  add('--steps', type=int)
  add('--sampling', choices=_SAMPLINGS, default='poisson')
  add('--step', action='append', type=_Group.parse, default=[],
      metavar='NAME=VALUE,...', help='a group of steps; repeat for more')
  add('--steps-file', metavar='FILE.json',
      help='a JSON list of such groups, as objects')
  add('--relation', '--neighbors', choices=sorted(relations.NAMES),
      default='add-or-remove', help='what neighbours differ in: one record more '
      'or less, one that contributes zero (zero-out), or one replaced by any '
      'other (default: %(default)s)')
  add('--direction', choices=('both', 'add', 'remove'), default='both')
  add('--json', action='store_true', help='print JSON')


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(prog='tfcactus', description=__doc__)
  commands = parser.add_subparsers(dest='command', required=True)
  epsilon = commands.add_parser('epsilon', help='epsilon of steps at a delta')
  _add_steps(epsilon)
  epsilon.add_argument('--delta', type=float, required=True)
  epsilon.set_defaults(run=_epsilon)
  delta = commands.add_parser('delta', help='delta of steps at an epsilon')
  _add_steps(delta)
  delta.add_argument('--epsilon', type=float, required=True)
  delta.set_defaults(run=_delta)
  calibrate = commands.add_parser(
      'calibrate', help='the one of noise multiplier, steps and sampling '
      'probability that is not given, for a target epsilon')
  _add_steps(calibrate)
  calibrate.set_defaults(sampling_prob=None)
  calibrate.add_argument('--target-epsilon', type=float, required=True)
  calibrate.add_argument('--delta', type=float, required=True)
  calibrate.set_defaults(run=_calibrate)
  design_commands.register(commands)
  release.register(commands)
  return parser


def _groups(args: argparse.Namespace) -> list[_Group]:
  groups = list(args.step)
  if args.steps_file:
    with open(args.steps_file, encoding='utf-8') as file:
      try:
        listed = json.load(file, object_pairs_hook=_distinct)
      except json.JSONDecodeError as error:
        raise ValueError(f'Expected JSON in {args.steps_file!r}: {error}.') from None
    if not isinstance(listed, list) or not all(
        isinstance(item, dict) for item in listed):
      raise ValueError(
          f'Expected a JSON list of objects in {args.steps_file!r}.')
    groups += [_Group.of(item) for item in listed]
  if args.noise is not None:
    if args.steps is None:
      raise ValueError('Expected --steps with --noise.')
    groups.append(_Group(args.noise, args.noise_multiplier,
                         args.sampling_prob, args.steps, args.sampling,
                         args.bend))
  if not groups:
    raise ValueError('Expected --noise and --steps, --step or --steps-file.')
  return groups


def _bounds(args: argparse.Namespace,
            solve: Callable[[accounting.PhiAccountant], accounting.Bounds]
            ) -> tuple[accounting.Bounds, float]:
  events = [group.event() for group in _groups(args)]
  start = time.perf_counter()
  accountant = accounting.PhiAccountant(
      relations.NAMES[args.relation], direction=args.direction)
  for event in events:
    accountant.compose(event)
  bounds = solve(accountant)
  return bounds, time.perf_counter() - start


def _show(args: argparse.Namespace, name: str, bounds: accounting.Bounds,
          seconds: float, at: str) -> None:
  relation = relations.NAMES[args.relation]
  statement = (
      ('' if args.direction == 'both' else
       'One direction alone is no guarantee. ') +
      relations.protected(relation, 'record', 'the data') + '. ' +
      relations.public(relation, 'The number of records, the sampling probability '
                       'and the number of steps', 'record') + '.')
  if args.json:
    print(json.dumps({
        'lower': bounds.lower, 'estimate': bounds.estimate,
        'upper': bounds.upper, 'relation': args.relation,
        'direction': args.direction, 'statement': statement,
        'seconds': seconds}))
    return
  print(f'{name} <= {_format.upper(bounds.upper, 10)} at {at} '
        f'({args.relation}, direction {args.direction}; estimate '
        f'{bounds.estimate:.10g}, lower bound {_format.lower(bounds.lower, 10)}). '
        f'{statement}')


def _epsilon(args: argparse.Namespace) -> None:
  bounds, seconds = _bounds(args, lambda a: a.epsilon_bounds(args.delta))
  _show(args, 'epsilon', bounds, seconds, f'delta {_format.upper(args.delta)}')


def _delta(args: argparse.Namespace) -> None:
  bounds, seconds = _bounds(args, lambda a: a.delta_bounds(args.epsilon))
  _show(args, 'delta', bounds, seconds, f'epsilon {_format.upper(args.epsilon)}')


def _calibrate(args: argparse.Namespace) -> None:
  wanted = [name for name in ('noise_multiplier', 'steps', 'sampling_prob')
            if getattr(args, name) is None]
  if args.noise is None or args.step or args.steps_file:
    raise ValueError('Expected --noise with calibrate, and no other steps.')
  if args.noise not in release.FAMILIES and 'noise_multiplier' in wanted:
    wanted.remove('noise_multiplier')
  if len(wanted) == 2 and 'sampling_prob' in wanted:
    wanted.remove('sampling_prob')
    args.sampling_prob = fractions.Fraction(1)
  if len(wanted) != 1:
    raise ValueError(
        'Expected two of --noise-multiplier, --steps and --sampling-prob, to '
        f'find the third, got {3 - len(wanted)} of them.')
  name, = wanted

  def event(value):
    values = {'noise_multiplier': args.noise_multiplier, 'steps': args.steps,
              'sampling_prob': args.sampling_prob}
    values[name] = fractions.Fraction(value) if name == 'sampling_prob' else value
    return _Group(args.noise, sampling=args.sampling, bend=args.bend,
                  **values).event()

  solve = {'noise_multiplier': calibration.calibrate_noise,
           'steps': calibration.calibrate_steps,
           'sampling_prob': calibration.calibrate_sampling_prob}[name]
  start = time.perf_counter()
  cost = calibration.account(event, args.delta, relations.NAMES[args.relation],
                             args.direction)
  value = solve(args.target_epsilon, cost)
  reached = cost(value) if value else 0.0
  seconds = time.perf_counter() - start
  if args.json:
    print(json.dumps({name: value, 'epsilon': reached, 'seconds': seconds}))
  else:
    # Less noise, or more sampling, would cost more than is said.
    safe = _format.lower if name == 'sampling_prob' else _format.upper
    told = str(value) if name == 'steps' else safe(value, 10)
    print(f'{name} {told}: epsilon <= {_format.upper(reached, 10)} at delta '
          f'{_format.upper(args.delta)}')


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the command; returns its exit code."""
  args = _parser().parse_args(argv)
  try:
    args.run(args)
  except (ValueError, OSError, ImportError, design.SolverError,
          dp_accounting.UnsupportedEventError) as error:
    print(f'tfcactus: {error}', file=sys.stderr)
    return 2
  except OverflowError as error:
    print(f'tfcactus: the numbers given are out of range: {error}',
          file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
