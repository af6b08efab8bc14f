"""Groups of training steps as command-line arguments, and their privacy cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import fractions
import json
import time
from typing import Any, Callable

import dp_accounting

from tfcactus import _checks, _format, accounting, noise as noise_lib, relations
from tfcactus.accounting.attacks import AttackReport
from tfcactus.cli import command
from tfcactus.noise import library
from tfcactus.release import planner


def _distinct(pairs: Sequence[Sequence[Any]]) -> dict[str, Any]:
  """Returns a dict of pairs; ValueError for a repeated name, or one without a value."""
  names = [pair[0] for pair in pairs]
  if len(set(names)) < len(names):
    raise ValueError(f'Expected each name once, got {", ".join(names)}.')
  # A pair has no value if an argument is typed without '=': dict() then raises.
  return dict(pairs)  # type: ignore[arg-type]


def _typed(name: str, kinds: tuple[type, ...], value: object) -> Any:
  """Returns text or a number as the last of `kinds`; ValueError for other values."""
  try:
    if isinstance(value, bool) or not isinstance(value, (*kinds, str)):
      raise ValueError(value)
    return kinds[-1](value)
  except (ValueError, OverflowError):
    raise ValueError(
        f'Expected {name} to be {" or ".join(kind.__name__ for kind in kinds)}, '
        f'got {value!r}.') from None


@dataclasses.dataclass(frozen=True)
class StepGroup:
  """Equal steps, as given on the command line."""

  noise: str  # A family, the name of a shipped table, or a file.
  # Size of the noise; None for a table, which has its own.
  noise_multiplier: float | None = None
  # Exact sampling probability; for samples of a fixed size, the sample size (numerator)
  # over the data size (denominator).
  sampling_prob: fractions.Fraction = fractions.Fraction(1)
  steps: int = 1  # Number of steps; for allocation sampling, number of epochs.
  sampling: str = 'poisson'  # One of `SAMPLINGS`.
  bend: float | None = None  # Bend of sinh-normal noise.
  # Batches of an epoch, for allocation sampling (balls-in-bins).
  batches: int | None = None

  @classmethod
  def parse(cls, text: str) -> StepGroup:
    """Returns the group of `noise=gaussian,noise_multiplier=1,...`, for argparse."""
    try:
      return cls.of(_distinct([part.split('=', 1) for part in text.split(',')]))
    except ValueError as error:
      raise argparse.ArgumentTypeError(
          'Expected a step such as noise=gaussian,noise_multiplier=1,'
          f'sampling_prob=1/100,steps=50, got {text!r}: {error}') from None

  @classmethod
  def of(cls, values: dict[str, Any]) -> StepGroup:
    """Returns the group of fields by name; 'epochs' are the steps of allocation.

    Raises ValueError for names or types that are wrong; `event` checks the numbers.
    """
    kinds: dict[str, tuple[type, ...]] = {
        'noise': (str,), 'noise_multiplier': (int, float), 'steps': (int,),
        'sampling_prob': (int, float, str), 'sampling': (str,), 'bend': (int, float),
        'batches': (int,)}
    if 'epochs' in values:
      if values.get('sampling') != 'allocation' or 'steps' in values:
        raise ValueError(
            'Expected epochs with sampling allocation, and no steps beside them, got '
            f'{", ".join(f"{name}={value}" for name, value in values.items())}.')
      values = {'steps' if name == 'epochs' else name: value
                for name, value in values.items()}
    unknown = set(values) - set(kinds)
    if unknown or 'noise' not in values:
      raise ValueError(f'Expected noise and some of {", ".join(kinds)}, got '
                       f'{", ".join(values)}.')
    typed = {name: _typed(name, kinds[name], value) for name, value in values.items()}
    if 'sampling_prob' in typed:
      typed['sampling_prob'] = command.exact(typed['sampling_prob'])
    return cls(**typed)

  def event(self) -> dp_accounting.DpEvent:
    """Returns the event of all steps of the group; ValueError for wrong fields."""
    steps = _checks.integer('steps', self.steps, 1)
    prob = _checks.sampling_prob(float(self.sampling_prob))
    _checks.choice('sampling', self.sampling, SAMPLINGS)
    event = accounting.noise_event(self._noise())
    if (self.sampling == 'allocation') != (self.batches is not None) or (
        self.sampling == 'allocation' and prob < 1):
      raise ValueError(
          'Expected batches with sampling=allocation, without sampling_prob, and no '
          f'batches with another sampling, got sampling={self.sampling!r}, '
          f'batches={self.batches!r} and sampling_prob={self.sampling_prob}.')
    return dp_accounting.SelfComposedDpEvent(
        _SAMPLED[self.sampling](self, event), steps)

  def _noise(self) -> noise_lib.Noise:
    """Returns the noise of the family, or of the table, which fixes the multiplier."""
    if self.noise in planner.FAMILIES:
      return command.make_noise(self.noise, self.noise_multiplier, self.bend)
    try:
      table = named_table(self.noise)
    except ValueError as error:
      if self.noise.endswith('.npz'):
        raise
      raise ValueError(
          f'Expected noise in {", ".join(planner.FAMILIES)}, or the name of a '
          f'table: {error}') from error
    if self.noise_multiplier is not None or self.bend is not None:
      raise ValueError(
          'Expected no --noise-multiplier or --bend with a table, which has its own, '
          f'got {self.noise_multiplier} and {self.bend}.')
    return table


_SAMPLED: dict[str, Callable[[StepGroup, dp_accounting.DpEvent],
                             dp_accounting.DpEvent]] = {
    'poisson': lambda group, event: dp_accounting.PoissonSampledDpEvent(
        float(group.sampling_prob), event) if group.sampling_prob < 1 else event,
    'fixed': lambda group, event: dp_accounting.SampledWithoutReplacementDpEvent(
        group.sampling_prob.denominator, group.sampling_prob.numerator, event),
    'allocation': lambda group, event: accounting.RandomAllocationDpEvent(
        group.batches or 0, event)}
"""For each sampling, the event of one step (or epoch) from the event of its noise."""

SAMPLINGS = tuple(_SAMPLED)
"""Names of samplings."""


def named_table(name: str) -> library.Table:
  """Returns a shipped table by its name, or the table of a .npz file."""
  return noise_lib.load(name) if name.endswith('.npz') else library.get(name)


def add_steps(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of steps, neighbouring relation and direction."""
  add = parser.add_argument
  add('--noise', help='noise distribution: gaussian, laplace, sinh-normal, the name of '
      'a shipped table, or FILE.npz')
  command.add_noise_size(parser)
  add('--sampling-prob', type=command.fraction,
      help='probability that a record is in a batch, such as 0.004 or 250/60000')
  add('--steps', type=int, help='number of steps')
  add('--sampling', choices=SAMPLINGS,
      help='sampling of batches. poisson: each record enters independently; fixed: '
      'each step draws a batch of fixed size; allocation: each record enters one of '
      'the --batches of each of --epochs at random (random allocation, '
      'balls-in-bins). Default: poisson')
  add('--batches', type=int, help='batches of an epoch, with --sampling allocation')
  add('--epochs', type=int, help='number of epochs, in place of --steps, with '
      '--sampling allocation')
  add('--step', action='append', type=StepGroup.parse, default=[],
      metavar='NAME=VALUE,...', help='one group of steps, such as '
      'noise=gaussian,noise_multiplier=1,steps=10; repeat for more groups')
  add('--steps-file', metavar='FILE.json',
      help='file with a JSON list of groups of steps, one object per group')
  add('--relation', '--neighbors', choices=sorted(relations.NAMES),
      default='add-or-remove', help='neighboring relation: one record is added or '
      'removed, one contributes zero instead (zero-out), or one is replaced by any '
      'other. Default: %(default)s')
  add('--direction', choices=('both', 'add', 'remove'), default='both',
      help='direction of add-or-remove; one alone is no guarantee. Default: '
      '%(default)s')
  command.add_json(parser)


