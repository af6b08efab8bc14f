"""Measures test loss with isotropic and with Gaussian noise at equal epsilon.

    python -m benchmarks.low_dimension
    python -m benchmarks.low_dimension --quick

The isotropic noise is that of paper 003, "Optimal Multidimensional Differentially
Private Mechanisms" (Alghamdi et al., ISIT 2023), designed for chi-square. Models are
logistic and linear regressions with 3, 10 and 30 weights on data sets of scikit-learn,
trained by DP-SGD on small Poisson samples. Both kinds of noise are the least with which
the plan's proved guarantee is within epsilon. Runs are paired: split, batches, starting
weights, learning rate and the random bits of the noise are equal. The learning rate is
the best one for the Gaussian on other splits. Writes results/low_dimension.json and a
picture; --quick makes 20 pairs at epsilon 8 for the smallest model, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable

import numpy as np
from scipy import stats

from benchmarks import _results
import tfcactus
from tfcactus import design, sampling
from tfcactus.accounting import calibration
from tfcactus.randomness import KeyStream, SystemRandom

LONG = 'it trains 7,360 small models'
QUICK = ('--quick',)

SMALL, LARGE = (0.005, 400), (0.2, 100)
"""Sampling probability and number of steps, for batches of about 2 and 85 examples."""
DELTA, CLIP = 1e-5, 1.0
EPSILONS = (1.0, 2.0, 4.0, 8.0)
PAIRS, TUNING = 100, 20
"""Number of pairs of runs, and of runs on other splits that choose a learning rate."""
RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
TESTED = 0.25
"""Share of the examples on which a run is tested."""


@dataclasses.dataclass(frozen=True)
class Task:
  """A regression model with few weights, and its data.

  Attributes:
    name: Name in the table.
    x: Features of shape (examples, weights), with a column of ones for a constant.
    y: Targets of shape (examples,): 0 and 1 if the model is logistic.
    logistic: Whether the model is logistic; otherwise it is linear, with half the
      squared error as loss.
    prob: Sampling probability.
    steps: Number of training steps.
  """

  name: str
  x: np.ndarray
  y: np.ndarray
  logistic: bool
  prob: float
  steps: int

  def gradients(self, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns per-example gradients of the loss, of shape (rows, weights)."""
    x = self.x[rows]
    value = x @ weights
    if self.logistic:
      value = 0.5 + 0.5 * np.tanh(0.5 * value)
    return (value - self.y[rows])[:, None] * x

  def loss(self, weights: np.ndarray, rows: np.ndarray) -> float:
    """Returns the mean loss of these rows."""
    value, y = self.x[rows] @ weights, self.y[rows]
    if self.logistic:
      return float(np.mean(np.logaddexp(0.0, value) - y * value))
    return float(0.5 * np.mean((value - y)**2))


def tasks() -> list[Task]:
  """Returns three models by number of weights, and the first one with large batches.

  The scaling of the data counts as public: the ranges in scikit-learn's description of
  the breast cancer data, the shipped scaling of the diabetes data, and the rounded mean
  and standard deviation of its target.
  """
  from sklearn import datasets  # pylint: disable=import-outside-toplevel
  x, ill = datasets.load_breast_cancer(return_X_y=True)
  low, high = np.min(x, axis=0), np.max(x, axis=0)
  scaled = 2 * (x - low) / (high - low) - 1
  few = np.column_stack([scaled[:, :2], np.ones(len(x))])
  features, progress = datasets.load_diabetes(return_X_y=True)
  return [
      Task('tumours, two features', few, ill.astype(float), True, *SMALL),
      Task('diabetes', features * math.sqrt(len(features)), (progress - 152) / 77,
           False, *SMALL),
      Task('tumours, all features', scaled, ill.astype(float), True, *SMALL),
      Task('tumours, large batches', few, ill.astype(float), True, *LARGE)]


def plan_of(task: Task, noise: Any) -> tfcactus.PrivacyPlan:
  """Returns the privacy plan for training a task with this noise."""
  return tfcactus.PrivacyPlan(
      noise=noise, l2_norm_clip=CLIP, num_examples=len(task.y) - tested(task),
      sampling_prob=task.prob, steps=task.steps, delta=DELTA, dim=task.x.shape[1])


