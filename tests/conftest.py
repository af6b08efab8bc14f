"""Sets one thread for each test process where there are several."""

import os

if 'PYTEST_XDIST_WORKER' in os.environ:
  # Two workers on two cores: more threads would only wait for each other.
  for _name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS',
                'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS'):
    os.environ.setdefault(_name, '1')
