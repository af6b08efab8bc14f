"""Networks for images and video."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.keras.zoo.base import (
  Bare,
  Case,
  classified,
  entry,
  layers,
  logits_loss,
  Size,
)


def _sequential(s: Size, shape: Any, *parts: Any) -> Case:
  model = tf.keras.Sequential([layers.Input(shape), *parts])
  return Case(model, s.floats(*shape), s.labels(model.output_shape[-1]),
              logits_loss())


@entry('LeNet-5')
def lenet(s: Size) -> Case:
  return _sequential(
      s, (s(12, 28), s(12, 28), 1),
      layers.Conv2D(s(3, 6), 5, padding='same', activation='tanh'),
      layers.AveragePooling2D(2),
      layers.Conv2D(s(4, 16), 5, activation='tanh'), layers.AveragePooling2D(2),
      layers.Flatten(), layers.Dense(s(6, 120), 'tanh'),
      layers.Dense(s(5, 84), 'tanh'), layers.Dense(10))


@entry('CNN of the MNIST tutorial')
def tutorial(s: Size) -> Case:
  return _sequential(
      s, (28, 28, 1),
      layers.Conv2D(16, 8, strides=2, padding='same', activation='relu'),
      layers.MaxPool2D(2, 1),
      layers.Conv2D(32, 4, strides=2, activation='relu'), layers.MaxPool2D(2, 1),
      layers.Flatten(), layers.Dense(32, 'relu'), layers.Dense(10))


@entry('VGG-like, dropout')
def vgg(s: Size) -> Case:
  parts = []
  for width in s((3, 4), (32, 64, 128)):
    parts += [layers.Conv2D(width, 3, padding='same', activation='relu'),
              layers.Conv2D(width, 3, padding='same', activation='relu'),
              layers.MaxPooling2D(), layers.Dropout(s(0.0, 0.2))]
  side = s(8, 32)
  return _sequential(s, (side, side, 3), *parts, layers.Flatten(),
                     layers.Dense(s(5, 128), 'relu'), layers.Dense(10))


def _norm_relu(x: Any, groups: int) -> Any:
  return layers.Activation('relu')(layers.GroupNormalization(groups)(x))


def _residual(x: Any, width: int, stride: int, groups: int) -> Any:
  short = x
  x = layers.Conv2D(width, 3, stride, 'same', use_bias=False)(x)
  x = _norm_relu(x, groups)
  x = layers.Conv2D(width, 3, padding='same', use_bias=False)(x)
  x = layers.GroupNormalization(groups)(x)
  if stride > 1 or short.shape[-1] != width:
    short = layers.Conv2D(width, 1, stride, use_bias=False)(short)
  return layers.Activation('relu')(layers.Add()([x, short]))


@entry('ResNet-20, GroupNormalization')
def resnet20(s: Size) -> Case:
  side, widths, blocks = s(8, 32), s((4, 8), (16, 32, 64)), s(1, 3)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(widths[0], 3, padding='same', use_bias=False)(inputs)
  x = _norm_relu(x, s(2, 8))
  for i, width in enumerate(widths):
    for j in range(blocks):
      x = _residual(x, width, 2 if i and not j else 1, s(2, 8))
  x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
  return classified(s, inputs, x, s.floats(side, side, 3), 10)


class Standardized(layers.Conv2D):
  """A convolution with a standardised kernel, as it is usually written."""

  def call(self, inputs):
    mean = tf.reduce_mean(self.kernel, [0, 1, 2], keepdims=True)
    deviation = tf.math.reduce_std(self.kernel, [0, 1, 2], keepdims=True)
    kernel = (tf.convert_to_tensor(self.kernel) - mean) / (deviation + 1e-5)
    outputs = tf.nn.conv2d(inputs, tf.cast(kernel, inputs.dtype), self.strides,
                           self.padding.upper())
    return outputs + tf.cast(self.bias, inputs.dtype) if self.use_bias else outputs


def _wide_resnet(s: Size, convolution: Any) -> Case:
  side, widths, blocks = s(8, 32), s((4, 8), (64, 128, 256)), s(1, 2)
  groups = s(2, 16)
  inputs = tf.keras.Input((side, side, 3))
  x = convolution(s(4, 16), 3, padding='same', use_bias=False)(inputs)
  for i, width in enumerate(widths):
    for j in range(blocks):
      stride = 2 if i and not j else 1
      before = _norm_relu(x, min(groups, x.shape[-1]))
      short = x if x.shape[-1] == width else convolution(
          width, 1, strides=stride, padding='same', use_bias=False)(before)
      x = convolution(width, 3, strides=stride, padding='same',
                      use_bias=False)(before)
      x = convolution(width, 3, padding='same', use_bias=False)(
          _norm_relu(x, groups))
      x = layers.Add()([x, short])
  x = layers.GlobalAveragePooling2D()(_norm_relu(x, groups))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


@entry('WRN-16-4')
def wide_resnet(s: Size) -> Case:
  return _wide_resnet(s, layers.Conv2D)


@entry('WRN-16-4, weight standardised')
def wide_resnet_standardized(s: Size) -> Case:
  return _wide_resnet(s, Standardized)


@entry('MobileNet-like (depthwise)')
def mobilenet(s: Size) -> Case:
  parts = [layers.Conv2D(s(4, 32), 3, 2, 'same', use_bias=False),
           layers.GroupNormalization(s(2, 8)), layers.ReLU(6.0)]
  for width, stride in s([(4, 1), (6, 2)], [(64, 1), (128, 2), (128, 1), (256, 2)]):
    parts += [layers.DepthwiseConv2D(3, stride, 'same', use_bias=False),
              layers.GroupNormalization(2), layers.ReLU(6.0),
              layers.Conv2D(width, 1, use_bias=False),
              layers.GroupNormalization(2), layers.ReLU(6.0)]
  side = s(10, 32)
  return _sequential(s, (side, side, 3), *parts, layers.GlobalAveragePooling2D(),
                     layers.Dropout(s(0.0, 0.1)), layers.Dense(10))


@entry('Xception-like (SeparableConv2D)')
def xception(s: Size) -> Case:
  side = s(7, 32)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(s(3, 32), 3, padding='same', activation='relu')(inputs)
  for width in s((4,), (64, 128)):
    short = layers.Conv2D(width, 1, 2, 'same')(x)
    x = layers.SeparableConv2D(width, 3, padding='same')(layers.ReLU()(x))
    x = layers.LayerNormalization()(x)
    x = layers.SeparableConv2D(width, 3, padding='same')(layers.ReLU()(x))
    x = layers.Add()([layers.MaxPooling2D(3, 2, 'same')(x), short])
  x = layers.GlobalAveragePooling2D()(x)
  return classified(s, inputs, layers.Dense(5)(x), s.floats(side, side, 3), 5)


def _squeeze_excite(x: Any, ratio: int) -> Any:
  width = x.shape[-1]
  gate = layers.GlobalAveragePooling2D()(x)
  gate = layers.Reshape((1, 1, width))(gate)
  gate = layers.Conv2D(max(1, width // ratio), 1, activation='swish')(gate)
  gate = layers.Conv2D(width, 1, activation='sigmoid')(gate)
  return layers.Multiply()([x, gate])


@entry('EfficientNet-like (squeeze and excite)')
def efficientnet(s: Size) -> Case:
  side = s(8, 32)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(s(4, 16), 3, 2, 'same', activation='swish')(inputs)
  for width, stride in s([(4, 1), (6, 2)], [(16, 1), (24, 2), (24, 1), (40, 2)]):
    short, wide = x, s(2, 4) * x.shape[-1]
    x = layers.GroupNormalization(2)(layers.Conv2D(wide, 1)(x))
    x = layers.Activation('swish')(x)
    x = layers.DepthwiseConv2D(3, stride, 'same', activation='swish')(x)
    x = _squeeze_excite(x, 4)
    x = layers.GroupNormalization(2)(layers.Conv2D(width, 1)(x))
    if stride == 1 and short.shape[-1] == width:
      x = layers.Add()([x, layers.Dropout(s(0.0, 0.1))(short)])
  x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
  return classified(s, inputs, x, s.floats(side, side, 3), 10)


@entry('U-Net (Conv2DTranspose), a loss per pixel')
def unet(s: Size) -> Case:
  side, widths = s(8, 32), s((2, 3), (16, 32, 64))
  inputs = x = tf.keras.Input((side, side, 3))
  kept = []
  for width in widths:
    x = layers.Conv2D(width, 3, padding='same', activation='relu')(x)
    x = layers.Conv2D(width, 3, padding='same', activation='relu')(x)
    kept.append(x)
    x = layers.MaxPooling2D()(x)
  x = layers.Conv2D(2 * widths[-1], 3, padding='same', activation='relu')(x)
  for width, skip in zip(widths[::-1], kept[::-1]):
    x = layers.Conv2DTranspose(width, 3, strides=2, padding='same')(x)
    x = layers.Concatenate()([x, skip])
    x = layers.Conv2D(width, 3, padding='same', activation='relu')(x)
  model = tf.keras.Model(inputs, layers.Conv2D(3, 1)(x))
  return Case(model, s.floats(side, side, 3), s.labels(3, side, side), logits_loss())


@entry('DenseNet-like')
def densenet(s: Size) -> Case:
  side, growth = s(8, 32), s(2, 12)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(2 * growth, 3, padding='same')(inputs)
  for block in range(2):
    for _ in range(s(2, 4)):
      more = layers.Conv2D(4 * growth, 1)(_norm_relu(x, 2))
      more = layers.Conv2D(growth, 3, padding='same')(_norm_relu(more, 2))
      x = layers.Concatenate()([x, more])
    if not block:
      x = layers.AveragePooling2D(2)(layers.Conv2D(x.shape[-1] // 2, 1)(x))
  x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
  return classified(s, inputs, x, s.floats(side, side, 3), 10)


@entry('Inception-like')
def inception(s: Size) -> Case:
  side, width = s(6, 32), s(2, 16)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(width, 3, padding='same', activation='relu')(inputs)
  for _ in range(2):
    x = layers.Concatenate()([
        layers.Conv2D(width, 1, activation='relu')(x),
        layers.Conv2D(width, 3, padding='same', activation='relu')(
            layers.Conv2D(width, 1)(x)),
        layers.Conv2D(width, 5, padding='same', activation='relu')(
            layers.Conv2D(width, 1)(x)),
        layers.Conv2D(width, 1)(layers.MaxPooling2D(3, 1, 'same')(x))])
    x = layers.MaxPooling2D()(x)
  x = layers.Dense(10)(layers.Dropout(s(0.0, 0.4))(
      layers.GlobalAveragePooling2D()(x)))
  return classified(s, inputs, x, s.floats(side, side, 3), 10)


class LayerScale(layers.Layer):
  """Multiplies channels by weights that begin small."""

  def build(self, shape):
    self.gamma = self.add_weight(
        name='gamma', shape=(shape[-1],),
        initializer=tf.keras.initializers.Constant(1e-6))

  def call(self, inputs):
    return inputs * self.gamma


@entry('ConvNeXt-like (LayerScale)')
def convnext(s: Size) -> Case:
  side, width = s(8, 32), s(4, 48)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.LayerNormalization()(layers.Conv2D(width, 4, 4)(inputs))
  for _ in range(s(1, 3)):
    more = layers.DepthwiseConv2D(s(3, 7), padding='same')(x)
    more = layers.LayerNormalization(epsilon=1e-6)(more)
    more = layers.Dense(4 * width, 'gelu')(more)
    x = layers.Add()([x, LayerScale()(layers.Dense(width)(more))])
  x = layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x))
  return classified(s, inputs, layers.Dense(10)(x), s.floats(side, side, 3), 10)


@entry('SqueezeNet-like (fire modules)')
def squeezenet(s: Size) -> Case:
  side, width = s(8, 32), s(2, 16)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(2 * width, 3, 2, activation='relu')(inputs)
  for _ in range(2):
    few = layers.Conv2D(width, 1, activation='relu')(x)
    x = layers.Concatenate()([
        layers.Conv2D(2 * width, 1, activation='relu')(few),
        layers.Conv2D(2 * width, 3, padding='same', activation='relu')(few)])
  x = layers.GlobalAveragePooling2D()(layers.Conv2D(10, 1)(x))
  return classified(s, inputs, x, s.floats(side, side, 3), 10)


@entry('ResNeXt-like (grouped convolutions)')
def resnext(s: Size) -> Case:
  side, width = s(6, 32), s(4, 64)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(width, 3, padding='same')(inputs)
  more = layers.Conv2D(width, 1, activation='relu')(x)
  more = layers.Conv2D(width, 3, padding='same', groups=s(2, 8),
                       activation='relu')(more)
  x = layers.Add()([x, layers.Conv2D(width, 1)(more)])
  x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
  return classified(s, inputs, x, s.floats(side, side, 3), 10)


@entry('Conv3D for video')
def conv3d(s: Size) -> Case:
  return _sequential(
      s, (s(4, 8), s(5, 16), s(5, 16), 2),
      layers.Conv3D(s(2, 8), 3, padding='same', activation='relu'),
      layers.MaxPooling3D(2), layers.Conv3D(s(3, 16), s(2, 3), activation='relu'),
      layers.GlobalAveragePooling3D(), layers.Dense(5))


@entry('Fully convolutional, bilinear upsampling')
def fully_convolutional(s: Size) -> Case:
  side = s(6, 32)
  model = tf.keras.Sequential([
      layers.Input((side, side, 3)),
      layers.Conv2D(s(3, 32), 3, 2, 'same', activation='relu'),
      layers.Conv2D(s(3, 32), 3, padding='same', dilation_rate=2,
                    activation='relu'),
      layers.UpSampling2D(2, interpolation='bilinear'), layers.Conv2D(3, 1)])
  return Case(model, s.floats(side, side, 3), s.labels(3, side, side), logits_loss())


@entry('Augmentation layers in the model')
def augmented(s: Size) -> Case:
  side = s(6, 32)
  case = _sequential(
      s, (side, side, 3), layers.RandomFlip('horizontal'),
      layers.RandomTranslation(s(0.0, 0.1), s(0.0, 0.1)),
      layers.Rescaling(0.5), layers.Conv2D(s(3, 32), 3, 2, activation='relu'),
      layers.Conv2D(s(3, 64), s(2, 3), 2, activation='relu'),
      layers.Flatten(), layers.Dense(10))
  # Symmetric, so that a flip does nothing, and a loop can be compared with.
  return case._replace(x=case.x + case.x[:, :, ::-1])


@entry('Spatial transformer of fixed grids, cropping and padding')
def cropped(s: Size) -> Case:
  side = s(8, 32)
  return _sequential(
      s, (side, side, 3), layers.Cropping2D(1), layers.ZeroPadding2D(2),
      layers.Conv2D(s(3, 16), 3, activation='relu'), layers.Resizing(5, 5),
      layers.SpatialDropout2D(s(0.0, 0.1)), layers.Permute((3, 1, 2)),
      layers.Flatten(), layers.Dense(10))


@entry('ResNet by bare operations')
def bare_residual(s: Size) -> Case:
  side = s(6, 32)
  inputs = tf.keras.Input((side, side, 3))
  x = layers.Conv2D(s(4, 32), 3, padding='same')(inputs)
  for _ in range(2):
    x = x + layers.Conv2D(s(4, 32), 3, padding='same')(Bare.relu(x))
  mean = Bare.mean(x, axis=[1, 2])
  return classified(s, inputs, layers.Dense(10)(mean), s.floats(side, side, 3), 10)
