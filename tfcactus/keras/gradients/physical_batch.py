"""Estimate of the physical batch that fits in memory; no guarantee rests on it.

The estimate counts numbers in the tensors of a pass. Outputs of the lowest
differentiated layer and of all layers above it stay until the backward pass reaches
them; below it, those of one layer at a time are held. Per-example gradients stay until
the norm over all variables is known. Other needs of a rule are transient: a few of the
largest are in memory together.
"""

from __future__ import annotations

import math
import os
import pathlib

import tensorflow as tf
from tensorflow.python.client import device_lib

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients.layer_routes import own_variables, Route, Routes

_HELD = 1.5
"""Measured memory per example divided by the counted memory: 1.2 to 1.5, and 1.8 for an
LSTM, whose examples take little memory (benchmarks.step_memory)."""

_AT_ONCE = 4
"""Layers whose transient tensors are in memory together, as cores run in parallel."""

_CONTAINER_LIMITS = (
    pathlib.Path('/sys/fs/cgroup/memory.max'),
    pathlib.Path('/sys/fs/cgroup/memory/memory.limit_in_bytes'))
"""Files in which Linux states the memory limit of a container."""

_HOST_SHARE, _GPU_SHARE = 1 / 16, 1 / 2
"""Parts of memory for steps: a host serves other purposes too, a GPU does not."""

_HOST_ENOUGH = 2**30
"""In bytes. More memory hardly makes steps faster on a CPU: with a quarter of the
physical batch that fits into it, ResNet-20 takes 17.2 rather than 15.2 ms per example,
WRN-16-4 52.9 rather than 49.8 (benchmarks.step_memory)."""

_COPIES, _LARGE_SHARE = 12, 1 / 4
"""Large models take memory in proportion to their weights, as plain training does: so
many times the memory of the trained weights, up to this part of a host. Plain training
of an encoder of 108 million weights on 32 texts takes twelve times their memory
(benchmarks.large_model)."""

_FEW = 4
"""Fewest examples that must fit into memory if kernels are written out. Each physical
batch adds up float64 sums of all weights, which takes about as long as one example."""

_NUMBERS_PER_CALL = 150_000
"""The calls of one layer's operations take the time of this many numbers. A physical
batch of a BERT, with rules for 22 layers and 228,000 numbers per example, takes 13.5 ms
and .85 ms more per row: two physical batches of 8 cost more than one of 16."""

_LEAST_OVERHEAD = 4.0
"""Least cost, in rows, of a physical batch beside its rows: large models, too, work
faster on a few examples at once than one by one."""


def physical_rows(mean: float, deviation: float, model: keras.Model, routes: Routes,
                  views: int = 1) -> int:
  """Returns the size of a physical batch, in examples.

  It is the multiple of eight with the lowest expected cost of those that fit into
  memory, or what fits if that is less than eight. Vector units work best on multiples
  of eight. Rows that fill the last physical batch of a draw cost as much as examples;
  every physical batch costs `_overhead` rows more. `mean` and `deviation` (standard
  deviation) are of the number of examples in a draw. `views` is the number of passes
  per example: its views times its rows.
  """
  numbers = max(1, views * numbers_per_example(model, routes))
  fitting = _fitting(model, numbers)
  # Few draws are larger than two deviations above the mean: more rows would be padding.
  most = min(fitting, mean + 2 * deviation + 8)
  sizes = range(8, int(most) + 1, 8) or [min(fitting, 8)]
  overhead = _overhead(numbers, routes)
  return min(reversed(sizes), key=lambda size: (size + overhead) * _physical_batches(
      size, mean, deviation))


def is_lean(model: keras.Model, routes: Routes, rows: float, views: int = 1) -> bool:
  """Returns whether written-out kernel gradients would take too much memory.

  They do if fewer than min(`rows`, `_FEW`) examples fit with them, where `rows` is the
  size of a draw or of a given physical batch. Without them, the physical batch is
  larger, but every example takes longer. `views` is as for `physical_rows`.
  """
  numbers = views * numbers_per_example(model, routes._replace(lean=False))
  return _fitting(model, numbers) < min(rows, _FEW)


