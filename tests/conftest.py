"""Settings of every test process: one thread for each of several workers."""

import os

if 'PYTEST_XDIST_WORKER' in os.environ:
  # Two workers on two cores: more threads would only wait for each other.
  for _name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS',
                'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS'):
    os.environ.setdefault(_name, '1')