def tested(task: Task) -> int:
  """Returns the number of examples that are held out for the test."""
  return round(TESTED * len(task.y))


def noises(task: Task, epsilon: float) -> dict[str, Any]:
  """Returns the least Gaussian and the least isotropic chi-square noise in epsilon."""
  cost = lambda make: lambda size: plan_of(task, make(size)).guarantee().upper
  gaussian = calibration.calibrate_noise(
      epsilon, cost(tfcactus.Gaussian), low=0.1, high=20.0)
  make = functools.lru_cache()(lambda size: design.Isotropic(
      task.x.shape[1], size, objective='chi2').solve())
  isotropic = calibration.calibrate_noise(
      epsilon, cost(make), low=0.3 * gaussian, high=1.01 * gaussian, tolerance=1e-3)
  return {'Gaussian': tfcactus.Gaussian(gaussian), 'isotropic': make(isotropic)}


def trained(task: Task, noise: Any, rate: float, seed: int) -> float:
  """Trains by DP-SGD; returns the loss on the held out examples.

  Args:
    task: The model and its data.
    noise: Noise in units of the clipping norm; None trains without noise.
    rate: Learning rate of the first step; cosine decay ends at a twentieth of it.
    seed: Seed of the split, the batches and the noise.
  """
  order = np.random.default_rng(seed).permutation(len(task.y))
  test, rest = np.split(order, [tested(task)])
  scheme = sampling.PoissonSampling(rest.size, task.prob)
  stream = KeyStream(seed, 'batches')
  width = task.x.shape[1]
  drawn = 0.0 * _drawn(tfcactus.Gaussian(1.0), task, seed) if noise is None else (
      _drawn(noise, task, seed))
  weights = np.zeros(width)
  for step in range(task.steps):
    gradient = task.gradients(weights, rest[scheme.draw(stream)[0]])
    # The factor keeps rounding from lifting a norm above the clipping norm.
    norm = np.linalg.norm(gradient, axis=1) * (1 + 1e-12)
    clipped = gradient / np.maximum(norm / CLIP, 1.0)[:, None]
    total = np.sum(clipped, axis=0) + CLIP * drawn[step]
    fall = 0.525 + 0.475 * math.cos(math.pi * step / task.steps)
    weights -= rate * fall * total / (task.prob * rest.size)
  return task.loss(weights, test)


def _drawn(noise: Any, task: Task, seed: int) -> np.ndarray:
  """Returns the noise of all steps; one seed gives both laws the same directions."""
  shape = (task.steps, task.x.shape[1]) if noise.dim is None else (task.steps,)
  return noise.sample(SystemRandom(seed, 'noise'), shape)


def best_rate(task: Task, noise: Any) -> float:
  """Returns the learning rate of least mean loss, on splits used for nothing else."""
  mean: Callable[[float], float] = lambda rate: float(np.mean(
      [trained(task, noise, rate, 10**6 + seed) for seed in range(TUNING)]))
  return min(RATES, key=mean)


def compare(task: Task, epsilon: float, pairs: int) -> dict[str, Any]:
  """Returns the results of paired runs within one epsilon."""
  laws = noises(task, epsilon)
  rate = best_rate(task, laws['Gaussian'])
  row = {
      'task': task.name, 'weights': task.x.shape[1], 'epsilon': epsilon, 'rate': rate,
      **{f'{name}_multiplier': law.noise_multiplier for name, law in laws.items()},
      **{f'{name}_epsilon': plan_of(task, law).guarantee().upper
         for name, law in laws.items()},
      **paired(task, laws, rate, pairs)}
  print(row, flush=True)
  return row


def paired(task: Task, laws: dict[str, Any], rate: float, pairs: int) -> dict[str, Any]:
  """Trains with each noise and without; returns mean losses and paired differences."""
  losses = {name: np.array([trained(task, law, rate, seed) for seed in range(pairs)])
            for name, law in (*laws.items(), ('none', None))}
  gain, excess = (losses['Gaussian'] - losses[name] for name in ('isotropic', 'none'))
  return {
      'pairs': pairs,
      **{f'{name}_loss': float(np.mean(value)) for name, value in losses.items()},
      'wins': int(np.sum(gain > 0)), 'gain': float(np.mean(gain)),
      'gain_interval': _interval(gain), 'excess_interval': _interval(excess),
      'p_value': float(stats.wilcoxon(gain).pvalue)}


