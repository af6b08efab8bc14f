"""Turns events (no accountant) and arrays into plain JSON values, and back."""

from __future__ import annotations

import base64
import io
import numbers
from typing import Any

import attr
import dp_accounting
import numpy as np

from tfcactus import noise as noise_lib
from tfcactus.accounting import events
from tfcactus.pairs.dominating_pair import DominatingPair


def event_config(event: dp_accounting.DpEvent) -> dict[str, Any]:
  """Returns an event that `PhiAccountant` supports as a dict: its kind and fields."""
  return {'kind': type(event).__name__, 'fields': {
      field.name: _value_config(getattr(event, field.name))
      for field in attr.fields(type(event))}}


def event_from(config: dict[str, Any]) -> dp_accounting.DpEvent:
  """Returns the event of an `event_config`; ValueError if its kind is unknown."""
  kind = config['kind']
  owner = events if kind in _OWN_EVENTS else dp_accounting
  if kind not in (*_OWN_EVENTS, *_EVENTS) or not hasattr(owner, kind):
    raise ValueError(f'Expected an event of a plan in the config, got {kind!r}.')
  return getattr(owner, kind)(**{
      name: _value_from(value) for name, value in config['fields'].items()})


_EVENTS = ('NoOpDpEvent', 'NonPrivateDpEvent', 'GaussianDpEvent',
           'LaplaceDpEvent', 'RandomizedResponseDpEvent', 'ComposedDpEvent',
           'SelfComposedDpEvent', 'PoissonSampledDpEvent',
           'SampledWithoutReplacementDpEvent')
_OWN_EVENTS = ('NoiseTableDpEvent', 'DominatingPairDpEvent',
               'RandomAllocationDpEvent', 'AdaptedDpEvent', 'ThresholdDpEvent',
               'ValidationDpEvent')


def _value_config(value: Any) -> Any:
  """Returns a field: a number or text, or a dict whose one key names its type."""
  if isinstance(value, dp_accounting.DpEvent):
    return {'event': event_config(value)}
  if isinstance(value, (list, tuple)):
    return {'list': [_value_config(item) for item in value]}
  if isinstance(value, DominatingPair):
    return {'pair': arrays_config([value.loss, value.p, value.q, np.array(
        [value.p_inf, value.q_inf])])}
  if isinstance(value, dp_accounting.NeighboringRelation):
    return {'relation': value.name}
  if isinstance(value, noise_lib.Noise):
    return {'noise': noise_lib.to_config(value)}
  if isinstance(value, (str, numbers.Integral)):
    return value if isinstance(value, (str, bool)) else int(value)
  return float(value)


def _value_from(config: Any) -> Any:
  """Returns the field of an event that `_value_config` turned into `config`."""
  if not isinstance(config, dict):
    return config
  (kind, value), = config.items()
  if kind == 'pair':
    loss, p, q, (p_inf, q_inf) = arrays_from(value)
    return DominatingPair(loss, p, q, float(p_inf), float(q_inf))
  return {'event': event_from, 'noise': noise_lib.from_config,
          'list': lambda items: [_value_from(item) for item in items],
          'relation': lambda name: dp_accounting.NeighboringRelation[name],
          }[kind](value)


def arrays_config(arrays: list[np.ndarray]) -> str:
  """Returns arrays as text."""
  buffer = io.BytesIO()
  np.savez_compressed(buffer, *arrays)
  return base64.b64encode(buffer.getvalue()).decode('ascii')


def arrays_from(text: str) -> list[np.ndarray]:
  """Returns the arrays of an `arrays_config`."""
  with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as found:
    return [found[f'arr_{i}'] for i in range(len(found.files))]
