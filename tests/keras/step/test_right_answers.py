"""Counts of right answers: against loops, and what one example moves of a release."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import tiny
from tests.representatives import representatives
import tfcactus
from tfcactus import NoisyAccuracy
from tfcactus.keras import PoissonBatches, privatize, TableNoiseQuery
from tfcactus.keras.checks.output_losses import OutputLosses
from tfcactus.keras.compat import models
from tfcactus.keras.gradients.engine import BatchResult
from tfcactus.keras.step import right_answers

RNG = np.random.default_rng(3)
ROWS = 12
LABELS = RNG.integers(0, 3, ROWS)
LOGITS = RNG.normal(size=(ROWS, 3))
RIGHT = (LOGITS.argmax(1) == LABELS).astype(float)
WEIGHTS = np.where(np.arange(ROWS) % 5 == 0, 0.0, 2.0)
CE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batch_of(targets, predictions, weights=None, masks=None, losses=None):
  weights = np.ones(ROWS) if weights is None else weights
  number = len(tf.nest.flatten(predictions))
  return BatchResult(
      [], tf.zeros([], tf.float64), tf.nest.map_structure(
          lambda part: tf.constant(part, tf.float32), predictions),
      masks or [None] * number,
      tf.zeros(np.shape(weights)) if losses is None else tf.constant(losses),
      tf.zeros(ROWS), tf.nest.map_structure(tf.constant, targets),
      tf.constant(weights, tf.float32))


def count(batch, output=None, each=1, losses=CE, names=None):
  return float(right_answers.count(
      OutputLosses(losses, names=names), output, batch, each))


def halves(right, weights):
  return np.sum((right - 0.5)[weights != 0])


@pytest.mark.parametrize('targets, predictions, right', [
    (LABELS, LOGITS, RIGHT),
    (LABELS[:, None], LOGITS, RIGHT),
    (np.eye(3)[LABELS], LOGITS, RIGHT),
    (LABELS > 0, LOGITS[:, 0], (LOGITS[:, 0] > 0.5) == (LABELS > 0)),
    (LABELS > 0, LOGITS[:, :1], (LOGITS[:, 0] > 0.5) == (LABELS > 0)),
    (LABELS.reshape(ROWS, 1), LOGITS[:, None], RIGHT)])
def test_all_kinds_of_targets_count(targets, predictions, right):
  for weights in np.ones(ROWS), WEIGHTS:
    assert count(batch_of(targets, predictions, weights)) == halves(
        right.astype(float), weights)


def test_losses_that_are_not_finite_leave_the_count():
  losses = np.where(np.arange(ROWS) == 3, np.nan, 1.0)
  assert count(batch_of(LABELS, LOGITS, losses=losses)) == halves(
      RIGHT, np.arange(ROWS) != 3)


def test_a_unit_adds_the_mean_over_its_rows():
  parts = np.split(np.arange(ROWS), 4)
  want = sum(np.round((halves(RIGHT[part], WEIGHTS[part]) / max(
      1, np.sum(WEIGHTS[part] != 0))) * 2**20) for part in parts) / 2**20
  assert count(batch_of(LABELS, LOGITS, WEIGHTS), each=3) == want
  assert count(batch_of(LABELS, LOGITS, np.zeros(ROWS)), each=3) == 0
  # One user's answers move the count by 1/2 at most.
  alone = np.where(np.arange(ROWS) < 3, 1.0, 0.0)
  assert abs(count(batch_of(LOGITS.argmax(1), LOGITS, alone), each=3)) == 0.5


def test_positions_of_a_mask_or_of_weight_zero_leave_the_mean():
  labels, logits = RNG.integers(0, 3, (ROWS, 4)), RNG.normal(size=(ROWS, 4, 3))
  mask = RNG.random((ROWS, 4)) < 0.6
  mask[5] = False
  right = logits.argmax(2) == labels
  own = RNG.integers(0, 2, (ROWS, 4)).astype(np.float32)
  for there, made in (
      (mask, batch_of(labels, logits, masks=[tf.constant(mask)])),
      (mask & (own > 0), batch_of(labels, logits, masks=[tf.constant(mask)])._replace(
          targets=OutputLosses(CE).targets(
              tf.constant(labels), tf.constant(logits), tf.constant(own))))):
    want = sum(np.round(2**20 * np.mean(r[t] - 0.5)) if t.any() else 0
               for r, t in zip(right, there)) / 2**20
    assert count(made) == want


def test_one_of_several_outputs_is_named():
  weights = np.stack([WEIGHTS, np.ones(ROWS)], 1)
  made = batch_of([LABELS, LABELS], [LOGITS, -LOGITS], weights)
  names = ['one', 'two']
  wrong = ((-LOGITS).argmax(1) == LABELS).astype(float)
  for output, want in (('one', halves(RIGHT, WEIGHTS)), (0, halves(RIGHT, WEIGHTS)),
                       ('two', halves(wrong, np.ones(ROWS)))):
    assert count(made, output, losses=[CE, CE], names=names) == want
  for output in None, 'three', 2:
    with pytest.raises(ValueError, match=r"one output .*, of \['one', 'two'\]"):
      count(made, output, losses=[CE, CE], names=names)
  single = made._replace(targets=made.targets[:1], weights=made.weights[:, :1],
                         losses=made.losses[:, :1])
  assert count(single, losses=[CE, None], names=names) == halves(RIGHT, WEIGHTS)
  with pytest.raises(ValueError, match='has a loss'):
    right_answers.count(OutputLosses([CE, CE], [1.0, 0.0], names), 'two', made, 1)
  assert count(batch_of(LABELS, LOGITS), 'one', names=['one']) == halves(
      RIGHT, np.ones(ROWS))


def test_targets_that_would_be_broadcast_over_rows_are_refused():
  with pytest.raises(ValueError, match='a label, or a one-hot row, for each answer'):
    count(batch_of(LABELS, RNG.normal(size=(ROWS, ROWS, 3))))


def test_targets_of_another_number_of_parts_are_refused_before_a_step():
  private = privatize(tf.keras.Sequential([
      LAYERS.Input((6,)), LAYERS.Dense(1)]), plan_of())
  private.compile('sgd', lambda y, made: tf.square(made[:, 0] - y[:, 0]))
  with pytest.raises(ValueError, match='a label, or a one-hot row, for each answer'):
    private.fit(PoissonBatches(tiny.X, tiny.X[:, :2], 1.0, steps_per_epoch=1),
                verbose=0)
  assert private.released_steps == 0


# Adding and removing an example ---------------------------------------------------

STDDEV = 0.6e-9
CLIP = 0.05
LAYERS = tf.keras.layers


def plan_of(**changes):
  return tiny.plan_of(**{**dict(
      noise=tfcactus.Gaussian(1e-9), l2_norm_clip=CLIP, sampling_prob=1.0,
      noisy_accuracy=NoisyAccuracy(STDDEV)), **changes})


def released(private, x, y, weights):
  """Returns the vector that a step of hardly any noise releases, flat."""
  before = [np.float64(each) for each in models.tf_variables(private.inner)]
  answers = np.array(private._step.norm.answers)
  weight = private._step.norm._weights[-1] * CLIP
  private.train_on_batch(x, y, weights)
  moved = [start - np.float64(each) for start, each in zip(
      before, models.tf_variables(private.inner))]
  found = (np.array(private._step.norm.answers) - answers)[0]
  for variable, start in zip(models.tf_variables(private.inner), before):
    variable.assign(start)
  return np.r_[np.concatenate([np.ravel(each) for each in moved]) *
               private.plan.expected_batch_size, weight * found]


SETTINGS = {
    'as is': {}, 'parts': {'physical_batch_size': 7},
    'per layer': {'clipping': 'per_layer'}, 'automatic': {'clipping': 'automatic'},
    'vectorised': {'engine': 'vectorized'}, 'views': {'augmentation_multiplicity': 2}}


@representatives('name', SETTINGS)
def test_one_example_moves_gradient_and_count_by_at_most_the_sensitivity(name):
  model = tiny.inner(LAYERS.Dense(5, 'tanh'), seed=2)
  private = privatize(model, plan_of(), **SETTINGS[name])
  private.compile(tf.keras.optimizers.SGD(1.0), tiny.NONE)
  scale = CLIP * private.plan.release_sensitivity
  assert scale > 1.7 * CLIP
  whole = released(private, tiny.X, tiny.Y, np.ones(40))
  moves, replaced = [], []
  for i in range(0, 40, 6):
    weights = np.ones(40)
    weights[i] = 0
    moves.append(whole - released(private, tiny.X, tiny.Y, weights))
    for label in range(3):
      labels, x = tiny.Y.copy(), tiny.X.copy()
      labels[i], x[i] = label, -x[i]
      replaced.append(whole - released(private, x, labels, np.ones(40)))
  norms = np.linalg.norm(moves, axis=1)
  assert np.all(norms <= scale * (1 + 1e-5))
  assert np.all(np.linalg.norm(replaced, axis=1) <= 2 * scale * (1 + 1e-5))
  # Neither the gradient's part alone nor a tenth less would bound the move.
  assert norms.max() > 0.98 * scale > 1.7 * CLIP
  assert np.linalg.norm(replaced, axis=1).max() > 1.5 * scale


@pytest.mark.more
def test_one_user_moves_gradient_and_count_by_at_most_the_sensitivity():
  owners = np.repeat(np.arange(10), 4)
  private = privatize(tiny.inner(seed=2), plan_of(
      unit='user', num_examples=10, steps=50))
  private.compile(tf.keras.optimizers.SGD(1.0), tiny.NONE)
  scale = CLIP * private.plan.release_sensitivity

  def of(weights):
    before = [np.float64(each) for each in models.tf_variables(private.inner)]
    answers = np.array(private._step.norm.answers)
    private.fit(PoissonBatches(tiny.X, tiny.Y, 1.0, units=owners, examples_per_unit=4,
                               sample_weight=weights, steps_per_epoch=1), verbose=0)
    moved = [start - np.float64(each) for start, each in zip(
        before, models.tf_variables(private.inner))]
    private.inner.set_weights([np.float32(each) for each in before])
    return np.r_[np.concatenate([np.ravel(each) for each in moved]) * 10,
                 private._step.norm._weights[-1] * CLIP * (
                     np.array(private._step.norm.answers) - answers)[0]]

  whole = of(np.ones(40, np.float32))
  norms = [np.linalg.norm(whole - of(np.float32(owners != user))) for user in range(10)]
  assert 0.9 * CLIP < max(norms) <= scale * (1 + 1e-5)
  assert max(norms) > 1.01 * CLIP


@pytest.mark.parametrize('call, words', [
    (lambda: privatize(tiny.inner(), plan_of(unit='user'), local_steps=2,
                       local_learning_rate=0.1), 'without noisy_accuracy with local'),
    (lambda: privatize(tiny.inner(), plan_of(), audit=tfcactus.keras.Audit(100)),
     'without noisy_accuracy with audit='),
    (lambda: TableNoiseQuery(plan_of()), 'use tfcactus.keras.privatize'),
    (lambda: tfcactus.keras.DPKerasSGDOptimizer.from_plan(plan_of()),
     'without noisy_accuracy')])
def test_what_a_noisy_accuracy_does_not_go_with_raises(call, words):
  with pytest.raises(ValueError, match=words):
    call()
