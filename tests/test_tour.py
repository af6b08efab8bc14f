"""The tour runs as it is written, here on the handwritten digits."""

import pytest

from docs import run_tour

BLOCKS = 7


@pytest.mark.slow
def test_the_tour_runs_and_draws(tmp_path, monkeypatch):
  pytest.importorskip('tensorflow')
  from training import datasets
  monkeypatch.setattr(datasets, 'load', lambda name: datasets.digits())
  printed = run_tour.run(str(tmp_path))
  assert len(printed) == BLOCKS
  assert 'epsilon <= 1.99' in printed[0] and 'Epoch 3/3' in printed[1]
  after = float(printed[2].split('epsilon <= ')[1].split()[0])
  assert 1.99 < after < 2  # All steps of the plan, within its target.
  assert 'monotone-chi2' in printed[4] and 'together: epsilon <=' in printed[5]
  assert "AES-256 in counter mode, keyed by the operating system" in printed[6]
  for name in ('tour_training.png', 'tour_noise.png'):
    assert (tmp_path / name).stat().st_size > 10_000
    assert f'images/{name}' in run_tour.PAGE.read_text('utf-8')


def test_what_blocks_print_goes_to_its_place():
  page = ('```python\nprint(1)\n```\n\n<!-- tour:a:begin -->\nold\n'
          '<!-- tour:a:end -->\n```python\npass\n```\n')
  found = run_tour.written(
      page, ['Epoch 1/2\n5/5 - 3s - loss: 1.0 - 3s/epoch - 9ms/step\n', ''])
  assert '```text\n5/5 - loss: 1.0\n```' in found and 'old' not in found
  assert run_tour.written(found, ['2\n', '']).count('```text\n2\n```') == 1


def test_the_page_shows_what_its_blocks_printed():
  page = run_tour.PAGE.read_text('utf-8')
  assert page.count('```python') == BLOCKS
  places = page.count(':begin -->')
  assert places == page.count('```text') == page.count(':end -->') == 6
  with pytest.raises(FileNotFoundError):
    run_tour.run('/no/such/folder')
