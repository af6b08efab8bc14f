"""Tests of every law of noise in Keras: draws in graphs, sums and `.keras` files."""

import pytest

tf = pytest.importorskip('tensorflow')

# pylint: disable=wrong-import-position
import numpy as np  # noqa: E402
from scipy import stats  # noqa: E402

from tests.conformance import laws  # noqa: E402
from tests.conformance.laws import EXAMPLES  # noqa: E402
from tests.representatives import representatives  # noqa: E402
import tfcactus  # noqa: E402
from tfcactus import noise as noise_lib  # noqa: E402
from tfcactus.keras import (  # noqa: E402
  NoiseSampler,
  PoissonBatches,
  privatize,
  serialization,
  TableNoiseQuery,
)
from tfcactus.randomness import SystemRandom  # noqa: E402

X = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]


@pytest.fixture(autouse=True)
def listed(monkeypatch):
  """Lists the laws that only the tests define."""
  monkeypatch.setattr(noise_lib, 'LAWS', (*noise_lib.LAWS, *laws.TOY_LAWS))


@pytest.mark.parametrize('name', EXAMPLES)
def test_graphs_draw_what_the_law_draws(name):
  """Compares draws from the same random bits."""
  example = EXAMPLES[name]
  sampler = NoiseSampler(example.law, seed=7)
  draw = tf.function(lambda: sampler.draw(example.dim))
  drawn = [draw().numpy() for _ in range(3)]
  rng = SystemRandom(7, 'noise')
  for noise in drawn:
    np.testing.assert_array_equal(noise, example.law.sample_vector(rng, example.dim))
  assert not np.array_equal(drawn[0], drawn[1]) or name == 'no noise'


@pytest.mark.parametrize('name', laws.DRAWN)
def test_noise_is_added_once_and_scaled(name):
  example = EXAMPLES[name]
  sampler = NoiseSampler(example.law, seed=2)
  dim = example.dim if example.law.dim not in (None, 1) else 40_000

  @tf.function
  def release():
    return sampler.add_to([tf.ones([1, dim - 1]), tf.ones([])], tf.constant(3.0))

  runs = [release() for _ in range(400 if dim < 100 else 1)]
  assert runs[0][0].shape == (1, dim - 1) and runs[0][0].dtype == tf.float32
  noise = np.array([np.append(*run) for run in runs]) - 1
  sizes = laws.size(example.law, noise.ravel() if dim > 100 else noise) / 3
  follows = lambda x: laws.cdf(example.law, x)
  assert stats.kstest(sizes, follows).pvalue > 1e-4
  assert stats.kstest(1.3 * sizes, follows).pvalue < 1e-5


def plan(law, **changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=law, l2_norm_clip=1.0, num_examples=8, sampling_prob=0.5, steps=10,
      delta=1e-5), **changes})


def model(dim):
  """Returns a model of `dim` parameters."""
  layer = tf.keras.layers.Dense(1, use_bias=False)
  return tf.keras.Sequential([tf.keras.layers.Input((dim,)), layer])


def trained(law, dim, path, **changes):
  private = privatize(model(dim), plan(law, **changes))
  private.compile('sgd', tf.keras.losses.MeanSquaredError())
  private.fit(PoissonBatches(np.repeat(X, dim, 1), X, 0.5), verbose=0)
  private.save(path)
  return private


@representatives('name', laws.ACCOUNTED)
def test_a_private_model_is_saved_and_loaded(name, tmp_path):
  example = EXAMPLES[name]
  releases = [EXAMPLES[one].law.dp_event for one in (name, 'sinh-normal')]
  private = trained(example.law, example.dim, tmp_path / 'm.keras',
                    releases=releases)
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert again.plan.noise == example.law
  assert again.plan.noise.digest == example.law.digest
  assert list(again.plan.releases) == releases
  assert serialization.plan_config(again.plan) == (
      serialization.plan_config(private.plan))
  assert again.guarantee() == private.guarantee()
  assert again.guarantee().steps == 2
  again.train_on_batch(np.repeat(X, example.dim, 1), X)


@pytest.mark.parametrize('name', laws.ACCOUNTED)
def test_models_and_queries_refuse_other_dimensions(name):
  law, dim = EXAMPLES[name].law, EXAMPLES[name].dim
  query = TableNoiseQuery(law, 1.0)
  state = query.initial_global_state()
  assert query.get_noised_result(tf.zeros([dim]), state)[2] == law.dp_event
  if law.dim is None:
    return
  with pytest.raises(ValueError, match='Expected noise'):
    query.get_noised_result(tf.zeros([dim + 2]), state)
  with pytest.raises(ValueError, match='Expected noise'):
    privatize(model(dim + 2), plan(law))


@pytest.mark.parametrize('name', laws.REFUSED)
def test_laws_without_a_guarantee_are_refused(name):
  with pytest.raises(ValueError, match='Expected'):
    privatize(model(1), plan(EXAMPLES[name].law))
