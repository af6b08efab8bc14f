"""Refuses strategies of tf.distribute that noise is not shown to be right for."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_SUPPORTED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy,
              tf.distribute.OneDeviceStrategy)

_REASONS = {
    'ParameterServer': 'its workers send gradients at times of their own, so that no '
                       'step has a sum to which noise is added once',
    'TPU': 'it compiles all replicas at once by XLA, and noise is drawn outside of XLA',
    'CentralStorage': 'it keeps one copy of the variables, whose updates this library '
                      'has not been shown to get right'}

_REMEDY = ('Use tf.distribute.MirroredStrategy for the devices of one machine, or '
           'MultiWorkerMirroredStrategy for several machines.')


def check(variables: Sequence[tf.Variable] = ()) -> None:
  """Raises ValueError for strategies under which noise would not be added once.

  Checks the strategy of the current scope and those of a model's `variables`, and that
  `variables` belong to the scope.
  """
  current = tf.distribute.get_strategy()
  _check_supported(current)
  for variable in variables:
    if type(variable).__name__ == 'DVariable':
      raise ValueError(
          'Expected variables of a tf.distribute strategy or of none, got those of '
          'DTensor: its layouts spread one example over devices, and gradients per '
          f'example are not taken there. {_REMEDY}')
    spread = isinstance(variable, tf.distribute.DistributedValues)
    holder = variable.distribute_strategy if spread else None
    if holder is not None:
      _check_supported(holder)
    if current.num_replicas_in_sync > 1 and holder is not current:
      raise ValueError(
          f'Expected a model made in the scope of the {type(current).__name__} that it '
          'is trained by, got one with variables '
          f'{"of another strategy" if spread else "on one device"}. {_SCOPE}')
    if holder is not None and holder.num_replicas_in_sync > 1 and holder is not current:
      raise ValueError(
          'Expected privatize(...) and compile(...) in the scope that the model was '
          f'made in, of a {type(holder).__name__} of num_replicas_in_sync='
          f'{holder.num_replicas_in_sync}, got them outside of it. {_SCOPE}')


def _check_supported(strategy: tf.distribute.Strategy) -> None:
  """Raises ValueError for a strategy of several replicas that is not supported."""
  if isinstance(strategy, _SUPPORTED) or strategy.num_replicas_in_sync == 1:
    return
  name = type(strategy).__name__
  reason = next((why for kind, why in _REASONS.items() if name.startswith(kind)),
                'this library does not know how its replicas add up')
  raise ValueError(
      f'Expected MirroredStrategy or MultiWorkerMirroredStrategy, got {name} of '
      f'num_replicas_in_sync={strategy.num_replicas_in_sync}: {reason}. {_REMEDY}')


_SCOPE = ('Write with strategy.scope(): model = privatize(make_model(), plan); '
          'model.compile(...).')
