"""Sets one thread for each test process where there are several, and rare collections.

Hypothesis tries the same examples in each run, and without limits of time;
`--hypothesis-profile=default` tries others.
"""

import gc
import os

import hypothesis

hypothesis.settings.register_profile('repeated', derandomize=True, deadline=None)
hypothesis.settings.load_profile('repeated')

if 'PYTEST_XDIST_WORKER' in os.environ:
  # Two workers on two cores: more threads would only wait for each other.
  for _name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS',
                'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS'):
    os.environ.setdefault(_name, '1')


def pytest_collection_finish():
  """Keeps what was imported and collected out of garbage collections.

  They take an eighth of the time of the Keras tests otherwise: TensorFlow's modules and
  thousands of tests are searched again and again, and nothing there is garbage.
  """
  gc.freeze()
  gc.set_threshold(20_000, 10, 10)