def add_rows(parser: argparse.ArgumentParser) -> None:
  """Adds --rows-of-one, the number of records of one person."""
  parser.add_argument(
      '--rows-of-one', type=int, default=1, metavar='K', help='largest number of '
      'records of one person, all of which are protected together (group privacy). '
      'Default: %(default)s')


def counted(args: argparse.Namespace) -> int | None:
  """Returns --steps, or --epochs for allocation, if given; refuses the other one.

  Sets args.sampling, by default to 'poisson'.
  """
  args.sampling = args.sampling or 'poisson'
  name, other = ('epochs', 'steps') if args.sampling == 'allocation' else (
      'steps', 'epochs')
  if getattr(args, other) is not None:
    raise ValueError(f'Expected --{name} with --sampling {args.sampling}, got '
                     f'--{other}.')
  return getattr(args, name)


_OF_NOISE = ('noise_multiplier', 'bend', 'sampling_prob', 'steps', 'sampling',
             'batches', 'epochs')
"""Arguments that describe the steps of --noise."""


def check_without_noise(args: argparse.Namespace) -> None:
  """Raises ValueError if arguments that describe the steps of --noise are given."""
  given = [name for name in _OF_NOISE if getattr(args, name) is not None]
  if given:
    raise ValueError(
        f'Expected --noise with {", ".join(map(command.option, given))}, got none. '
        f'Give --noise, or write {", ".join(f"{name}=..." for name in given)} inside '
        '--step or the file of --steps-file.')


