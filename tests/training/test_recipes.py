"""Tests of the recipes of the training script."""

import json
import pathlib

import pytest

from tests.training.test_mnist import run
from training import datasets, mnist, recipes

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.parametrize('name', recipes.RECIPES)
def test_options_override_a_recipe(name):
  args = mnist.parse(['--recipe', name])
  assert args.target_epsilon == 2.93 and args.delta == 1e-5
  assert args.sampling == 'allocation' and args.bands == 'auto'
  assert args.learning_rate == recipes.learning_rate(2.93)
  args = mnist.parse(['--learning-rate', '0.25', '--recipe', name, '--target-epsilon',
                      '1', '--features', 'pixels'])
  assert (args.target_epsilon, args.learning_rate) == (1, 0.25)
  assert args.features == 'pixels'
  assert args.epochs == recipes.RECIPES[name]['epochs']


@pytest.mark.parametrize('epsilon,same', [
    (0.1, 1), (1, 1), (1.6, 1), (1.8, 2.93), (2.93, 2.93), (50, 2.93)])
def test_learning_rates_are_those_of_a_near_epsilon(epsilon, same):
  for name in recipes.RECIPES:
    want = recipes.learning_rate(same)
    args = mnist.parse(['--recipe', name, '--target-epsilon', str(epsilon)])
    assert args.learning_rate == recipes.learning_rate(epsilon) == want > 0
  assert recipes.learning_rate(1) < recipes.learning_rate(2.93)


@pytest.mark.parametrize('epsilon', ['0', '-1', 'inf', 'nan'])
def test_invalid_epsilons_are_refused_beside_a_recipe(capsys, epsilon):
  assert mnist.main(['--recipe', 'best', '--features', 'pixels', '--dataset', 'digits',
                     '--target-epsilon', epsilon]) == 2
  assert 'target_epsilon' in capsys.readouterr().err


@pytest.mark.parametrize('arguments,words', [
    (['--augmentation-multiplicity', '4'], 'multiplicity 1 with scattering'),
    (['--learning-rate', 'nan'], 'learning-rate'),
    (['--bands', 'x'], 'auto or a number')])
def test_errors_come_before_minutes_of_features(capsys, arguments, words):
  assert mnist.main(['--recipe', 'scattering', '--dataset', 'digits', *arguments]) == 2
  shown = capsys.readouterr()
  assert words in shown.err and 'Computing features' not in shown.out


def test_noise_given_beside_a_recipe_needs_a_number_of_bands():
  args = mnist.parse(['--recipe', 'best', '--noise-multiplier', '1.5', '--bands', '4'])
  assert args.target_epsilon is None and args.noise_multiplier == 1.5


def test_without_a_recipe_nothing_changes():
  args = mnist.parse([])
  assert args.recipe is args.target_epsilon is args.bands is None
  assert args.features == 'pixels' and args.batch_size == 250


@pytest.mark.parametrize('name', [
    pytest.param('best', marks=pytest.mark.more),
    pytest.param('scattering', marks=pytest.mark.slow)])
def test_recipes_train(tmp_path, capsys, name):
  code, result = run(tmp_path, '--recipe', name, '--held-out', '300', '--epochs', '2',
                     '--bands', '3')
  assert code == 0 and result['epsilon']['upper'] <= 2.93
  assert result['parameters']['features'] == recipes.RECIPES[name]['features']
  assert result['parameters']['held_out'] == 300
  assert 0 <= result['held_out_accuracy'] <= 1 and 'test_accuracy' not in result
  assert result['parameters']['num_examples'] == 1_200
  out = capsys.readouterr().out
  assert '300 of the training images held out' in out
  assert 'Held out accuracy' in out and 'Computing features' in out


@pytest.mark.parametrize('size', [0, 7, 1_500])
def test_held_out_images_are_those_left_out_of_training(size):
  data = datasets.digits()
  if not 0 < size < 1_500:
    with pytest.raises(ValueError, match=f'1500 training images .* got {size}'):
      datasets.hold_out(data, size)
    return
  held = datasets.hold_out(data, size)
  assert held.test[1].size == size and held.train[1].size == 1_500 - size
  whole = sorted(image.tobytes() for image in data.train[0])
  parts = [image.tobytes() for part in (held.train, held.test) for image in part[0]]
  assert sorted(parts) == whole


def test_the_documents_show_measurements_of_the_current_recipes():
  from benchmarks import recipes as benchmark
  found = benchmark.kept()
  whole = json.loads((ROOT / 'benchmarks/results/recipes.json').read_text())
  assert found == whole and {each['recipe'] for each in found} == set(recipes.RECIPES)
  assert benchmark.table(found) in (ROOT / 'benchmarks/README.md').read_text()
  for each in found:
    assert each['epsilon'] <= each['target'] and not each['parameters']['held_out']
