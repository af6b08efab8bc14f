"""Models and losses whose clipped sums `test_constructs.py` measures.

A line of `PRIVATE` or `DROP_IN` is a construct that a Keras user can type. To extend
the suite add a line: the outcome (`BOUNDED`, or words of the refusal), the layers, and
other settings. `make test` runs the constructs of `REPRESENTATIVE_PRIVATE` and
`REPRESENTATIVE_DROP_IN`, `make test-all` the others.
"""

from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

BOUNDED = ''
APART = 'each example is by itself'  # The refusal of a loss that mixes examples.
ALONE = 'loss per example'  # The refusal of a drop-in optimizer.

layers = tf.keras.layers
losses = tf.keras.losses


class Construct(NamedTuple):
  """One line of the suite.

  Attributes:
    outcome: BOUNDED, or a pattern of the words of the refusal; a drop-in optimizer
      gives these words as the reason why there is no epsilon.
    make: Makes the layers between the input and the last layer, or a model.
    shape: Shape of one example's input.
    loss: Makes the loss.
    targets: The kind of targets; see `targets`.
    clipping: Argument of `privatize`.
    engine: Argument of `privatize`.
    policy: The dtype policy.
    weights: Whether examples have weights.
    ids: Whether inputs are integers.
    slow: Whether only `make test-slow` runs this construct.
  """

  outcome: str
  make: Callable[[], Any]
  shape: tuple[int, ...] = (4,)
  loss: Callable[[], Any] = lambda: losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='none')
  targets: str = 'labels'
  clipping: str = 'flat'
  engine: str = 'auto'
  policy: str = 'float32'
  weights: bool = False
  ids: bool = False
  slow: bool = False


def targets(kind: str, rows: int, rng: np.random.Generator) -> np.ndarray:
  """Returns targets of a kind for three outputs."""
  labels = rng.integers(0, 3, rows)
  return {
      'labels': labels, 'column': labels[:, None],
      'onehot': np.eye(3, dtype=np.float32)[labels],
      'binary': rng.integers(0, 2, (rows, 3)).astype(np.float32),
      'real': rng.standard_t(2, (rows, 3)).astype(np.float32),
      'positive': np.abs(rng.standard_t(2, (rows, 3))).astype(np.float32),
      # Binary labels for some examples, signs for the others.
      'signs': np.where(labels[:, None] == 2, -1.0, rng.integers(
          0, 2, (rows, 3))).astype(np.float32)}[kind]


def _dense(**kwargs: Any) -> Any:
  return layers.Dense(4, **kwargs)


class Centering(layers.Layer):
  """Subtracts the mean of the batch."""

  def call(self, inputs):
    return inputs - tf.reduce_mean(inputs, axis=0)


class Attending(layers.Layer):
  """Attention between the examples of a batch."""

  def call(self, inputs):
    rows = tf.reshape(inputs, [tf.shape(inputs)[0], inputs.shape[-1]])
    scores = tf.matmul(rows, rows, transpose_b=True)
    return tf.matmul(tf.nn.softmax(scores), rows)


class Function(layers.Layer):
  """Applies a function to the batch."""

  def __init__(self, function):
    super().__init__()
    self._function = function

  def call(self, inputs):
    return self._function(inputs)


class Scaled(layers.Layer):
  """Multiplies by a weight and applies a function to the batch."""

  def __init__(self, function):
    super().__init__()
    self._function = function

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):
    return self._function(inputs * self.w)


class Counting(layers.Layer):
  """Counts the examples that it saw."""

  def build(self, shape):
    self.seen = self.add_weight(name='seen', shape=(), trainable=False)

  def call(self, inputs):
    self.seen.assign_add(tf.cast(tf.shape(inputs)[0], self.seen.dtype))
    return inputs


class Attention(layers.Layer):
  """Attention within each example."""

  def __init__(self):
    super().__init__()
    self._inner = layers.MultiHeadAttention(1, 2)

  def build(self, shape):
    self._inner(tf.zeros((1, *shape[1:])), tf.zeros((1, *shape[1:])))
    super().build(shape)

  def call(self, inputs):
    return self._inner(inputs, inputs)


@tf.custom_gradient
def backward_mean(x):
  """The identity, with a gradient that mixes the examples."""
  return tf.identity(x), lambda up: up - tf.reduce_mean(up, 0, keepdims=True)


def _size(x):
  return tf.cast(tf.shape(x)[0], x.dtype)


