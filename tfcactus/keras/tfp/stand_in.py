"""The base class of sum queries: that of TensorFlow Privacy, or a stand-in.

With TensorFlow 2.16 and later TensorFlow Privacy fails to import; its queries do not.
This module then imports the queries alone, by the package's own hook, and removes every
trace of it: `import tensorflow_privacy`, before or after, behaves as without this
package, and has the same `SumAggregationDPQuery`. Where the queries do not import
either, a class with their other methods stands in for the base class.
"""

from __future__ import annotations

import collections
import importlib
import importlib.util
import sys
from typing import Any
import warnings

import tensorflow as tf

from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import PACKAGE as _PACKAGE

_HOOK = 'skip_tf_privacy_import'
"""Attribute of `sys`. While it is set, importing the package itself loads nothing."""


class _SumQuery:
  """Stand-in for TensorFlow Privacy's class: the methods that queries inherit."""

  def derive_metrics(self, global_state: Any) -> dict[str, Any]:
    """Returns an empty dict of metrics."""
    del global_state
    return collections.OrderedDict()

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros in the structure of `template`; raises AttributeError for None."""
    return tf.nest.map_structure(_zeros_like, template)

  def merge_sample_states(self, sample_state_1: Any, sample_state_2: Any
                          ) -> Any:
    """Returns the sum of two states."""
    return tf.nest.map_structure(tf.add, sample_state_1, sample_state_2)


def _zeros_like(part: Any) -> tf.Tensor:
  """Returns zeros like a tensor, number or `TensorSpec`; AttributeError for None."""
  if part is None:
    raise AttributeError(
        'Expected template to be a structure of tensors, arrays, numbers or '
        'TensorSpecs, got None in it; pass one record.')
  if not isinstance(part, tf.TensorSpec):
    part = tf.convert_to_tensor(part)
  return tf.zeros(part.shape, part.dtype)


def _import_queries() -> Any:
  """Returns the module of queries; leaves no partly imported package behind."""
  if (_PACKAGE in sys.modules or hasattr(sys, _HOOK) or
      versions.whole_tensorflow_privacy_imports()):
    return importlib.import_module(f'{_PACKAGE}.privacy.dp_query.dp_query')
  setattr(sys, _HOOK, None)
  try:
    return importlib.import_module(f'{_PACKAGE}.privacy.dp_query.dp_query')
  finally:
    delattr(sys, _HOOK)
    # The package was imported without contents; the user's import starts afresh.
    sys.modules.pop(_PACKAGE, None)


def _modules() -> dict[str, Any]:
  """Returns the loaded modules of TensorFlow Privacy, by name."""
  return {name: module for name, module in sys.modules.items()
          if name.split('.')[0] == _PACKAGE}


def _find_sum_query() -> tuple[Any, str | None]:
  """Returns (base class of queries, reason why it is the stand-in or None).

  Warns if the import raised an error.
  """
  if _PACKAGE not in sys.modules:
    if importlib.util.find_spec(_PACKAGE) is None:
      return _SumQuery, 'it is not installed'
  elif sys.modules[_PACKAGE] is None:  # None blocks the import.
    return _SumQuery, 'its import is blocked in sys.modules'
  before = _modules()
  try:
    return _import_queries().SumAggregationDPQuery, None
  except Exception as error:  # pylint: disable=broad-except
    # Broken or mismatched installations raise any error. Half-loaded modules would
    # change the error of the user's own import.
    for name in set(_modules()) - set(before):
      del sys.modules[name]
    sys.modules.update(before)
    reason = f'its import raised {type(error).__name__}: {error}'
    warnings.warn(
        f'TensorFlow Privacy is installed, but {reason}. TableNoiseQuery has '
        'the methods of its queries, but is none of them; nothing else needs '
        'it. Mend or uninstall tensorflow-privacy.', RuntimeWarning,
        stacklevel=2)
    return _SumQuery, reason


SumAggregationDPQuery: Any
MISSING: str | None
SumAggregationDPQuery, MISSING = _find_sum_query()
"""The base class of queries; and why it is not TensorFlow Privacy's, or None."""
AVAILABLE: bool = MISSING is None
"""Whether `SumAggregationDPQuery` is the class of TensorFlow Privacy."""
