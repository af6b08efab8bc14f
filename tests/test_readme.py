import pathlib
import re

import numpy as np

README = pathlib.Path(__file__).parent.parent / 'README.md'


def test_keras_examples_run():
  blocks = re.findall(r'```python\n(.*?)```', README.read_text(), re.S)
  assert len(blocks) == 5
  assert len(blocks[0].strip().splitlines()) <= 12
  rng = np.random.default_rng(0)
  names = {'x': rng.normal(size=(256, 20)).astype(np.float32),
           'y': rng.integers(0, 10, 256)}
  for block in blocks:
    exec(compile(block, 'README.md', 'exec'), names)
  assert names['model'].guarantee().proven
  assert names['plan'].guarantee().upper > 0