ACROSS: dict[str, Callable[[Any], Any]] = {
    'minus mean': lambda x: x - tf.reduce_mean(x, 0, keepdims=True),
    'minus mean, negative axis': lambda x: x - tf.reduce_mean(
        x, -x.shape.rank, keepdims=True),
    'standardized': lambda x: (x - tf.reduce_mean(x, 0)) / (
        1e-3 + tf.math.reduce_std(x, 0)),
    'softmax': lambda x: tf.nn.softmax(x, axis=0),
    'reverse': lambda x: x + tf.reverse(x, [0]),
    'roll': lambda x: x + tf.roll(x, 1, 0),
    'first row': lambda x: x - x[:1],
    'gather': lambda x: x - tf.gather(x, tf.zeros([1], tf.int32)),
    'cumsum': lambda x: tf.cumsum(x, 0),
    'top': lambda x: x * tf.cast(x >= tf.reduce_max(x, 0), x.dtype),
    'norm of all': lambda x: x / (1e-3 + tf.norm(x)),
    'over the size': lambda x: x / _size(x),
    'branch': lambda x: tf.cond(
        tf.reduce_sum(x) > 0, lambda: 3.0 * x, lambda: -x),
    'by place': lambda x: x * tf.cast(tf.range(tf.shape(x)[0]), x.dtype)[
        (...,) + (None,) * (x.shape.rank - 1)],
    'transposed': lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x))),
    'sorted': lambda x: tf.sort(x, 0),
    'backward alone': backward_mean,
}
"""Functions in which one example meets another."""


def _loss(function: Callable[[Any], Any]) -> Callable[[], Any]:
  """A loss that applies a function to the losses of the batch."""

  class Mixing(losses.Loss):
    """Cross-entropies that a function of the whole batch changes."""

    def __init__(self):
      super().__init__(reduction='none', name='mixing')

    def call(self, y_true, y_pred):
      values = losses.sparse_categorical_crossentropy(
          tf.reshape(y_true, [-1]), y_pred, from_logits=True)
      return function(values)

  return Mixing


def _pairs(function: Callable[[Any, Any], Any]) -> Callable[[], Any]:
  """Makes a loss that is a function."""
  return lambda: function


def _contrastive(y, p):
  same = tf.cast(tf.equal(tf.reshape(y, [-1, 1]), tf.reshape(y, [1, -1])),
                 p.dtype)
  apart = tf.reduce_sum((p[:, None] - p[None])**2, -1)
  return tf.reduce_mean(same * apart + (1 - same) * tf.nn.relu(1 - apart), 1)


def _balanced(y, p):
  hot = tf.one_hot(tf.reshape(tf.cast(y, tf.int32), [-1]), 3)
  weight = 1 / (1 + tf.reduce_sum(hot, 0))
  return tf.reduce_sum(hot * weight, -1) * (
      -tf.reduce_sum(hot * tf.nn.log_softmax(p), -1))


def _hardest(values):
  return tf.where(values >= tf.reduce_max(values), values, 0.0 * values)


