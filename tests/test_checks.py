"""Checks of arguments: numbers that no float holds are refused by name."""

import fractions
import pathlib
import re

import numpy as np
import pytest

from tfcactus import _checks


class Lies(int):
  """An integer whose comparisons are not those of its value."""

  def __lt__(self, other):
    return False


@pytest.mark.parametrize('value', [10**400, -10**400, 10**5000,
                                   fractions.Fraction(10**400, 3)],
                         ids=['large', 'small', 'unprintable', 'fraction'])
def test_numbers_beyond_floats_are_refused_by_name(value):
  with pytest.raises(ValueError, match='Expected size to be finite'):
    _checks.real('size', value)


@pytest.mark.parametrize('check', [_checks.vector, _checks.numbers_of])
def test_arrays_of_numbers_beyond_floats_are_refused_by_name(check):
  with pytest.raises(ValueError, match='Expected sizes to be a'):
    check('sizes', [1, 10**400])


@pytest.mark.parametrize('check', [_checks.vector, _checks.numbers_of])
@pytest.mark.parametrize('value', [
    ['1', '2.5'], [1 + 2j], 'ab', [True, 1], [True, .5], [[True, 2.0]],
    [(1.0, 2.0), (False, 2.0)], [np.array([True]), np.array([2.0])],
    np.array(['1.5'], object), np.array([1.0, b'2'], object),
    np.array([[2.0, np.bool_(True)]], object), [np.array([True], object), [1.0]]],
    ids=repr)
def test_arrays_of_other_things_than_real_numbers_are_refused_by_name(check, value):
  with pytest.raises(ValueError, match='Expected sizes to be a'):
    check('sizes', value)


def test_arrays_of_real_numbers_of_any_kind_are_taken():
  found = _checks.vector('sizes', [1, 2.5, fractions.Fraction(1, 4)])
  assert found.tolist() == [1.0, 2.5, 0.25] and not found.flags.writeable
  nested = _checks.numbers_of('sizes', [[1, np.float32(.5)], (np.array(2), 3.0)])
  assert nested.tolist() == [[1.0, 0.5], [2.0, 3.0]]
  assert _checks.numbers_of('sizes', np.array(1.5, object)) == 1.5


@pytest.mark.parametrize('check, words', [
    (lambda: _checks.instance('plan', 'x', float, 'give one'),
     "Expected plan to be a float, got plan='x'; give one."),
    (lambda: _checks.items('caps', 3, 'numbers'),
     'Expected caps to be a list of numbers, got caps=3.'),
    (lambda: _checks.items('caps', 'ab', 'numbers'), "got caps='ab'"),
    (lambda: _checks.items('caps', np.array(3), 'numbers'), 'got caps=array'),
    (lambda: _checks.flag('moved', 'no'), "Expected moved to be True or False, got"),
    (lambda: _checks.shares('u', [0.5, 1.0], inner=True), 'Expected u in (0, 1), got'),
    (lambda: _checks.integer('size', Lies(-1), 0), 'Expected size >= 0, got'),
    (lambda: _checks.path('file', None), 'Expected file to be a path, got file=None'),
    (lambda: _checks.path('file', ''), "got file=''"),
    (lambda: _checks.path('file', b'a'), "got file=b'a'")])
def test_other_things_than_were_asked_for_are_refused_by_name(check, words):
  with pytest.raises(ValueError, match=re.escape(words)):
    check()


def test_lists_and_paths_are_taken():
  assert _checks.items('caps', np.array([1, 2]), 'numbers') == (1, 2)
  assert _checks.items('caps', [], 'numbers') == ()
  assert _checks.path('file', pathlib.PurePosixPath('a/b')) == 'a/b'