def groups(args: argparse.Namespace) -> list[StepGroup]:
  """Returns the groups of --step, --steps-file and --noise.

  Raises ValueError if there are none, or if arguments of --noise are given without it.
  """
  found = list(args.step)
  if args.steps_file:
    found += _read(args.steps_file)
  if args.noise is not None:
    count = counted(args)
    if count is None:
      raise ValueError('Expected --steps with --noise, or --epochs with --sampling '
                       'allocation.')
    found.append(StepGroup(
        args.noise, args.noise_multiplier,
        fractions.Fraction(1) if args.sampling_prob is None else args.sampling_prob,
        count, args.sampling, args.bend, args.batches))
  else:
    check_without_noise(args)
  if not found:
    raise ValueError('Expected --noise and --steps, --step or --steps-file.')
  return found


def _read(path: str) -> list[StepGroup]:
  """Returns the groups in a JSON file; ValueError unless it is a list of them."""
  with open(path, encoding='utf-8-sig') as file:  # Some editors write a mark.
    try:
      listed = json.load(file, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
      raise ValueError(f'Expected JSON in {path!r}: {error}.') from None
  if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
    raise ValueError(f'Expected a JSON list of objects in {path!r}.')
  return [StepGroup.of(item) for item in listed]


def one_direction(args: argparse.Namespace) -> str:
  """Returns a sentence on a --direction that is no guarantee, or ''."""
  return '' if args.direction == 'both' else 'One direction alone is no guarantee. '


def show_bounds(args: argparse.Namespace, name: str, at: str,
                solve: Callable[[accounting.PhiAccountant], accounting.Bounds],
                report: Callable[[accounting.PhiAccountant, str], AttackReport] |
                None = None,
                search: Callable[[dp_accounting.DpEvent], accounting.SearchDpEvent] |
                None = None) -> None:
  """Accounts for the steps in the arguments, and prints the bounds on `name`."""
  # `name` is epsilon or delta; `at` states the other one in words, rounded up. `search`
  # returns the event of a search from that of a run, all steps. `solve` returns the
  # bounds from an accountant that has composed the steps or the search, and `report` a
  # report from the accountant and a statement.
  listed = groups(args)
  # The numbers of records, which a reduced fraction has lost, set the cost of rows.
  if args.rows_of_one > 1 and any(group.sampling == 'fixed' for group in listed):
    raise ValueError(
        'Expected --rows-of-one with sampling poisson or allocation, got fixed: the '
        'cost of several rows then depends on the numbers of records, not on their '
        'share. Use PrivacyPlan(...).guarantee(rows_of_one=..., '
        'sampling=FixedSizeSampling).')
  events: list[dp_accounting.DpEvent] = [group.event() for group in listed]
  condition = ''
  if search is not None:
    searched = search(dp_accounting.ComposedDpEvent(events))
    events, condition = [searched], f' {searched.condition}'
  start = time.perf_counter()
  relation = relations.NAMES[args.relation]
  accountant = accounting.PhiAccountant(
      relation, direction=args.direction, rows_of_one=args.rows_of_one)
  for event in events:
    accountant.compose(event)
  bounds = solve(accountant)
  seconds = time.perf_counter() - start
  statement = (
      one_direction(args) +
      relations.protected(relation, 'record', 'the data', args.rows_of_one) + '. ' +
      relations.public(relation, 'The number of records, the sampling probability '
                       'or number of batches, and the number of steps', 'record') +
      f'.{condition}')
  found = None if report is None else report(accountant, statement)
  command.show(args, {
      'lower': bounds.lower, 'estimate': bounds.estimate, 'upper': bounds.upper,
      'relation': args.relation, 'direction': args.direction,
      'rows_of_one': args.rows_of_one,
      'statement': statement, 'seconds': seconds,
      **({} if found is None else {'report': found.as_dict()})},
      f'{name} <= {_format.upper(bounds.upper, 10)} at {at} '
      f'({args.relation}, direction {args.direction}; estimate '
      f'{bounds.estimate:.10g}, lower bound {_format.lower(bounds.lower, 10)}).'
      + (f' {statement}' if found is None else f'\n{found}'))
