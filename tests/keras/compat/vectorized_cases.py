"""One case for each way that a vectorised operation is built.

A case is a function of one row of some tensors. `combinations` makes of each case
several: any of its tensors may vary with the example, or be shared by all.
"""

from collections.abc import Sequence
import itertools
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

ROWS = 40
raw = tf.raw_ops


class Case(NamedTuple):
  """A function of tensors of one example.

  Attributes:
    op: The type of the operation that it is about.
    run: The function.
    tensors: For each argument its values, shape (ROWS, ...).
    varying: For each argument, whether it varies with the example.
  """

  op: str
  run: Callable[..., Any]
  tensors: Sequence[np.ndarray]
  varying: tuple[bool, ...]


def _seeded(op: str) -> np.random.Generator:
  return np.random.default_rng(list(op.encode()))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Unlike rows: of every eighth the entries are a hundred times larger."""
  found = rng.standard_t(3, (ROWS, *shape))
  found[::8] *= 100
  return found.astype(np.float32)


def small(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Between 0.05 and 0.95."""
  return rng.uniform(0.05, 0.95, (ROWS, *shape)).astype(np.float32)


def integers(high: int, low: int = 0) -> Callable[..., np.ndarray]:
  """Integers from low to high - 1."""
  return lambda rng, *shape: rng.integers(low, high, (ROWS, *shape)).astype(np.int32)


def booleans(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """True and False."""
  return rng.integers(0, 2, (ROWS, *shape)).astype(bool)


def of_dtype(dtype: Any, kind: Callable[..., np.ndarray] = normal
            ) -> Callable[..., np.ndarray]:
  """The numbers of a kind in another dtype."""
  return lambda rng, *shape: kind(rng, *shape).astype(dtype)


def complex_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Complex64."""
  return normal(rng, *shape) + 1j * normal(rng, *shape)


def combinations(op: str, run: Callable[..., Any], *tensors: Any,
                 varying: str = '') -> list[Case]:
  """Cases of one function.

  Args:
    op: The type of the operation.
    run: Of one row of each tensor.
    *tensors: A shape, or a pair of a kind of numbers and a shape.
    varying: For each case a word, of a character for each tensor: v if it varies with
      the example, s if it is shared. By default all there are.
  """
  rng = _seeded(op)
  values = [each[0](rng, *each[1]) if each and callable(each[0]) else
            normal(rng, *each) for each in tensors]
  words = varying.split() or map(
      ''.join, itertools.product('vs', repeat=len(values)))
  return [Case(op, run, values, tuple(mark == 'v' for mark in word))
          for word in words if 'v' in word]


def outcomes(cases: Sequence[Case], run: Callable[..., Any]) -> tuple[Any, Any]:
  """Returns the results of cases, computed vectorised and computed row by row.

  Args:
    cases: The cases; the function of each is applied to every row of its tensors.
    run: (function of a row, rows) -> the function's results for all rows.

  Returns:
    Two lists: for each case a list of arrays of shape (ROWS, ...).
  """
  rows = [[tf.constant(each) for each, varies in zip(case.tensors, case.varying)
           if varies] for case in cases]
  shared = [[tf.constant(each[1]) for each in case.tensors] for case in cases]

  def one(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    found = []
    for case, part, others in zip(cases, parts, shared):
      left = iter(part)
      found.append(tf.nest.flatten(case.run(*(
          next(left) if varies else other
          for varies, other in zip(case.varying, others)))))
    return found

  vectorized = tf.function(lambda: run(one, rows), autograph=False)()
  single = tf.function(one, autograph=False)
  apart = [single(tf.nest.map_structure(lambda each, i=i: each[i], rows))
           for i in range(ROWS)]
  return vectorized, [[np.stack([np.asarray(apart[i][k][j]) for i in range(ROWS)])
                       for j in range(len(apart[0][k]))] for k in range(len(cases))]


def first_difference(cases: Sequence[Case], run: Callable[..., Any]
                    ) -> Optional[str]:
  """Which case is not the same row by row, and None if all are."""
  for case, got, wanted in zip(cases, *outcomes(cases, run)):
    for left, right in zip(got, wanted):
      left = np.asarray(left)
      tolerance = 3e-2 if left.dtype.kind not in 'fciub' else 2e-4
      if left.dtype.kind not in 'fciub':  # bfloat16.
        left, right = left.astype(np.float32), right.astype(np.float32)
      if left.shape != right.shape:
        return f'{case.op} {case.varying}: shapes {left.shape}, {right.shape}'
      exact = left.dtype.kind in 'iub'
      same = (left == right) | ((left != left) & (right != right))
      if not exact:
        # By row, so that a small one beside large ones is compared as closely.
        size = np.max(np.abs(np.nan_to_num(right)), tuple(range(1, right.ndim)),
                      initial=0, keepdims=True)
        with np.errstate(invalid='ignore'):
          same |= np.abs(left - right) <= tolerance * size
      if not np.all(same):
        return (f'{case.op} {case.varying}: rows '
                f'{sorted(set(np.nonzero(~same)[0].tolist()))}')
  return None
