"""Measures three floating-point attacks on plain float32 sums and on a private step.

    python -m benchmarks.floating_point

The attacks exploit that floating-point numbers reveal more than real numbers would:

- how far one example moves the sum of many rows (Casacuberta et al., "Widespread
  Underestimation of Sensitivity in Differentially Private Libraries and How to Fix It",
  2022);
- which share of released numbers is possible for only one of two sums (Mironov, "On
  Significance of the Least Significant Bits For Differential Privacy", 2012; Haney et
  al., "Precision-based attacks and interval refining", 2022);
- how large a clipped gradient is in a sum if matrix products round their operands.
"""

from __future__ import annotations

import math
import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402
from scipy import stats  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks import _results  # noqa: E402
from tests.keras import rounded_products  # noqa: E402
import tfcactus  # noqa: E402
from tfcactus.keras import NoiseSampler  # noqa: E402
from tfcactus.keras.compat import precision  # noqa: E402
from tfcactus.keras.gradients import clipping, forms  # noqa: E402

QUICK = ('--draws', '10000')

PLAIN, OURS = 'float32', 'tfcactus'
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


SUMS = {PLAIN: plain_sum, OURS: private_sum}


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
  small = np.random.default_rng(0).uniform(-SMALL, SMALL, draws)
  weight = float(stats.norm.cdf(SMALL / sigma) - stats.norm.cdf(-SMALL / sigma))
  ours = precision.rounded_to_grid(tf.constant(small), scale, tf.float32).numpy()
  found['float32'] = {
      PLAIN: weight * float(np.mean(~possible(
          small.astype(np.float32), 1.0, np.float32))),
      OURS: weight * float(np.mean(~_possible_on_grid(ours, np.float32)))}
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


def main():
  """Measures all attacks; writes results/floating_point.json and the tables."""
  parser = _results.parser('floating_point', __doc__)
  parser.add_argument('--draws', type=int, default=1_000_000,
                      help='noise draws per noise multiplier')
  args = parser.parse_args()
  _results.save('floating_point', {
      'draws': args.draws, 'moved': [moved(examples) for examples in ROWS],
      'impossible': [impossible(sigma, args.draws) for sigma in SIGMAS],
      'counted': [counted(mode) for mode in rounded_products.SIGNIFICANT_BITS]})
  show(_results.load('floating_point'))


def show(found: dict) -> None:
  """Writes the tables from the results."""
  _results.show('floating_point_rows', _results.markdown(
      ['rows', "the example's own norm", 'float32 moves by', 'tfcactus moves by'],
      [[f'{each["rows"]:,}', *(f'{each[name]:.2g}' for name in ('own', PLAIN, OURS))]
       for each in found['moved']]))
  _results.show('floating_point_bits', _results.markdown(
      ['noise multiplier', 'weights', 'plain sum', 'tfcactus'],
      [[f'{each["sigma"]:g}', dtype, *(f'{each[dtype][name]:.2g}'
                                       for name in (PLAIN, OURS))]
       for each in found['impossible'] for dtype in ('float32', 'float64')]))
  _results.show('floating_point_products', _results.markdown(
      ['products', 'float32', 'tfcactus'],
      [[each['mode'].replace('_', ' '),
        *(f'{each[name]:.6f}' for name in (PLAIN, OURS))]
       for each in found['counted']]))


if __name__ == '__main__':
  main()
