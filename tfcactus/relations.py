"""Neighbouring relations: their names, and sentences about whom each relation protects.

The sentences also state what a guarantee takes as public. If the data size N and the
sampling probability q come from private data, the divisor q N of a mean and the number
of releases can reveal an added example. Under add-or-remove a guarantee assumes that
N and q are public constants. Under the other two relations both neighbours have the
same N.
"""

from __future__ import annotations

import re
from typing import Union

import dp_accounting

ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL

NAMES = {'add-or-remove': ADD_OR_REMOVE, 'zero-out': ZERO_OUT, 'replace': REPLACE}
"""Names by which arguments select a neighbouring relation."""

Relation = Union[str, dp_accounting.NeighboringRelation]
"""A neighbouring relation as an argument: the relation itself, or its name."""

_PROTECTED = {
    ADD_OR_REMOVE: 'For any one {unit} added to or removed from {data}',
    ZERO_OUT: 'For any one {unit} replaced by an empty one, which contributes zero '
              'to every sum, or an empty one replaced by it',
    REPLACE: 'For any one {unit} replaced by any other',
}

_PROTECTED_ROWS = {
    ADD_OR_REMOVE: 'For a person with up to {rows} {unit}s, all of them added to or '
                   'removed from {data}',
    ZERO_OUT: 'For a person with up to {rows} {unit}s, all of them replaced by empty '
              'ones, which contribute zero to every sum, or empty ones replaced by '
              'them',
    REPLACE: 'For a person with up to {rows} {unit}s, all of them replaced by any '
             'others',
}


def check(value: Relation) -> dp_accounting.NeighboringRelation:
  """Returns the relation that `value` is, or names by one of `NAMES`, or ValueError."""
  relation = NAMES.get(value, value) if isinstance(value, str) else value
  if not isinstance(relation, dp_accounting.NeighboringRelation):
    raise ValueError(
        'Expected neighboring_relation ADD_OR_REMOVE_ONE, REPLACE_ONE or '
        f'REPLACE_SPECIAL of dp_accounting, or one of {tuple(NAMES)}, got {value!r}.')
  return relation


def label(relation: dp_accounting.NeighboringRelation) -> str:
  """Returns the relation's name as guarantees show it, such as 'add-or-remove-one'."""
  return relation.name.lower().replace('_', '-')


def protected(relation: dp_accounting.NeighboringRelation, unit: str = 'example',
              data: str = 'the training set', rows: int = 1) -> str:
  """Returns the beginning of a sentence that says whom a guarantee protects.

  `unit` is a word for a row, `data` for all rows; a person has at most `rows` of them.
  """
  words = _PROTECTED if rows == 1 else _PROTECTED_ROWS
  return words[relation].format(unit=unit, data=data, rows=rows)


def in_units(text: str, unit: str) -> str:
  """Returns sentences about examples, reworded to be about each `unit`, a word."""
  if unit == 'example':
    return text
  text = re.sub(r'\bnum_examples\b', 'num_units', text)
  return re.sub(r'\bexample(s?)\b', rf'{unit}\1', text).replace(
      f'For any one {unit} ', f'For any one {unit}, with all rows of that {unit}, ')


def public(relation: dp_accounting.NeighboringRelation, constants: str,
           unit: str = 'example') -> str:
  """Returns a clause, without a full stop, on what a guarantee takes as public.

  `constants` lists two or more public constants in words; `unit` is a word for one row.
  """
  return f'{constants} are public constants' + (
      f', assumed to be the same with and without the {unit}'
      if relation == ADD_OR_REMOVE else
      f'; both neighbours have the same number of {unit}s')
