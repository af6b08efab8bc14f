"""The one place that imports TensorFlow Privacy, where it is installed.

From TensorFlow 2.16 on its optimizers and estimators no longer import, and so
neither does the package as a whole, but its queries do. They are imported by
themselves there, by the package's own hook, and nothing of that stays behind:
`import tensorflow_privacy` in a user's script does and says afterwards what it
would have without this package, in either order. Modules of queries are shared,
so that `TableNoiseQuery` is a `SumAggregationDPQuery` of the user's too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import tensorflow as tf

from tfcactus.keras import _compat

_PACKAGE = 'tensorflow_privacy'
_HOOK = 'skip_tf_privacy_import'


class _SumQuery:
  """Stands in for `SumAggregationDPQuery` where TensorFlow Privacy is not."""

  def initial_sample_state(self, template: Any) -> Any:
    """Returns zeros in the structure of a record."""
    return tf.nest.map_structure(
        lambda part: tf.zeros(part.shape, part.dtype), template)

  def accumulate_preprocessed_record(self, sample_state: Any,
                                     preprocessed_record: Any) -> Any:
    """Returns the sum of both."""
    return tf.nest.map_structure(tf.add, sample_state, preprocessed_record)

  def merge_sample_states(self, sample_state_1: Any, sample_state_2: Any
                          ) -> Any:
    """Returns the sum of both."""
    return tf.nest.map_structure(tf.add, sample_state_1, sample_state_2)

  def accumulate_record(self, params: Any, sample_state: Any, record: Any
                        ) -> Any:
    """Returns the sum with one more record, preprocessed."""
    return self.accumulate_preprocessed_record(
        sample_state, self.preprocess_record(params, record))


def _import_queries() -> Any:
  """Imports the module of queries, leaving no trace of how."""
  alone = (_PACKAGE not in sys.modules and not hasattr(sys, _HOOK) and
           not _compat.whole_tensorflow_privacy_imports())
  if not alone:
    return importlib.import_module(f'{_PACKAGE}.privacy.dp_query.dp_query')
  setattr(sys, _HOOK, None)
  try:
    return importlib.import_module(f'{_PACKAGE}.privacy.dp_query.dp_query')
  finally:
    delattr(sys, _HOOK)
    # Without its contents; the user's own import begins it anew.
    sys.modules.pop(_PACKAGE, None)


AVAILABLE = (_PACKAGE in sys.modules or
             importlib.util.find_spec(_PACKAGE) is not None)
SumAggregationDPQuery: Any = (
    _import_queries().SumAggregationDPQuery if AVAILABLE else _SumQuery)


def is_foreign_dp_optimizer(optimizer: Any) -> bool:
  """Whether `optimizer` is one of TensorFlow Privacy's own."""
  modules = (cls.__module__ for cls in type(optimizer).__mro__)
  return any(name.startswith(_PACKAGE) for name in modules)
