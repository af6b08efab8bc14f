"""The one place that imports TensorFlow Privacy, where it is installed.

From TensorFlow 2.16 on its optimizers and estimators no longer import, and so
neither does the package as a whole, but its queries do. They are imported by
themselves there, by the package's own hook, and nothing of that stays behind:
`import tensorflow_privacy` in a user's script does and says afterwards what it
would have without this package, in either order. Modules of queries are shared,
so that `TableNoiseQuery` is a `SumAggregationDPQuery` of the user's too.

Where not even its queries import, whatever the reason, a class of the same
methods stands in for them, and a warning says why.
"""

from __future__ import annotations

import collections
import importlib
import importlib.util
import sys
from typing import Any
from typing import Dict
from typing import Optional
from typing import Tuple
import warnings

import tensorflow as tf

from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import PACKAGE as _PACKAGE

_HOOK = 'skip_tf_privacy_import'


class _SumQuery:
  """Stands in for `SumAggregationDPQuery` where TensorFlow Privacy is not."""

  def initial_global_state(self) -> Any:
    """Returns the state before the first sample: nothing."""
    return ()

  def derive_sample_params(self, global_state: Any) -> Any:
    """Returns what records are processed with: nothing."""
    del global_state
    return ()

  def derive_metrics(self, global_state: Any) -> Dict[str, Any]:
    """Returns metrics of what was released, by name: none."""
    del global_state
    return collections.OrderedDict()

  def initial_sample_state(self, template: Any = None) -> Any:
    """Returns zeros in the structure of a record.

    Args:
      template: A nested structure of tensors, arrays, numbers or `TensorSpec`s.

    Raises:
      AttributeError: if a part of it is none of these.
    """
    return tf.nest.map_structure(_zeros_like, template)

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Returns the record as it is."""
    del params
    return record

  def accumulate_preprocessed_record(self, sample_state: Any,
                                     preprocessed_record: Any) -> Any:
    """Returns the sum of both; a part that is None adds nothing."""
    return tf.nest.map_structure(
        lambda total, part: total if part is None else tf.add(total, part),
        sample_state, preprocessed_record)

  def merge_sample_states(self, sample_state_1: Any, sample_state_2: Any
                          ) -> Any:
    """Returns the sum of both."""
    return tf.nest.map_structure(tf.add, sample_state_1, sample_state_2)

  def accumulate_record(self, params: Any, sample_state: Any, record: Any
                        ) -> Any:
    """Returns the sum with one more record, preprocessed."""
    return self.accumulate_preprocessed_record(
        sample_state, self.preprocess_record(params, record))

  def get_noised_result(self, sample_state: Any, global_state: Any) -> Any:
    """To be overridden."""
    raise NotImplementedError


def _zeros_like(part: Any) -> tf.Tensor:
  if part is None:
    raise AttributeError(
        'Expected template to be a structure of tensors, arrays, numbers or '
        'TensorSpecs, got None in it; pass one record.')
  if not isinstance(part, tf.TensorSpec):
    part = tf.convert_to_tensor(part)
  return tf.zeros(part.shape, part.dtype)


def _import_queries() -> Any:
  """Imports the module of queries, leaving no trace of how."""
  if (_PACKAGE in sys.modules or hasattr(sys, _HOOK) or
      versions.whole_tensorflow_privacy_imports()):
    return importlib.import_module(f'{_PACKAGE}.privacy.dp_query.dp_query')
  setattr(sys, _HOOK, None)
  try:
    return importlib.import_module(f'{_PACKAGE}.privacy.dp_query.dp_query')
  finally:
    delattr(sys, _HOOK)
    # Without its contents; the user's own import begins it anew.
    sys.modules.pop(_PACKAGE, None)


def _modules() -> Dict[str, Any]:
  """The modules of TensorFlow Privacy that are loaded."""
  return {name: module for name, module in sys.modules.items()
          if name.split('.')[0] == _PACKAGE}


def _find_sum_query() -> Tuple[Any, Optional[str]]:
  """Returns the base class of queries, and why it is the stand-in, if it is."""
  if _PACKAGE not in sys.modules:
    if importlib.util.find_spec(_PACKAGE) is None:
      return _SumQuery, 'it is not installed'
  elif sys.modules[_PACKAGE] is None:  # How Python is told not to import it.
    return _SumQuery, 'its import is blocked in sys.modules'
  before = _modules()
  try:
    return _import_queries().SumAggregationDPQuery, None
  except Exception as error:  # pylint: disable=broad-except
    # An installation that is broken, or too new or old for its neighbours,
    # raises anything. What is half loaded would change what the user's own
    # import says.
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
MISSING: Optional[str]
SumAggregationDPQuery, MISSING = _find_sum_query()
"""The base class of queries; and why it is not TensorFlow Privacy's, or None."""
AVAILABLE: bool = MISSING is None
