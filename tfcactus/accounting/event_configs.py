"""Turns events (no accountant) and arrays into plain JSON values, and back."""

from __future__ import annotations

import base64
import dataclasses
import io
import numbers
from typing import Any

import attr
import dp_accounting
import numpy as np

from tfcactus import noise as noise_lib
from tfcactus.accounting import events, exponential, run_laws, tuning
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds


def event_config(event: dp_accounting.DpEvent) -> dict[str, Any]:
  """Returns an event as a dict of kind and fields; ValueError for unknown classes."""
  kind = type(event)
  if _CLASSES.get(kind.__name__) is not kind:
    raise ValueError(
        f'Expected an event that can be saved, got a {kind.__name__}, whose class this '
        'library does not know when it loads. Save weights alone by save_weights, or '
        'pass the event as DominatingPairDpEvent of its pair.')
  return {'kind': kind.__name__, 'fields': {
      field.name: _value_config(getattr(event, field.name))
      for field in attr.fields(kind)}}


def event_from(config: dict[str, Any]) -> dp_accounting.DpEvent:
  """Returns the event of an `event_config`; ValueError if its kind is unknown."""
  kind = config['kind']
  if not isinstance(kind, str) or kind not in _CLASSES:
    raise ValueError(f'Expected an event of a plan in the config, got {kind!r}.')
  return _CLASSES[kind](**{
      name: _value_from(value) for name, value in config['fields'].items()})


_EVENTS = ('NoOpDpEvent', 'NonPrivateDpEvent', 'GaussianDpEvent',
           'LaplaceDpEvent', 'RandomizedResponseDpEvent', 'ComposedDpEvent',
           'SelfComposedDpEvent', 'PoissonSampledDpEvent',
           'SampledWithoutReplacementDpEvent')
_CLASSES: dict[str, type[dp_accounting.DpEvent]] = {each.__name__: each for each in (
    # Older releases of dp_accounting lack some events.
    *(getattr(dp_accounting, name) for name in _EVENTS if hasattr(dp_accounting, name)),
    noise_lib.NoiseTableDpEvent, events.DominatingPairDpEvent,
    events.RandomAllocationDpEvent, events.AdaptedDpEvent, events.ThresholdDpEvent,
    events.DistanceDpEvent, events.ValidationDpEvent,
    exponential.ExponentialMechanismDpEvent, tuning.SearchDpEvent)}


def _value_config(value: Any) -> Any:
  """Returns a field for JSON: a number or text, or a dict whose one key is its type."""
  if isinstance(value, dp_accounting.DpEvent):
    return {'event': event_config(value)}
  if isinstance(value, (list, tuple)):
    return {'list': [_value_config(item) for item in value]}
  if isinstance(value, DominatingPair):
    return {'pair': arrays_config([value.loss, value.p, value.q, np.array(
        [value.p_inf, value.q_inf])])}
  if isinstance(value, PairBounds):  # One pair if both are one object.
    return {'pair_bounds': [_value_config(pair) for pair in dict.fromkeys(
        (value.lower, value.upper))]}
  if isinstance(value, dp_accounting.NeighboringRelation):
    return {'relation': value.name}
  if isinstance(value, noise_lib.Noise):
    return {'noise': noise_lib.to_config(value)}
  if isinstance(value, run_laws.RunLaw):
    law: Any = value  # Every law is a dataclass, which its base class does not say.
    return {'runs': {'law': type(value).__name__, **{
        field.name: _value_config(getattr(value, field.name))
        for field in dataclasses.fields(law) if field.init}}}
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
  if kind == 'pair_bounds':
    pairs = [_value_from(pair) for pair in value]
    return PairBounds(pairs[0], pairs[-1])
  if kind == 'runs':
    return getattr(run_laws, value['law'])(**{
        name: _value_from(field) for name, field in value.items() if name != 'law'})
  return {'event': event_from, 'noise': noise_lib.from_config,
          'list': lambda items: [_value_from(item) for item in items],
          'relation': lambda name: dp_accounting.NeighboringRelation[name],
          }[kind](value)


def arrays_config(arrays: list[np.ndarray]) -> str:
  """Returns arrays as text: a compressed npz file in base64."""
  buffer = io.BytesIO()
  np.savez_compressed(buffer, *arrays)
  return base64.b64encode(buffer.getvalue()).decode('ascii')


def arrays_from(text: str) -> list[np.ndarray]:
  """Returns the arrays of an `arrays_config`."""
  with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as file:
    return [file[f'arr_{i}'] for i in range(len(file.files))]