def _interval(values: np.ndarray) -> list[float]:
  """Returns Student's 95 % interval of the mean."""
  reach = stats.t.ppf(0.975, values.size - 1) * np.std(values, ddof=1) / math.sqrt(
      values.size)
  return [float(np.mean(values) - reach), float(np.mean(values) + reach)]


def draw(pyplot: Any, rows: list[dict[str, Any]]) -> None:
  """Draws the reduction of noise and of loss by isotropic noise, against epsilon."""
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 5.2))
  looks = ((_results.VERMILION, 'o-'), (_results.BLUE, 's--'), (_results.BLACK, '^:'),
           (_results.GREEN, 'D-.'))
  names = dict.fromkeys(row['task'] for row in rows)
  for place, ((color, style), task) in enumerate(zip(looks, names)):
    part = [row for row in rows if row['task'] == task]
    epsilon = np.array([row['epsilon'] for row in part])
    label = f'{part[0]["weights"]} weights: {task}'
    left.plot(epsilon, [100 * (1 - row['isotropic_multiplier'] /
                               row['Gaussian_multiplier']) for row in part], style,
              color=color, label=label)
    middle = np.array([row['gain'] for row in part])
    ends = np.array([row['gain_interval'] for row in part]).T
    right.errorbar(epsilon * (1 + 0.03 * place), middle,
                   np.abs(ends - middle), fmt=style, color=color, label=label,
                   capsize=3)
  for axis in (left, right):
    axis.set(xscale='log', xlabel=f'epsilon at delta {DELTA:g}')
    axis.set_xticks(EPSILONS, [f'{x:g}' for x in EPSILONS])
    axis.minorticks_off()
    axis.axhline(0, color=_results.GRAY, linewidth=0.8)
  left.set(ylabel='less noise than the Gaussian, %', ylim=(-2, 62))
  right.set(ylabel='test loss: Gaussian less isotropic')
  left.legend(loc='upper left', fontsize=9)
  figure.suptitle('Paper 003: at equal epsilon isotropic noise trains better with few '
                  'weights and small batches')
  _results.save_captioned(
      figure, [left, right], 'low_dimension',
      'Equal epsilon, both proved; batches of about two examples, 400 steps; large '
      f'ones of about 85, 100 steps. Right: means over {rows[0]["pairs"]} paired runs '
      'with 95 % intervals.')


def show(rows: list[dict[str, Any]]) -> None:
  """Writes the table from the results, for the smallest and the largest epsilon."""
  _results.show('low_dimension', _results.markdown(
      ['model', 'weights', 'epsilon', 'noise multiplier, Gaussian', 'isotropic',
       'test loss, Gaussian', 'isotropic', 'without noise',
       'difference, 95 % interval', 'isotropic better in', 'p'],
      [[row['task'], str(row['weights']), f'{row["epsilon"]:g}',
        f'{row["Gaussian_multiplier"]:.3f}', f'{row["isotropic_multiplier"]:.3f}',
        f'{row["Gaussian_loss"]:.4f}', f'{row["isotropic_loss"]:.4f}',
        f'{row["none_loss"]:.4f}',
        ' to '.join(f'{x:.4f}' for x in row['gain_interval']),
        f'{row["wins"]} of {row["pairs"]}', f'{row["p_value"]:.1g}']
       for row in rows if row['epsilon'] in (EPSILONS[0], EPSILONS[-1])]))


def main() -> None:
  """Makes all runs; writes results/low_dimension.json, the picture and the table."""
  parser = _results.parser('low_dimension', __doc__)
  parser.add_argument('--quick', action='store_true',
                      help='make 20 pairs of runs at epsilon 8, and write nothing')
  if parser.parse_args().quick:
    compare(tasks()[0], EPSILONS[-1], 20)
    return
  rows: list[dict[str, Any]] = []
  for task in tasks():
    for epsilon in EPSILONS:
      rows.append(compare(task, epsilon, PAIRS))
      _results.save('low_dimension', rows)
  draw(_results.pyplot(), rows)
  show(rows)


if __name__ == '__main__':
  main()
