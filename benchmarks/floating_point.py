"""Measures floating-point attacks on plain sums and private steps, and whole numbers.

    python -m benchmarks.floating_point

The attacks exploit that floating-point numbers reveal more than real numbers would:

- how far one example moves the sum of many rows (Casacuberta et al., "Widespread
  Underestimation of Sensitivity in Differentially Private Libraries and How to Fix It",
  2022);
- which share of released numbers is possible for only one of two sums (Mironov, "On
  Significance of the Least Significant Bits For Differential Privacy", 2012; Haney et
  al., "Precision-based attacks and interval refining", 2022);
- how large a clipped gradient is in a sum if matrix products round their operands.

Private steps run in floats and in whole numbers (`arithmetic='integer'`). Of the latter
it also measures how far one of many adversarial gradients moves a sum, over the bound,
the time of a draw and of a step, and epsilon.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
from scipy import stats  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import _processes, _results, whole_numbers  # noqa: E402
from tests.keras import rounded_products  # noqa: E402
import tfcactus  # noqa: E402
from tfcactus import _format, keras as private  # noqa: E402
from tfcactus.keras import NoiseSampler  # noqa: E402
from tfcactus.keras.compat import precision  # noqa: E402
from tfcactus.keras.gradients import clipping, forms  # noqa: E402
from tfcactus.keras.step import step_noise  # noqa: E402
from tfcactus.noise import discrete_gaussian  # noqa: E402
from tfcactus.randomness import SystemRandom  # noqa: E402
from training import networks  # noqa: E402

QUICK = ('--draws', '10000', '--gradients', '50', '--rounds', '1')

PLAIN, OURS, WHOLE = 'float32', 'tfcactus', 'integer'
ROWS = (1025, 4097, 16_385)
SIGMAS = (0.5, 1.0, 2.0)
SMALL = 2.0**-24
"""Only draws below this multiple of the clipping norm can separate float32 numbers."""


def plain_sum(rows, clip):
  """Returns the sum of clipped rows, computed as one float32 matrix product."""
  norms = tf.norm(tf.cast(rows, tf.float64), axis=1)
  factors = clip * (1 - clipping.CLIP_MARGIN) / tf.maximum(
      norms, clip * (1 - clipping.CLIP_MARGIN))
  return tf.matmul(tf.cast(factors, tf.float32)[None], rows)[0]


def private_sum(rows, clip):
  """Returns the sum of clipped rows, computed as in a private step."""
  return clipping.clip_and_sum(
      [forms.Dense(rows, rows.shape[1:])], tf.constant(clip, tf.float64),
      tf.ones(rows.shape[:1], tf.bool))[0][0]


def whole_sum(rows, clip):
  """Returns the sum of clipped rows, rounded to whole numbers as in a private step."""
  per_unit = step_noise.IntegerSampler(tfcactus.Gaussian(1.0)).per_unit(clip)
  return tf.round(private_sum(rows, clip) * per_unit) / per_unit


SUMS = {PLAIN: plain_sum, OURS: private_sum, WHOLE: whole_sum}


def unlucky_rows(examples):
  """Returns rows of one number; the middle one decides which are rounded away.

  The first half of the rows sum to a power of two, above which float32 numbers lie
  `step` apart. The middle row lifts the sum above it. Each row of the second half
  subtracts step / 2, which is rounded away only above the power of two.
  """
  half = examples // 2
  step = 2.0**(math.floor(math.log2(half)) - 23)
  return np.concatenate([np.ones(half), [2 * step], np.full(half, -step / 2)])[
      :, None].astype(np.float32)


def moved(examples):
  """Returns how far one example moves a sum, and its own norm, in clipping norms."""
  rows, clip = unlucky_rows(examples), 1.0001
  others = np.delete(rows, examples // 2, axis=0)
  found = {name: float(np.linalg.norm(
      tf.cast(summed(tf.constant(rows), clip), tf.float64) -
      tf.cast(summed(tf.constant(others), clip), tf.float64)) / clip)
           for name, summed in SUMS.items()}
  return {'rows': examples, 'own': float(rows[examples // 2, 0] / clip), **found}


def possible(released, total, dtype):
  """Returns whether some float64 draw yields each released number from `total`."""
  near = released.astype(np.float64) - total
  return np.any([(total + draw).astype(dtype) == released for draw in (
      near, np.nextafter(near, -np.inf), np.nextafter(near, np.inf))], axis=0)


def impossible(sigma, draws):
  """Returns the share of releases of sum 0 that are impossible for sum 1.

  Float64 numbers are released with draws of the library. Impossible float32 numbers are
  so rare that draws below `SMALL` are taken uniformly, and weighted by the probability
  of this range.
  """
  sampler = NoiseSampler(tfcactus.Gaussian(sigma))
  scale = tf.constant(1.0, tf.float64)
  noise = sampler.draw(draws).numpy()
  [ours] = sampler.add_to([tf.zeros([draws], tf.float64)], scale)
  found = {'sigma': sigma, 'float64': {
      PLAIN: float(np.mean(~possible(noise, 1.0, np.float64))),
      OURS: float(np.mean(~_possible_on_grid(ours.numpy(), np.float64)))}}
  # A whole number is possible if the draw from the other sum is in the table's reach.
  other = discrete_gaussian.draw(SystemRandom(), draws) - round(
      step_noise.IntegerSampler(sampler.noise).per_unit(1.0))
  found['float64'][WHOLE] = float(np.mean(np.abs(other) > whole_numbers.reach()))
  small = np.random.default_rng(0).uniform(-SMALL, SMALL, draws)
  weight = float(stats.norm.cdf(SMALL / sigma) - stats.norm.cdf(-SMALL / sigma))
  ours = precision.rounded_to_grid(tf.constant(small), scale, tf.float32).numpy()
  found['float32'] = {
      PLAIN: weight * float(np.mean(~possible(
          small.astype(np.float32), 1.0, np.float32))),
      OURS: weight * float(np.mean(~_possible_on_grid(ours, np.float32))),
      WHOLE: found['float64'][WHOLE]}
  return found


def _possible_on_grid(released, dtype):
  """Returns `possible` for total 1, rounded to the release grid of clipping norm 1."""
  near = tf.constant(released.astype(np.float64) - 1.0)
  one = tf.constant(1.0, tf.float64)
  return precision.rounded_to_grid(one + near, one, dtype).numpy() == released


def counted(mode, examples=1000):
  """Returns the largest norm of a clipped example in a sum, in clipping norms."""
  rng = np.random.default_rng(0)
  half = 2.0**-rounded_products.SIGNIFICANT_BITS[mode] + 2.0**-20
  rows = [np.full(16, 1 + half), *rng.normal(size=(examples, 16))]
  # Rounding enlarges the first clipping factor, and the entries of its row, the most.
  clips = [2 * (1 + half)**2 / (1 - clipping.CLIP_MARGIN),
           *rng.uniform(0.1, 1, examples)]
  found = {}
  with rounded_products.rounding(mode):
    for name, summed in SUMS.items():
      found[name] = max(
          float(np.linalg.norm(tf.cast(summed(
              tf.constant(row[None], tf.float32), clip), tf.float64))) / clip
          for row, clip in zip(rows, clips))
  return {'mode': mode, **found}


ROWS_OF_TRIAL, ENTRIES = 32, 16


def largest_move(gradients, sigma=1.3, clip=0.7):
  """Returns the largest ||v - v'|| over its bound, of adversarial `gradients`.

  The whole numbers v and v' are sums with and without one gradient. The others then
  come in another order. They cancel each other, have very different norms, or both.
  """
  per_unit = step_noise.IntegerSampler(tfcactus.Gaussian(sigma)).per_unit(clip)
  total = tf.function(lambda rows: tf.round(private_sum(rows, clip) * per_unit),
                      input_signature=[tf.TensorSpec([ROWS_OF_TRIAL, ENTRIES])])
  rng, bound, largest = np.random.default_rng(0), clip * per_unit + ENTRIES**0.5, 0.0
  for trial in range(math.ceil(gradients / ROWS_OF_TRIAL)):
    rows = rng.normal(size=(ROWS_OF_TRIAL, ENTRIES))
    if trial % 2:
      rows[1::2] = -rows[::2]
    if trial % 3:
      rows *= np.exp(rng.uniform(-12, 12, (ROWS_OF_TRIAL, 1)))
    rows = rows.astype(np.float32)
    with_it = total(rows).numpy()
    for left_out in range(ROWS_OF_TRIAL):
      order = rng.permutation(ROWS_OF_TRIAL)
      part = np.where(order[:, None] == left_out, np.float32(0), rows[order])
      largest = max(largest, float(np.linalg.norm(with_it - total(part).numpy())))
  return largest / bound


def draw_nanoseconds(rounds, draws=26_010):
  """Returns the best time of a draw of a whole number."""
  rng, best = SystemRandom(), math.inf
  for _ in range(20 * rounds):
    start = time.perf_counter()
    discrete_gaussian.draw(rng, draws)
    best = min(best, (time.perf_counter() - start) / draws)
  return 1e9 * best


def tutorial_plan(arithmetic):
  """Returns the plan of the tutorial: 15 epochs on 60,000 images."""
  return tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.3), l2_norm_clip=1.5, num_examples=60_000, steps=3600,
      sampling_prob=250 / 60_000, delta=1e-5, dim=26_010, arithmetic=arithmetic)


def step_seconds(rounds, steps=20, examples=15_000):
  """Returns the least CPU seconds of a step of the tutorial CNN, by arithmetic."""
  rng = np.random.default_rng(0)
  data = rng.random((examples, 28, 28, 1), np.float32), rng.integers(0, 10, examples)
  runs = {}
  for arithmetic in ('float', WHOLE):
    plan = dataclasses.replace(
        tutorial_plan(arithmetic), num_examples=examples, sampling_prob=250 / examples)
    model = private.privatize(networks.cnn(), plan)
    model.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True))
    batches = private.PoissonBatches(*data, sampling_prob=plan.sampling_prob)
    model.fit(batches, steps_per_epoch=2, verbose=0)
    runs[arithmetic] = functools.partial(
        model.fit, batches, steps_per_epoch=steps, verbose=0)
  return {arithmetic: min(seconds) / steps
          for arithmetic, seconds in _processes.by_turns(runs, rounds).items()}


def main():
  """Measures all attacks; writes results/floating_point.json and the tables."""
  parser = _results.parser('floating_point', __doc__)
  parser.add_argument('--draws', type=int, default=1_000_000,
                      help='noise draws per noise multiplier')
  parser.add_argument('--gradients', type=int, default=100_000,
                      help='number of gradients that are left out of a sum')
  parser.add_argument('--rounds', type=int, default=10, help='rounds of each time')
  args = parser.parse_args()
  _results.save('floating_point', {
      'draws': args.draws, 'moved': [moved(examples) for examples in ROWS],
      'impossible': [impossible(sigma, args.draws) for sigma in SIGMAS],
      'counted': [counted(mode) for mode in rounded_products.SIGNIFICANT_BITS],
      'whole': {
          'gradients': args.gradients, 'largest_move': largest_move(args.gradients),
          'draw_nanoseconds': draw_nanoseconds(args.rounds),
          'step_seconds': step_seconds(args.rounds),
          'epsilon': {arithmetic: tutorial_plan(arithmetic).guarantee().upper
                      for arithmetic in ('float', WHOLE)}}})
  show(_results.load('floating_point'))


def show(found: dict) -> None:
  """Writes the tables from the results."""
  _results.show('floating_point_rows', _results.markdown(
      ['rows', "the example's own norm", 'float32 moves by', 'tfcactus moves by',
       'in whole numbers'],
      [[f'{each["rows"]:,}', *(f'{each[name]:.2g}' for name in ('own', *SUMS))]
       for each in found['moved']]))
  _results.show('floating_point_bits', _results.markdown(
      ['noise multiplier', 'weights', 'plain sum', 'tfcactus', 'in whole numbers'],
      [[f'{each["sigma"]:g}', dtype, *(f'{each[dtype][name]:.2g}' for name in SUMS)]
       for each in found['impossible'] for dtype in ('float32', 'float64')]))
  _results.show('floating_point_products', _results.markdown(
      ['products', 'float32', 'tfcactus'],
      [[each['mode'].replace('_', ' '),
        *(f'{each[name]:.6f}' for name in (PLAIN, OURS))]
       for each in found['counted']]))
  whole, seconds = found['whole'], found['whole']['step_seconds']
  _results.show('floating_point_whole', _results.markdown(
      ['whole numbers', 'measured'],
      [[f'largest move of a sum by one of {whole["gradients"]:,} gradients, over the '
        'bound', f'{whole["largest_move"]:.9f}'],
       ['time of a draw', f'{whole["draw_nanoseconds"]:.0f} ns'],
       ['CPU time of a step of the tutorial CNN, over that in floats',
        f'{seconds[WHOLE] / seconds["float"]:.2f}'],
       *([f'epsilon of the tutorial, {words}',
          _format.upper(whole['epsilon'][arithmetic], 9)] for words, arithmetic in (
              ('in floats', 'float'), ('in whole numbers', WHOLE)))]))


if __name__ == '__main__':
  main()
