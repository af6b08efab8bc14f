"""The examples of the README and of four pages run, in one session."""

import pathlib
import re

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent


def blocks(name):
  return re.findall(r'```python\n(.*?)```', (ROOT / name).read_text(), re.S)


@pytest.mark.more
def test_examples_run():
  assert len(blocks('README.md')[0].strip().splitlines()) <= 12
  rng = np.random.default_rng(0)
  names = {'x': rng.normal(size=(256, 20)).astype(np.float32),
           'y': rng.integers(0, 10, 256), 'user_ids': np.arange(256) % 64}
  for page, count in (('README.md', 3), ('docs/training.md', 5),
                      ('docs/releases.md', 2), ('docs/noise.md', 1)):
    assert len(blocks(page)) == count
    for block in blocks(page):
      exec(compile(block, page, 'exec'), names)
  assert names['model'].guarantee().proven
  assert names['plan'].guarantee().upper > 0