def _fitting(model: keras.Model, numbers: int) -> int:
  """Returns how many examples of `numbers` numbers each fit into memory, at least 1."""
  sizes = [tf.as_dtype(each.dtype).size for each in model.trainable_variables]
  number_size = max(sizes, default=4)  # In bytes.
  memory = max(memory_for_steps(), _memory_of_large(
      number_size * _count(model.trainable_variables)))
  return max(1, int(memory // (_HELD * max(1, numbers) * number_size)))


def _memory_of_large(weights: int) -> int:
  """Returns the bytes that steps may take on a host, given those of trained weights.

  With a GPU it returns 0: a GPU's share does not depend on the model.
  """
  if tf.config.list_logical_devices('GPU'):
    return 0
  return int(min(_COPIES * weights, _LARGE_SHARE * _host_limit()) / (
      replicas.shares().here))


def _physical_batches(rows: int, mean: float, deviation: float) -> float:
  """Returns the expected number of physical batches in a draw, one at least."""
  # Draws are taken as normal, and six deviations as their limit. The mean is the sum
  # over k >= 0 of P(draw > k rows), whose first term is taken as 1.
  ends = [k * rows + 0.5 for k in range(1, math.ceil((mean + 6 * deviation) / rows))]
  if deviation <= 0:
    return 1 + sum(mean > end for end in ends)
  return 1 + sum(
      0.5 * math.erfc((end - mean) / (deviation * math.sqrt(2))) for end in ends)


def _overhead(numbers: int, routes: Routes) -> float:
  """Returns the cost of a physical batch beside that of its rows, in rows."""
  rules = sum(route.vectorized or route.by_operations for route in routes.layers)
  return max(_LEAST_OVERHEAD, _NUMBERS_PER_CALL * rules / numbers)


def numbers_per_example(model: keras.Model, routes: Routes) -> int:
  """Returns about how many numbers a pass holds at once per row of a batch."""
  outputs = [sum(map(math.prod, _shapes(route))) for route in routes.layers]
  if routes.whole:
    return 2 * (_count(model.trainable_variables) + sum(outputs))
  first = next((index for index, route in enumerate(routes.layers)
                if route.vectorized or route.by_operations), len(outputs))
  kept = sum(outputs[first:])
  transient, largest = [], 0
  for route, size in zip(routes.layers, outputs):
    gradients, further = _of_gradients(route, size)
    if routes.lean:
      gradients = min(gradients, _of_products(route, size, routes))
    kept += gradients
    largest = max(largest, gradients)
    transient.append(2 * size + further)  # Outputs and their gradients, and more.
  # Clipped sums convert the gradients of one variable at a time to float64, which
  # takes twice their float32 memory.
  return kept + max(sum(sorted(transient)[-_AT_ONCE:]), 2 * largest)


def _of_gradients(route: Route, outputs: int) -> tuple[int, int]:
  """Returns (numbers in a layer's gradients, further numbers held to compute them).

  Both are per example, as is `outputs`, the count of numbers that the layer outputs.
  """
  layer, shapes = route.layer, _shapes(route)
  if route.vectorized:
    return _count(models.trained_variables(layer)), 0
  if isinstance(layer, keras.layers.RNN):
    return 0, _in_loop(layer)  # Gradients are outer products of steps of the loop.
  if not route.by_operations:
    return 0, 0
  own = own_variables(layer)
  if isinstance(layer, keras.layers.Embedding) and type(layer) not in (
      models.layer_classes(['ReversibleEmbedding'])) and len(own) == 1:
    return 0, 0  # Gradients of the rows that were looked up.
  if isinstance(layer, keras.layers.Dense) and all(len(each) == 1 for each in shapes):
    return 0, 0  # Outer products.
  # What layers of users hold is not known: their outputs count once more.
  of_keras = type(layer).__module__.startswith(f'{keras.__name__}.')
  return _count(own), _patches(layer, shapes) if of_keras else outputs


def _of_products(route: Route, outputs: int, routes: Routes) -> int:
  """Returns the numbers per example in a layer's gradients without writing kernels out.

  The inputs are held anyway; gradients of the outputs are held until the norm is known.
  Kernels of layers that are not in `_PRODUCTS` count as written out.
  """
  own = own_variables(route.layer)
  kernels = [each for each in own if len(each.shape) > 1]
  if not isinstance(route.layer, _PRODUCTS) or not kernels:
    return _count(own)
  # Keras does not tell the shapes inside of a layer such as attention: its outputs are
  # taken as those of square kernels at the most positions of any layer.
  if not outputs:
    positions = max((math.prod(shape[:-1]) for each in routes.layers
                     for shape in _shapes(each)), default=1)
    outputs = positions * math.isqrt(max(math.prod(each.shape) for each in kernels))
  return _count(own) - _count(kernels) + len(kernels) * outputs


_PRODUCTS = (keras.layers.Dense, keras.layers.EinsumDense)
"""Layers whose kernel gradients are sums of outer products of inputs and outputs."""


def _in_loop(layer: keras.layers.Layer) -> int:
  """Returns about how many numbers a recurrent layer's loop holds, per example."""
  # Gates, their gradients, and about as much again in the loop, taken as 5 numbers for
  # each gate, position and step; convolutions also hold patches of images.
  shapes = [shape[1:-1] for shape in models.input_shapes(layer) if len(shape) > 2]
  # Steps times positions of images; an unknown length counts as 1.
  places = math.prod(size or 1 for size in shapes[0]) if shapes else 0
  count = 0
  for cell in models.flat_layers(layer):
    if hasattr(cell, 'recurrent_kernel'):
      *sizes, width, gates = cell.kernel.shape
      window = math.prod(sizes)
      patch = window * max(width, cell.recurrent_kernel.shape[-2]) if window > 1 else 0
      count += places * (5 * gates + patch)
  return count


def _patches(layer: keras.layers.Layer, shapes: list[list[int]]) -> int:
  """Returns about how many numbers a convolution's image patches hold, per example.

  `shapes` are the layer's output shapes for one example; other layers have no patches.
  """
  positions = sum(math.prod(shape[:-1]) for shape in shapes)
  kernel = getattr(layer, 'pointwise_kernel', None)
  if kernel is not None:
    return 4 * kernel.shape[-2] * positions  # Four tensors between both convolutions.
  kernel = getattr(layer, 'kernel', None)
  if kernel is None or not hasattr(layer, 'kernel_size') or isinstance(
      layer, (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)):
    return 0
  if isinstance(layer, (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose,
                        keras.layers.Conv3DTranspose)):
    # Outputs have about as many positions as inputs times the strides.
    positions = -(-positions // math.prod(layer.strides))
  return math.prod(kernel.shape[:-1]) * positions * getattr(layer, 'groups', 1)


def _shapes(route: Route) -> list[list[int]]:
  """Returns a layer's output shapes that are fully known, without the batch axis."""
  return [shape[1:] for shape in models.output_shapes(route.layer)
          if None not in shape[1:]]


def _count(variables: list[tf.Variable]) -> int:
  """Returns the total number of entries of variables."""
  return sum(math.prod(variable.shape) for variable in variables)


def memory_for_steps() -> int:
  """Returns the bytes that the steps of one replica may take.

  They are a share of all memory, not of what is free, so that runs get the same
  physical batch. A host gives `_HOST_ENOUGH` at most.
  """
  gpus = tf.config.list_logical_devices('GPU')
  if gpus:
    return int(_GPU_SHARE * min(_gpu_limits(), default=_HOST_ENOUGH / _GPU_SHARE))
  here = replicas.shares().here
  return int(min(_HOST_ENOUGH, _HOST_SHARE * _host_limit()) / here)


def _host_limit() -> int:
  """Returns the bytes of host memory that this process may take."""
  try:
    limits = [os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')]
  except (AttributeError, ValueError, OSError):  # Windows has no sysconf.
    limits = [int(_HOST_ENOUGH / _HOST_SHARE)]
  for path in _CONTAINER_LIMITS:
    try:
      limits.append(int(path.read_text(encoding='ascii')))
    except (OSError, ValueError):  # The file is missing, or holds 'max'.
      continue
  return min(limits)


def _gpu_limits() -> list[int]:
  """Returns the bytes that TensorFlow may take of each GPU; [] if unknown."""
  try:
    return [int(device.memory_limit) for device in device_lib.list_local_devices()
            if device.device_type == 'GPU' and device.memory_limit]
  except (RuntimeError, ValueError, tf.errors.OpError):
    return []  # For example if GPUs are split into logical devices.
