"""Tests that the run card states what ran, and no epsilon without an account."""

import json

import pytest

from tests.keras.tiny import inner, NONE, plan_of, poisson, privatized, X, Y
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  make_run_card,
  run_card,
)

pytestmark = pytest.mark.usefixtures('random_sums')


def test_a_run_card_says_what_ran(make_plan, tmp_path):
  plan = make_plan()
  private = privatized(plan)
  path = tmp_path / 'card.json'
  callback = EpsilonCallback(run_card=path)
  private.fit(poisson(), verbose=0, callbacks=[callback])
  card = json.loads(path.read_text())
  assert card == json.loads(json.dumps(make_run_card(private)))
  assert card['epsilon']['upper'] == private.guarantee().upper == 0.04
  assert card['released_steps'] == 4 and card['sampling'] == 'poisson'
  assert card['table_digest'] == plan.noise.digest
  assert card['neighboring_relation'] == 'add-or-remove-one'
  assert {label: one['upper'] for label, one in card['by_relation'].items()} == {
      'add-or-remove-one': 0.04, 'replace-special': 0.04, 'replace-one': 0.08}
  assert 'AES-256' in card['randomness'] and len(card['not_covered']) >= 4
  assert card['releases_beside'] == [] and card['sums'].startswith('float64')
  assert any('which is float64' in each for each in card['not_covered'])
  private.fit(poisson(seed=1), verbose=0)
  assert 'SEEDED (batches)' in make_run_card(private)['randomness']
  private.train_on_batch(X, Y)
  card = make_run_card(private)
  assert card['epsilon'] is None and 'No epsilon' in card['reason']


def test_epsilon_of_other_relations_is_logged_printed_and_in_the_card(capsys):
  plan = plan_of(steps=8, delta=1e-3)
  private = privatized(plan)
  callback = EpsilonCallback(also=['replace', 'zero-out'], verbose=1)
  history = private.fit(poisson(), verbose=0, epochs=2,
                        callbacks=[callback]).history
  assert history['epsilon_replace'] == [
      plan.guarantee(steps, 'replace').upper for steps in (4, 8)]
  assert history['epsilon_zero_out'] == history['epsilon']
  assert history['epsilon_replace'][-1] > history['epsilon'][-1]
  shown = capsys.readouterr().out
  for words in ('replaced by any other', 'contributes zero', 'added to or removed',
                'num_examples=40 and sampling_prob=0.25 are public constants'):
    assert words in shown
  assert private.guarantee('replace').upper == history['epsilon_replace'][-1]
  assert private.guarantee() == private.guarantee('add-or-remove')
  card = make_run_card(private)
  assert card['by_relation']['replace-one']['statement'] == (
      private.guarantee('replace').statement)
  with pytest.raises(ValueError, match='neighboring_relation'):
    EpsilonCallback(also=['swap'])
  private.fit(X, Y, verbose=0)
  for relation in ('replace', 'zero-out'):
    with pytest.raises(ValueError, match='in another'):
      private.guarantee(relation)


def test_passes_over_arrays_have_no_epsilon_for_an_added_example():
  plan = plan_of(steps=8, delta=1e-3)
  private = privatized(plan)
  callback = EpsilonCallback(also=['zero-out'])
  history = private.fit(X, Y, batch_size=10, verbose=0,
                        callbacks=[callback]).history
  assert history['epsilon_zero_out'][0] < history['epsilon'][0]
  assert private.guarantee('zero-out').neighboring_relation == 'replace-special'
  with pytest.raises(ValueError, match='No epsilon.*pass over all'):
    private.guarantee('add-or-remove')
  assert set(make_run_card(private)['by_relation']) == {
      'replace-one', 'replace-special'}


def test_a_drop_in_optimizer_has_no_run_card(make_plan, tmp_path):
  model = inner()
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), NONE)
  with pytest.raises(ValueError, match='PrivateModel with run_card'):
    model.fit(X, Y, verbose=0, callbacks=[
        EpsilonCallback(run_card=tmp_path / 'card.json')])


@pytest.mark.parametrize('name', ['', 'new_folder/', '.', None])
def test_a_path_without_a_file_name_is_refused_before_training(
    tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match='run_card to be (a path|the path of a file)'):
    run_card.check_path(name)


def test_a_plain_model_has_no_run_card():
  with pytest.raises(ValueError, match='Expected a PrivateModel'):
    make_run_card(inner())