def _half_hardest(values):
  kept = tf.math.top_k(values, tf.shape(values)[0] // 2).values
  return tf.where(values >= kept[-1], values, 0.0 * values)


def _state():
  kept = tf.Variable(0.0, trainable=False)

  def loss(y, p):
    values = tf.reduce_mean((tf.cast(y, p.dtype) - p)**2, -1)
    kept.assign(tf.reduce_mean(values))
    return values - kept

  return loss


def _squares(y, p):
  return tf.reduce_mean((tf.cast(y, p.dtype) - p)**2, -1)


def _gathered(y, p):
  rows = tf.range(tf.shape(p)[0])
  labels = tf.reshape(tf.cast(y, tf.int32), [-1])
  return -tf.gather_nd(tf.nn.log_softmax(p), tf.stack([rows, labels], 1))


def _mapped(y, p):
  return tf.map_fn(lambda pair: tf.reduce_sum((pair[0] - pair[1])**2),
                   (tf.cast(y, p.dtype), p), fn_output_signature=p.dtype)


@tf.custom_gradient
def _reversed(x):
  return tf.identity(x), lambda up: -up


def _line(outcome: str = BOUNDED, *parts: Callable[[], Any], **kwargs: Any
         ) -> Construct:
  return Construct(outcome, lambda: [part() for part in parts], **kwargs)


def _losses(outcome: str, kind: str, loss: Callable[[], Any], **kwargs: Any
           ) -> Construct:
  return _line(outcome, loss=loss, targets=kind, **kwargs)


def _stateful() -> tf.keras.Model:
  inputs = tf.keras.Input(batch_shape=(8, 3, 4))
  x = layers.SimpleRNN(3, stateful=True, unroll=True)(inputs)
  return tf.keras.Model(inputs, x)


def _two_outputs() -> tf.keras.Model:
  inputs = tf.keras.Input((4,))
  return tf.keras.Model(inputs, [layers.Dense(3)(inputs), layers.Dense(3)(inputs)])


def _branches() -> tf.keras.Model:
  inputs = tf.keras.Input((4,))
  shared = layers.Dense(4)
  x = layers.Add()([shared(inputs), shared(shared(inputs))])
  return tf.keras.Model(inputs, layers.Dense(3)(layers.Concatenate(axis=-1)(
      [x, inputs])))


def _stacked_rows() -> tf.keras.Model:
  inputs = tf.keras.Input((4,))
  x = layers.Dense(4)(inputs)
  both = layers.Concatenate(axis=-2)([x, x])
  return tf.keras.Model(inputs, Function(
      lambda v: v[:tf.shape(v)[0] // 2])(layers.Dense(3)(both)))


def _nested() -> tf.keras.Model:
  inner = tf.keras.Sequential([layers.Input((4,)), layers.Dense(4, 'relu'),
                               layers.LayerNormalization()])
  inputs = tf.keras.Input((4,))
  return tf.keras.Model(inputs, layers.Dense(3)(inner(inner(inputs))))


class Subclassed(tf.keras.Model):
  """A model that subtracts the mean of the batch."""

  def __init__(self):
    super().__init__()
    self.dense = layers.Dense(3)

  def call(self, inputs):
    x = self.dense(inputs)
    return x - tf.reduce_mean(x, 0)


def _subclassed() -> tf.keras.Model:
  model = Subclassed()
  model(tf.zeros((2, 4)))
  return model


class Head(layers.Layer):
  """Reads the table of another layer."""

  def __init__(self, embedding):
    super().__init__()
    self._table = lambda: tf.convert_to_tensor(embedding.embeddings)

  def call(self, inputs):
    return tf.matmul(inputs, self._table()[:3], transpose_b=True)


def _tied_by_closure() -> tf.keras.Model:
  embedding = layers.Embedding(5, 4)
  inputs = tf.keras.Input((4,), dtype='int32')
  x = layers.GlobalAveragePooling1D()(embedding(inputs))
  return tf.keras.Model(inputs, Head(embedding)(layers.Dense(4)(x)))


def _tied() -> tf.keras.Model:
  shared = layers.Embedding(5, 3)
  inputs = tf.keras.Input((4,), dtype='int32')
  x = layers.Concatenate()([shared(inputs), shared(inputs)])
  return tf.keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


_IMAGE, _TIME = (5, 5, 2), (5, 4)

PRIVATE: dict[str, Construct] = {
    # Several layers of a kind in one model.
    'layers of images': _line(
        BOUNDED, lambda: layers.Conv2D(4, 3, strides=2, padding='same'),
        lambda: layers.DepthwiseConv2D(2), lambda: layers.GroupNormalization(2),
        layers.ZeroPadding2D, lambda: layers.SeparableConv2D(2, 2),
        layers.LeakyReLU, lambda: layers.Conv2D(3, 2, dilation_rate=2),
        layers.UpSampling2D, layers.MaxPooling2D, shape=_IMAGE),
    'layers of series': _line(
        BOUNDED, lambda: layers.Conv1D(4, 2, padding='causal', dilation_rate=2),
        lambda: layers.LayerNormalization(axis=(1, 2)), _dense, layers.PReLU,
        lambda: layers.EinsumDense('abc,cd->abd', output_shape=(5, 4)),
        lambda: layers.TimeDistributed(_dense()), lambda: layers.Softmax(axis=1),
        shape=_TIME),
    'layers that mix examples': _line(
        BOUNDED, lambda: layers.Softmax(axis=0),
        lambda: Function(ACROSS['branch']), lambda: Scaled(ACROSS['by place']),
        lambda: _dense(activation=ACROSS['minus mean']), Attending,
        lambda: layers.Lambda(ACROSS['over the size'])),
    # Layers with rules, and ways to clip.
    'linear': _line(),
    'dense': _line(BOUNDED, _dense),
    'dense per layer': _line(BOUNDED, _dense, clipping='per_layer'),
    'dense automatic': _line(BOUNDED, _dense, clipping='automatic'),
    'dense vectorized': _line(BOUNDED, _dense, engine='vectorized'),
    'dense vectorized per layer': _line(
        BOUNDED, _dense, engine='vectorized', clipping='per_layer'),
    'dense vectorized automatic': _line(
        BOUNDED, _dense, engine='vectorized', clipping='automatic'),
    'dense weights': _line(BOUNDED, _dense, weights=True),
    'dense weights automatic': _line(
        BOUNDED, _dense, weights=True, clipping='automatic'),
    'dense bfloat16': _line(BOUNDED, _dense, policy='mixed_bfloat16'),
    'dense float16': _line(BOUNDED, _dense, policy='mixed_float16'),
    'dense float64': _line(BOUNDED, _dense, policy='float64'),
    'dense float16 vectorized': _line(
        BOUNDED, _dense, policy='mixed_float16', engine='vectorized'),
    'dense without bias': _line(BOUNDED, lambda: _dense(use_bias=False)),
    'dense over time': _line(BOUNDED, _dense, shape=_TIME),
    'conv1d': _line(BOUNDED, lambda: layers.Conv1D(3, 2), shape=_TIME),
    'conv1d causal': _line(BOUNDED, lambda: layers.Conv1D(
        3, 2, padding='causal', dilation_rate=2), shape=_TIME),
    'conv2d': _line(BOUNDED, lambda: layers.Conv2D(3, 2), shape=_IMAGE),
    'conv2d strides': _line(BOUNDED, lambda: layers.Conv2D(
        3, 3, strides=2, padding='same', activation='relu'), shape=_IMAGE),
    'conv2d dilated': _line(BOUNDED, lambda: layers.Conv2D(
        2, 2, dilation_rate=2), shape=_IMAGE),
    'conv2d groups': _line(
        BOUNDED, lambda: layers.Conv2D(4, 2, groups=2), shape=_IMAGE, slow=True),
    'depthwise': _line(BOUNDED, lambda: layers.DepthwiseConv2D(2), shape=_IMAGE),
    'separable': _line(BOUNDED, lambda: layers.SeparableConv2D(2, 2),
                       shape=_IMAGE),
    'transposed conv': _line(BOUNDED, lambda: layers.Conv2DTranspose(2, 2),
                             shape=_IMAGE, slow=True),
    'layer norm': _line(BOUNDED, layers.LayerNormalization),
    'layer norm over time': _line(
        BOUNDED, lambda: layers.LayerNormalization(axis=(1, 2)), shape=_TIME),
    'layer norm axis -2': _line(
        BOUNDED, lambda: layers.LayerNormalization(axis=-2), shape=_TIME),
    'group norm': _line(BOUNDED, lambda: layers.GroupNormalization(2),
                        shape=_IMAGE),
    'group norm 2d': _line(BOUNDED, lambda: layers.GroupNormalization(2)),
    'unit norm': _line(BOUNDED, layers.UnitNormalization),
    'frozen batch norm': _line(
        BOUNDED, lambda: layers.BatchNormalization(trainable=False)),
    'frozen dense': _line(BOUNDED, lambda: _dense(trainable=False), _dense),
    'embedding': _line(BOUNDED, lambda: layers.Embedding(5, 3), ids=True),
    'embedding mask': _line(
        BOUNDED, lambda: layers.Embedding(5, 3, mask_zero=True),
        layers.GlobalAveragePooling1D, ids=True),
    'embedding mask rnn': _line(
        BOUNDED, lambda: layers.Embedding(5, 3, mask_zero=True),
        lambda: layers.SimpleRNN(2, unroll=True), ids=True),
    'embedding mask attention': _line(
        BOUNDED, lambda: layers.Embedding(5, 3, mask_zero=True), Attention,
        ids=True, slow=True),
    'embedding per layer': _line(
        BOUNDED, lambda: layers.Embedding(5, 3), ids=True, clipping='per_layer'),
    'masking': _line(BOUNDED, layers.Masking, layers.GlobalAveragePooling1D,
                     shape=_TIME),
    'rnn': _line(BOUNDED, lambda: layers.SimpleRNN(2, unroll=True), shape=_TIME),
    'lstm': _line(BOUNDED, lambda: layers.LSTM(2, unroll=True), shape=_TIME,
                  slow=True),
    'gru': _line(BOUNDED, lambda: layers.GRU(2, unroll=True), shape=_TIME,
                 slow=True),
    'time distributed': _line(BOUNDED, lambda: layers.TimeDistributed(_dense()),
                              shape=_TIME),
    'attention within': _line(BOUNDED, Attention, shape=_TIME),
    'einsum': _line(BOUNDED, lambda: layers.EinsumDense(
        'abc,cd->abd', output_shape=(5, 3)), shape=_TIME),
    'prelu': _line(BOUNDED, layers.PReLU),
    # Layers without variables.
    'max pool': _line(BOUNDED, layers.MaxPooling2D, shape=_IMAGE),
    'average pool': _line(BOUNDED, lambda: layers.AveragePooling2D(2), shape=_IMAGE),
    'global max pool': _line(BOUNDED, layers.GlobalMaxPooling2D, shape=_IMAGE),
    'global average pool': _line(BOUNDED, layers.GlobalAveragePooling1D,
                                 shape=_TIME),
    'upsampling': _line(BOUNDED, lambda: layers.UpSampling2D(
        2, interpolation='bilinear'), shape=_IMAGE),
    'padding': _line(BOUNDED, layers.ZeroPadding2D, shape=_IMAGE),
    'cropping': _line(BOUNDED, layers.Cropping2D, shape=_IMAGE),
    'permute': _line(BOUNDED, lambda: layers.Permute((2, 1)), shape=_TIME),
    'reshape': _line(BOUNDED, lambda: layers.Reshape((4, 5)), shape=_TIME),
    'repeat': _line(BOUNDED, lambda: layers.RepeatVector(2)),
    'rescaling': _line(BOUNDED, lambda: layers.Rescaling(2.0, 1.0)),
    'leaky relu': _line(BOUNDED, layers.LeakyReLU),
    'softmax': _line(BOUNDED, layers.Softmax),
    'softmax over time': _line(BOUNDED, lambda: layers.Softmax(axis=1),
                               shape=_TIME),
    'softmax over time, negative': _line(
        BOUNDED, lambda: layers.Softmax(axis=-2), shape=_TIME),
    # Axes of the batch.
    'softmax axis 0': _line(BOUNDED, lambda: layers.Softmax(axis=0)),
    'softmax axis -2': _line(BOUNDED, lambda: layers.Softmax(axis=-2)),
    'softmax axes': _line(BOUNDED, lambda: layers.Softmax(axis=(-2, -1))),
    'softmax axis -3': _line(BOUNDED, lambda: layers.Softmax(axis=-3),
                             shape=_TIME),
    'unit norm axis 0': _line(BOUNDED, lambda: layers.UnitNormalization(axis=0)),
    'unit norm axis -2': _line(
        BOUNDED, lambda: layers.UnitNormalization(axis=-2)),
    # Activations.
    **{f'activation {name}': _line(
        BOUNDED, lambda name=name: _dense(activation=name),
        slow=name not in ('swish', 'gelu', 'softmax'))
       for name in ('swish', 'gelu', 'softmax', 'selu', 'elu', 'softplus',
                    'softsign', 'hard_sigmoid', 'exponential', 'sigmoid')},
    **{f'activation layer {name}': _line(
        BOUNDED, lambda name=name: layers.Activation(ACROSS[name]))
       for name in ('minus mean', 'softmax', 'reverse', 'roll', 'backward alone')},
    **{f'dense activation layer {name}': _line(
        BOUNDED, lambda name=name: _dense(
            activation=layers.Activation(ACROSS[name])))
       for name in ('minus mean', 'softmax', 'reverse', 'first row', 'by place')},
    'dense activation of activations': _line(
        BOUNDED, lambda: _dense(activation=layers.Activation(
            layers.Activation(ACROSS['minus mean'])))),
    'dense activation softmax layer': _line(
        BOUNDED, lambda: _dense(activation=layers.Softmax(axis=-2))),
    'dense activation function': _line(
        BOUNDED, lambda: _dense(activation=ACROSS['minus mean'])),
    'conv activation layer': _line(
        BOUNDED, lambda: layers.Conv1D(3, 2, activation=layers.Activation(
            ACROSS['minus mean'])), shape=_TIME),
    'dense activation relu layer': _line(
        BOUNDED, lambda: _dense(activation=layers.ReLU())),
    # Layers that mix the batch: the engine runs them on batches of one.
    **{f'layer {name}': _line(
        BOUNDED, lambda name=name: Function(ACROSS[name]),
        slow=name in ('softmax', 'cumsum', 'sorted', 'standardized', 'transposed'))
       for name in ACROSS},
    **{f'weighted layer {name}': _line(
        BOUNDED, lambda name=name: Scaled(ACROSS[name]))
       for name in ('minus mean', 'reverse', 'over the size', 'by place')},
    **{f'lambda {name}': _line(
        BOUNDED, lambda name=name: layers.Lambda(ACROSS[name]),
        slow=name not in ('minus mean', 'branch'))
       for name in ('minus mean', 'softmax', 'roll', 'over the size', 'branch')},
    'centering': _line(BOUNDED, Centering),
    'centering vectorized': _line(BOUNDED, Centering, engine='vectorized'),
    'centering per layer': _line(BOUNDED, Centering, clipping='per_layer'),
    'centering automatic': _line(BOUNDED, Centering, clipping='automatic'),
    'attention between': _line(BOUNDED, Attending),
    # Shapes of models.
    'branches': Construct(BOUNDED, _branches),
    'nested': Construct(BOUNDED, _nested),
    'subclassed': Construct(BOUNDED, _subclassed),
    'tied embedding': Construct(BOUNDED, _tied, ids=True),
    'tied by closure': Construct(BOUNDED, _tied_by_closure, ids=True, slow=True),
    'stacked rows': Construct(BOUNDED, _stacked_rows),
    # Models that are refused, and penalties.
    'batch norm': _line('GroupNormalization', layers.BatchNormalization),
    'stateful rnn': Construct('without state', _stateful, shape=(3, 4)),
    'two outputs': Construct('y for the outputs', _two_outputs),
    'counting layer': _line('write no variables', Counting),
    'regularizer': _line(BOUNDED, lambda: _dense(kernel_regularizer='l2')),
    'activity': _line(BOUNDED, lambda: _dense(activity_regularizer='l2')),
    'python': _line('runs Python', lambda: Function(
        lambda x: tf.ensure_shape(tf.numpy_function(
            lambda v: v - v.mean(0), [x], x.dtype), x.shape))),
    # Losses of Keras.
    **{f'loss {name}': _losses(BOUNDED, kind, loss) for name, kind, loss in (
        ('sparse column', 'column', lambda: losses.SparseCategoricalCrossentropy(
            from_logits=True)),
        ('by name', 'onehot', lambda: 'mse'),
        ('function', 'onehot', lambda: losses.get('mean_absolute_error')),
        ('categorical', 'onehot', lambda: losses.CategoricalCrossentropy(
            from_logits=True)),
        ('smoothed', 'onehot', lambda: losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=0.1)),
        ('binary', 'binary', lambda: losses.BinaryCrossentropy(from_logits=True)),
        ('binary focal', 'binary', lambda: losses.BinaryFocalCrossentropy(
            from_logits=True)),
        ('squares', 'real', losses.MeanSquaredError),
        ('absolute', 'real', losses.MeanAbsoluteError),
        ('percentage', 'positive', losses.MeanAbsolutePercentageError),
        ('logarithmic', 'positive', losses.MeanSquaredLogarithmicError),
        ('huber', 'real', losses.Huber), ('log cosh', 'real', losses.LogCosh),
        ('divergence', 'onehot', losses.KLDivergence),
        ('poisson', 'positive', losses.Poisson),
        ('cosine', 'real', losses.CosineSimilarity),
        ('cosine axis 1', 'real', lambda: losses.CosineSimilarity(axis=1)),
        ('categorical hinge', 'onehot', losses.CategoricalHinge),
        ('hinge', 'signs', losses.Hinge),
        ('hinge function', 'signs', lambda: losses.hinge),
        ('squared hinge', 'signs', losses.SquaredHinge))},
    'loss smoothed weights': _losses(
        BOUNDED, 'onehot', lambda: losses.CategoricalCrossentropy(
            True, label_smoothing=0.2), weights=True),
    # Custom losses that treat each example alone.
    'loss own': _losses(BOUNDED, 'real', _pairs(_squares)),
    'loss over features': _losses(BOUNDED, 'real', _pairs(
        lambda y, p: tf.reduce_mean((y - p - tf.reduce_mean(
            p, -1, keepdims=True))**2, axis=-1))),
    'loss over all but the batch': _losses(BOUNDED, 'real', _pairs(
        lambda y, p: tf.reduce_sum(tf.abs(y - p), range(1, p.shape.rank)))),
    'loss gathered': _losses(BOUNDED, 'labels', _pairs(_gathered)),
    'loss mapped': _losses(
        'can be vectorised|known to leave examples alone', 'real', _pairs(_mapped)),
    'loss over a size': _losses(BOUNDED, 'real', _pairs(
        lambda y, p: _squares(y, p) / _size(p))),
    'loss without a sum': _losses(BOUNDED, 'real', _pairs(
        lambda y, p: tf.abs(y - p))),
    'loss reversed gradient': _losses(BOUNDED, 'real', _pairs(
        lambda y, p: _squares(y, _reversed(p)))),
    'loss clipped': _losses(BOUNDED, 'real', _pairs(
        lambda y, p: tf.minimum(_squares(y, p), 3.0))),
    'loss by place': _losses(BOUNDED, 'real', _pairs(
        lambda y, p: _squares(y, p) * tf.cast(
            tf.range(tf.shape(p)[0]), p.dtype))),
    # Losses that mix the batch.
    'loss circle': _losses(APART, 'labels', lambda: losses.Circle(
        ) if hasattr(losses, 'Circle') else _contrastive),
    'loss cosine axis 0': _losses(
        APART, 'real', lambda: losses.CosineSimilarity(axis=0)),
    'loss cosine axis -2': _losses(
        APART, 'real', lambda: losses.CosineSimilarity(axis=-2)),
    'loss categorical axis 0': _losses(
        APART, 'onehot', lambda: losses.CategoricalCrossentropy(axis=0)),
    # Keras 3 itself refuses this axis.
    'loss categorical axis -2': _losses(
        APART + '|start <= limit', 'onehot', lambda: losses.CategoricalCrossentropy(
            from_logits=True, axis=-2)),
    'loss contrastive': _losses(APART, 'labels', _pairs(_contrastive)),
    'loss balanced': _losses(APART, 'labels', _pairs(_balanced)),
    **{f'loss {name}': _line(APART, loss=_loss(function))
       for name, function in {
           'minus mean': lambda v: v - tf.reduce_mean(v),
           'mean': lambda v: 0.0 * v + tf.reduce_mean(v),
           'kept mean': lambda v: tf.reduce_mean(v, keepdims=True),
           'pairs': lambda v: v[:, None] * v,
           'over max': lambda v: v / tf.reduce_max(v),
           'hardest': _hardest, 'half hardest': _half_hardest,
           'softmax': lambda v: v * tf.nn.softmax(v),
           'reversed': lambda v: v * v[::-1],
           'first': lambda v: v - v[0],
           'rolled': lambda v: v * tf.roll(v, 1, 0),
           'summed up': tf.cumsum}.items()},
    'loss minus mean, vectorized': _line(
        APART, loss=_loss(lambda v: v - tf.reduce_mean(v)), engine='vectorized'),
    'loss pairwise ranks': _losses(APART, 'real', _pairs(
        lambda y, p: tf.reduce_mean(tf.nn.relu(
            1 - (p[:, None, 0] - p[None, :, 0]) * (y[:, None, 0] - y[None, :, 0])),
            -1))),
    'loss over the labels': _losses(APART, 'onehot', _pairs(
        lambda y, p: _squares(y, p) / tf.reduce_sum(y))),
    'loss mixed gradient': _losses(APART, 'real', _pairs(
        lambda y, p: _squares(y, backward_mean(p)))),
    'loss sorted': _line(APART, loss=_loss(tf.sort)),
    'loss of the branch': _line(APART, loss=_loss(
        ACROSS['branch'])),
    'loss with a state': _losses('write', 'real', _state),
    'loss in Python': _losses('runs Python', 'real', _pairs(
        lambda y, p: tf.ensure_shape(tf.numpy_function(
            lambda a, b: ((a - b)**2).mean(-1), [y, p], p.dtype), [p.shape[0]]))),
    'loss of one number': _losses('loss per example', 'real', _pairs(
        lambda y, p: tf.reduce_mean((y - p)**2))),
}

DROP_IN: dict[str, Construct] = {
    'linear': _line(),
    'dense': _line(BOUNDED, lambda: _dense(activation='relu')),
    'swish': _line(BOUNDED, lambda: _dense(activation='swish')),
    'gelu': _line(BOUNDED, lambda: _dense(activation='gelu')),
    'dense over time': _line(BOUNDED, _dense, shape=_TIME),
    'conv1d': _line(BOUNDED, lambda: layers.Conv1D(3, 2), shape=_TIME),
    'conv2d': _line(BOUNDED, lambda: layers.Conv2D(3, 2), layers.MaxPooling2D,
                    shape=_IMAGE),
    'layer norm': _line(BOUNDED, layers.LayerNormalization, shape=_TIME),
    'group norm': _line(BOUNDED, lambda: layers.GroupNormalization(2),
                        shape=_IMAGE),
    'lstm': _line(BOUNDED, lambda: layers.LSTM(2), shape=_TIME, slow=True),
    'embedding': _line(BOUNDED, lambda: layers.Embedding(5, 3), ids=True),
    'softmax': _line(BOUNDED, lambda: layers.Softmax(axis=-1)),
    'unit norm': _line(BOUNDED, layers.UnitNormalization),
    'squares': _losses(BOUNDED, 'real',
                       lambda: losses.MeanSquaredError(reduction='none')),
    'categorical': _losses(BOUNDED, 'onehot', lambda: (
        losses.CategoricalCrossentropy(True, reduction='none'))),
    'softmax axis 0': _line(ALONE, lambda: layers.Softmax(axis=0)),
    'softmax axis -2': _line(ALONE, lambda: layers.Softmax(axis=-2)),
    'unit norm axis 0': _line(ALONE, lambda: layers.UnitNormalization(axis=0)),
    'centering': _line(ALONE, Centering),
    'attention between': _line(ALONE, Attending),
    'activation layer': _line(ALONE, lambda: _dense(
        activation=layers.Activation(ACROSS['minus mean']))),
    'batch norm': _line('GroupNormalization', layers.BatchNormalization),
    'subclassed': Construct(ALONE, _subclassed),
    'counting layer': _line('write no variables', Counting),
    **{f'lambda {name}': _line(
        ALONE, lambda name=name: layers.Lambda(ACROSS[name])) for name in ACROSS},
    'hinge': _losses(ALONE, 'signs', lambda: losses.Hinge(reduction='none')),
    'loss minus mean': _line(ALONE, loss=_loss(lambda v: v - tf.reduce_mean(v))),
    'loss hardest': _line(ALONE, loss=_loss(_hardest)),
    'loss over the size': _line(ALONE, loss=_loss(lambda v: v / _size(v))),
    'loss cosine axis 0': _losses(ALONE, 'real', lambda: (
        losses.CosineSimilarity(axis=0, reduction='none'))),
    'loss of the labels': _line(ALONE, loss=lambda: type(
        'Balanced', (losses.Loss,), {'call': lambda self, y, p: _balanced(y, p)})(
            reduction='none', name='balanced')),
}

COVERED_PRIVATE = frozenset((
    'dense vectorized per layer', 'dense vectorized automatic',
    'dense weights automatic', 'dense float16 vectorized', 'conv2d dilated',
    'layer norm axis -2', 'group norm 2d', 'embedding mask rnn',
    'embedding per layer', 'global max pool', 'average pool', 'padding', 'cropping',
    'permute', 'repeat', 'rescaling', 'softmax over time, negative',
    'softmax axes', 'softmax axis -3', 'unit norm axis -2', 'activation gelu',
    'activation layer softmax', 'activation layer roll',
    'dense activation layer softmax', 'dense activation layer reverse',
    'dense activation layer first row', 'layer minus mean, negative axis',
    'layer roll', 'layer gather', 'layer top', 'weighted layer reverse',
    'weighted layer by place', 'centering per layer', 'centering automatic',
    'loss squares', 'loss absolute', 'loss percentage', 'loss logarithmic',
    'loss log cosh', 'loss divergence', 'loss poisson', 'loss binary focal',
    'loss smoothed weights', 'loss hinge function', 'loss squared hinge',
    'loss cosine axis -2', 'loss over max', 'loss softmax', 'loss reversed',
    'loss first', 'loss rolled', 'loss kept mean'))
COVERED_DROP_IN = frozenset((
    'swish', 'gelu', 'dense over time', 'conv1d', 'softmax', 'squares',
    'softmax axis -2', 'lambda minus mean, negative axis', 'lambda standardized',
    'lambda softmax', 'lambda reverse', 'lambda roll', 'lambda first row',
    'lambda gather', 'lambda cumsum', 'lambda top'))
"""Constructs with the mechanism of another: only `make test-slow` runs them."""

REPRESENTATIVE_PRIVATE = frozenset((
    'layers of images', 'layers that mix examples', 'dense weights',
    'layer backward alone', 'centering vectorized', 'tied embedding', 'batch norm',
    'stateful rnn', 'two outputs', 'loss over a size', 'loss minus mean',
    'loss mixed gradient', 'loss with a state'))
REPRESENTATIVE_DROP_IN = frozenset((
    'embedding', 'softmax axis 0', 'batch norm', 'counting layer',
    'lambda backward alone', 'loss minus mean'))
"""Constructs that `make test` runs."""
