"""Rule for recurrent layers: back-propagation through time of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfcactus.keras.compat import models, recurrent as compat
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base, recurrent_cells, recurrent_scan
from tfcactus.keras.gradients.layers.recurrent_cells import Kernel


class _Run(NamedTuple):
  """One cell's pass over the sequences of a batch.

  `kernel` is the kernel of the inputs; `inputs` are (rows, time, ...). `loop` is empty
  until the loop over time has run, then [recurrent kernel, `recurrent_scan.Scanned`].
  """

  cell: keras.layers.Layer
  math: recurrent_cells.CellMath
  inputs: tf.Tensor
  kernel: Kernel
  loop: list[Any]


class RecurrentRule(base.LayerRule):
  """Rule for the recurrent layers of Keras; never unrolled, whatever the layer says."""

  layer_types = (
      keras.layers.SimpleRNN, keras.layers.LSTM, keras.layers.GRU,
      keras.layers.RNN, *compat.CONVOLUTIONAL)
  also_frozen = True

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns why the rule does not hold for the layer, else ''.

    The rule needs known cells with channels last, no other trainable variables than the
    cells' kernels and biases, and a usual call.
    """
    own: list[Any] = []
    for cell in compat.cells(layer):
      if recurrent_cells.math_of(cell) is None:
        return f'no rule for the cell {type(cell).__name__}'
      if getattr(cell, 'data_format', None) == 'channels_first':
        return 'channels_first'
      own += [getattr(cell, name, None) for name in _VARIABLES]
    if any(all(v is not each for each in own) for v in models.trained_variables(layer)):
      return 'it has variables beside those of its cells'
    return compat.unusual_call(layer)

  @tf.autograph.experimental.do_not_convert  # Conversion takes seconds.
  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs the layer's cells one after another, each over the whole sequence."""
    given = compat.arguments(call, inputs, *args, **kwargs)
    sequences, states, mask = given.sequences, given.states, given.mask
    if layer.go_backwards:
      sequences = tf.reverse(sequences, [1])
      mask = None if mask is None else tf.reverse(mask, [1])
    cells, last = compat.cells(layer), []
    for cell in cells:
      count = recurrent_cells.known(cell).states
      own, states = (None, None) if states is None else (
          states[:count], states[count:])
      whole = layer.return_sequences or cell is not cells[-1]
      scanned = _run(layer, cell, capture, compat.Arguments(
          sequences, own, mask, given.training), whole)
      sequences = scanned.after
      last.append(scanned.states)
    given_out = (recurrent_scan.outputs if layer.return_sequences else
                 recurrent_scan.last_output)
    return compat.returned(
        layer, given_out(scanned, mask, compat.zeroes_masked(layer)), last)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of one cell's kernel, recurrent kernel and bias."""
    run: _Run = call.saved
    cell, (recurrent, scanned) = run.cell, run.loop
    gradient = base.in_stored_dtype(call.gradient, cell.kernel)
    inner, bias = run.math.gradients(scanned, recurrent, gradient)
    found = [(cell.kernel, run.kernel.gradient(run.inputs, gradient)),
             (cell.recurrent_kernel, inner)]
    if cell.use_bias:
      found.append((cell.bias, bias))
    return [(variable, forms.Dense(values, variable.shape))
            for variable, values in found]

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Counts from the input shapes, which have the time axis."""
    del output_shapes  # Output shapes may lack the time axis.
    shapes = [shape[1:] for shape in models.input_shapes(layer)]
    return self.numbers_of(layer, [s for s in shapes if len(s) > 1][:1])

  def numbers_of(self, layer: keras.layers.Layer,
                 input_shapes: Sequence[Sequence[Any]]) -> int:
    """Returns `numbers_per_example` from input shapes without the batch axis."""
    count = sum(math.prod(v.shape) for v in models.trained_variables(layer))
    for cell in compat.cells(layer):
      for steps, *inner in input_shapes:
        places = math.prod(size or 1 for size in inner[:-1]) * (steps or 1)
        # Pre-activations of the gates and their gradients, and about as much in
        # the loop; for convolutions, patches too.
        window = math.prod(cell.kernel.shape[:-2]) if places else 1
        count += places * (
            5 * cell.kernel.shape[-1] + (window > 1) * window * max(
                cell.kernel.shape[-2], cell.recurrent_kernel.shape[-2]))
    return count


_VARIABLES = ('kernel', 'recurrent_kernel', 'bias')


def _run(layer: keras.layers.Layer, cell: keras.layers.Layer,
         capture: base.Capture, given: compat.Arguments, whole: bool
        ) -> recurrent_scan.Scanned:
  """Runs a cell over sequences and captures its x W + b; `whole` is as for `scan`."""
  known = recurrent_cells.known(cell)
  inputs = tf.cast(given.sequences, cell.compute_dtype)
  dropped = compat.dropped(layer, inputs, given.training)
  if dropped is None:
    masks = compat.dropout_masks(
        cell, known.gates, 'dropout', inputs[:, 0], given.training)
  else:
    inputs, masks = dropped, None
  run = _Run(cell, known, inputs, Kernel(
      cell, cell.kernel, known.gates, masks, of_inputs=True), [])
  made = run.kernel.products(inputs)
  bias = known.input_bias(cell)
  made = capture(run, made if bias is None else made + bias)
  shape = [made.shape[0], *made.shape[2:-1], made.shape[-1] // known.gates]
  states = [tf.zeros(shape, made.dtype)] * known.states if given.states is None else [
      tf.cast(state, made.dtype) for state in given.states]
  masks = compat.dropout_masks(
      cell, known.gates, 'recurrent_dropout', states[0], given.training)
  recurrent = Kernel(cell, cell.recurrent_kernel, known.gates, masks, of_inputs=False)
  scanned = recurrent_scan.scan(
      known.step(cell, recurrent), made, states, given.mask, known.keeps, whole)
  run.loop.extend((recurrent, scanned))
  return scanned
