"""Neighbouring relations: their names, and in words whom each protects.

The words say what every guarantee takes as public. With the size N and the
sampling probability q from private data, the scale of what is divided by q N and
the number of releases tell of an example that is added: under add-or-remove that
they do not is an assumption, under the other two both neighbours have one N.
"""

from __future__ import annotations

from typing import Union

import dp_accounting

ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
ZERO_OUT = dp_accounting.NeighboringRelation.REPLACE_SPECIAL

NAMES = {'add-or-remove': ADD_OR_REMOVE, 'zero-out': ZERO_OUT,
         'replace': REPLACE}
"""What relations are called where one is asked for in words."""

Relation = Union[str, dp_accounting.NeighboringRelation]
"""What may be given for a relation: itself, or its name."""

_PROTECTED = {
    ADD_OR_REMOVE: 'For any one {unit} added to or removed from {data}',
    ZERO_OUT: 'For any one {unit} replaced by an empty one, which contributes zero '
              'to every sum, or an empty one replaced by it',
    REPLACE: 'For any one {unit} replaced by any other',
}

_PUBLIC = {
    ADD_OR_REMOVE: '{constants} are public constants, assumed to be the same with '
                   'and without the {unit}',
    ZERO_OUT: '{constants} are public constants; both neighbours have the same '
              'number of {unit}s',
    REPLACE: '{constants} are public constants; both neighbours have the same '
             'number of {unit}s',
}


def check(value: Relation) -> dp_accounting.NeighboringRelation:
  """Returns the relation meant.

  Args:
    value: A dp_accounting.NeighboringRelation, or one of `NAMES`.

  Raises:
    ValueError: if it is neither.
  """
  relation = NAMES.get(value, value) if isinstance(value, str) else value
  if relation not in NAMES.values():
    raise ValueError(
        'Expected neighboring_relation ADD_OR_REMOVE_ONE, REPLACE_ONE or '
        f'REPLACE_SPECIAL of dp_accounting, or one of {tuple(NAMES)}, got '
        f'{value!r}.')
  return relation


def label(relation: dp_accounting.NeighboringRelation) -> str:
  """The relation as guarantees show it, such as 'add-or-remove-one'."""
  return relation.name.lower().replace('_', '-')


def protected(relation: dp_accounting.NeighboringRelation, unit: str = 'example',
              data: str = 'the training set') -> str:
  """Who is protected, the beginning of a sentence.

  Args:
    relation: The relation.
    unit: What one row is called.
    data: What all rows together are called.
  """
  return _PROTECTED[relation].format(unit=unit, data=data)


def public(relation: dp_accounting.NeighboringRelation, constants: str,
           unit: str = 'example') -> str:
  """What is taken as public, a clause without a full stop.

  Args:
    relation: The relation.
    constants: The constants in words, more than one.
    unit: What one row is called.
  """
  return _PUBLIC[relation].format(constants=constants, unit=unit)
