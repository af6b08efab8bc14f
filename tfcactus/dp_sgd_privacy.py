"""Epsilon of DP-SGD by TensorFlow Privacy's two functions: same names and arguments."""

from __future__ import annotations

import fractions
import math
import textwrap
import warnings

from tfcactus import _checks, _format, noise as noise_lib
from tfcactus.plan import PrivacyPlan
from tfcactus.sampling import OnePassSampling

_ASSUMED = (
    'This epsilon holds only if each example entered each batch independently of all '
    'others, as PoissonBatches draw them. For batches cut from a shuffled pass, which '
    'fit(x, y) and tf.data.Dataset.shuffle make, it has no proof.')

_NO_POISSON = (
    'Poisson samples have no proved epsilon where means of several examples are '
    'clipped: one example more moves others to other microbatches. Pass '
    'used_microbatching=False if each example was clipped by itself, as '
    'tfcactus.keras.privatize always does.')

_NO_STRADDLING = (
    'No batch may hold examples of two passes, where one example could enter twice: '
    'batch a data set before you repeat it.')

_RELATIONS = {'zero-out': 'replaced by an empty one',
              'replace': 'replaced by any other'}
"""Neighbouring relations that have an account for passes, and words for them."""


def compute_dp_sgd_privacy(n: int, batch_size: int, noise_multiplier: float,
                           epochs: float, delta: float) -> tuple[float, float]:
  """Returns the epsilon of DP-SGD on Poisson samples, by `PhiAccountant`.

  Each example must have been clipped by itself. A warning names the sampling that is
  assumed; `compute_dp_sgd_privacy_statement` also has the epsilon of shuffled passes.

  Args:
    n: Number of examples.
    batch_size: Expected number of examples in a batch.
    noise_multiplier: Standard deviation of the Gaussian noise over the clipping norm.
    epochs: Number of epochs, which may be fractional. There are
      epochs * n / batch_size steps, rounded up.
    delta: Target delta.

  Returns:
    (upper bound on epsilon for one example added or removed, NaN). TensorFlow Privacy's
    second value is a Renyi order, and this accountant has none.

  Raises:
    ValueError: if an argument is out of range.
  """
  plan, _ = _planned(('n', n), batch_size, noise_multiplier, ('epochs', epochs), delta)
  warnings.warn(f'compute_dp_sgd_privacy assumes that each example was clipped by '
                f'itself, and Poisson samples. {_ASSUMED}', stacklevel=2)
  return plan.guarantee().upper, math.nan


def compute_dp_sgd_privacy_statement(
    number_of_examples: int, batch_size: int, num_epochs: float,
    noise_multiplier: float, delta: float, used_microbatching: bool = True,
    max_examples_per_user: int | None = None, accountant_type: object = 'RDP') -> str:
  """Returns a text: epsilon of DP-SGD for each kind of sampling, and what it assumes.

  Other arguments are as for `compute_dp_sgd_privacy`, under other names.

  Args:
    used_microbatching: Whether means of several examples were clipped. Pass False if
      each example was clipped by itself, as `privatize` always does.
    max_examples_per_user: Number of examples whose joint epsilon is added; or None.
    accountant_type: 'RDP', 'PLD' or TensorFlow Privacy's enum; changes no number.

  Raises:
    ValueError: if an argument is out of range.
  """
  if getattr(accountant_type, 'value', accountant_type) not in ('RDP', 'PLD'):
    raise ValueError(
        "Expected accountant_type 'RDP' or 'PLD' (with either the numbers are those of "
        f"tfcactus' PhiAccountant), got accountant_type={accountant_type!r}.")
  _checks.flag('used_microbatching', used_microbatching)
  plan, passes = _planned(
      ('number_of_examples', number_of_examples), batch_size, noise_multiplier,
      ('num_epochs', num_epochs), delta)
  most = 1 if max_examples_per_user is None else _checks.integer(
      'max_examples_per_user', max_examples_per_user, 1, plan.num_examples)
  passed = plan.guarantee(passes, 'replace', sampling=OnePassSampling).statement
  if used_microbatching:  # AllocatedBatches' epsilon is for single clipped examples.
    passed = passed.partition(' AllocatedBatches')[0]
  parts = [
      f'DP-SGD on {plan.num_examples} examples, {batch_size} a batch, for {num_epochs} '
      f'epochs: Gaussian noise of noise multiplier {noise_multiplier}, after '
      f'{"means of microbatches were" if used_microbatching else "each example was"} '
      f'clipped. Each epsilon is an upper bound by tfcactus PhiAccountant at delta '
      f'{_format.upper(plan.delta)}, rounded up, and covers the weights after every '
      'step. Take the epsilon of the sampling that ran.',
      *(_table(plan, passes, used_microbatching, rows) for rows in sorted({1, most})),
      _NO_POISSON if used_microbatching else
      f'Poisson samples: {plan.guarantee().statement} {_ASSUMED}',
      f'Passes: {passed} {_NO_STRADDLING}']
  if most == 1:
    parts.append('A person with several examples is protected less: '
                 'max_examples_per_user gives the epsilon of all of them together.')
  return '\n\n'.join(
      part if part.startswith(' ') else textwrap.fill(
          part, 80, break_long_words=False, break_on_hyphens=False)
      for part in parts) + '\n'


def _table(plan: PrivacyPlan, passes: int, used_microbatching: bool, rows: int) -> str:
  """Returns lines with the epsilon of each sampling, for `rows` rows of one person."""
  found = {}
  if not used_microbatching:
    found['Poisson samples (added or removed)'] = plan.guarantee(rows_of_one=rows)
  for relation, words in _RELATIONS.items():
    # A zeroed example moves a microbatch's clipped mean as far as a replaced one.
    if not (used_microbatching and relation == 'zero-out'):
      found[f'passes ({words})'] = plan.guarantee(
          passes, relation, sampling=OnePassSampling, rows_of_one=rows)
  whom = 'one example' if rows == 1 else f'{rows} examples of one person together'
  return '\n'.join([f'  Epsilon for {whom}:', *(
      f'    {label + ":":36}{_format.upper(each.upper)}'
      for label, each in found.items())])


def _planned(size: tuple[str, object], batch_size: int, noise_multiplier: float,
             epochs: tuple[str, object], delta: float) -> tuple[PrivacyPlan, int]:
  """Returns a plan and the number of passes. `size` and `epochs` are (name, value)."""
  examples = _checks.integer(*size, 1)
  if _checks.integer('batch_size', batch_size, 1) > examples:
    raise ValueError(f'Expected batch_size of at most {size[0]}={examples}, got '
                     f'batch_size={batch_size}.')
  # Read by its digits: 0.1 epochs are a tenth, not the float just above a tenth.
  times = fractions.Fraction(repr(_checks.positive(*epochs)))
  return PrivacyPlan(
      noise=noise_lib.Gaussian(noise_multiplier), l2_norm_clip=1.0,
      num_examples=examples, sampling_prob=batch_size / examples, delta=delta,
      steps=_checks.count('the number of steps', math.ceil(
          times * examples / batch_size))), math.ceil(times)
