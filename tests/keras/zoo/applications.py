"""Networks of Keras Applications, of random weights, as they are fine-tuned."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tests.keras.zoo.base import Case, classified, entry, layers, Size
from tfcactus.keras.compat.versions import KERAS_3
from tfcactus.keras.fine_tuning import group_normalized


def _family(name: str) -> Any:
  """Returns the module of a network, whose general function makes small ones."""
  return sys.modules[getattr(tf.keras.applications, name).__module__]


def _named(name: str) -> dict[str, str]:
  """Returns the argument for the name of a model, which Keras 2 calls otherwise."""
  return {'name' if KERAS_3 else 'model_name': name}


def _headed(s: Size, net: Any, classes: int, **kwargs: Any) -> Case:
  """Returns the case of a network that ends in features, with a head."""
  x = net.output
  if kwargs:
    inputs = tf.keras.Input(net.input_shape[1:])
    x = net(inputs, **kwargs)
  else:
    inputs = net.input
  return classified(s, inputs, layers.Dense(classes)(x),
                    s.floats(*net.input_shape[1:]), classes)


def _convnext(s: Size) -> Any:
  side = s(32, 64)
  return _family('ConvNeXtTiny').ConvNeXt(
      depths=s([1, 1, 1, 1], [2, 2, 3, 2]),
      projection_dims=s([2, 3, 4, 5], [32, 64, 128, 256]),
      include_top=False, weights=None,
      include_preprocessing=False, input_shape=(side, side, 3), pooling='avg',
      **_named('convnext'))


@entry('ConvNeXt (Keras Applications)')
def convnext(s: Size) -> Case:
  return _headed(s, _convnext(s), 5)


@entry('ConvNeXt, frozen, and a head (Keras Applications)')
def convnext_head(s: Size) -> Case:
  net = _convnext(s)
  net.trainable = False
  return _headed(s, net, 5, training=False)


def _efficientnet(s: Size) -> Any:
  side = s(32, 64)
  return _family('EfficientNetV2B0').EfficientNetV2(
      s(0.1, 0.5), s(0.1, 0.5), side, drop_connect_rate=s(0.0, 0.2), min_depth=s(2, 8),
      depth_divisor=s(2, 8), include_top=False, weights=None, pooling='avg',
      input_shape=(side, side, 3), **_named('efficientnetv2-b0'))


@entry('EfficientNetV2, BatchNormalization frozen (Keras Applications)')
def efficientnet_frozen(s: Size) -> Case:
  net = _efficientnet(s)
  for layer in net.layers:
    if isinstance(layer, layers.BatchNormalization):
      layer.trainable = False
  return _headed(s, net, 5)


@entry('EfficientNetV2, GroupNormalization (Keras Applications)')
def efficientnet(s: Size) -> Case:
  return _headed(s, group_normalized(_efficientnet(s), s(1, 8)), 5)


@entry('MobileNetV3, GroupNormalization (Keras Applications)')
def mobilenet(s: Size) -> Case:
  side = s(32, 64)
  net = tf.keras.applications.MobileNetV3Small(
      (side, side, 3), alpha=s(0.25, 1.0), include_top=False, weights=None,
      pooling='avg', include_preprocessing=False)
  return _headed(s, group_normalized(net, s(2, 8)), 5)


@entry('ResNet50V2, GroupNormalization (Keras Applications)')
def resnet(s: Size) -> Case:
  family = _family('ResNet50V2').resnet
  stack = family.stack_residual_blocks_v2 if KERAS_3 else family.stack2
  stages = s([(2, 2), (3, 2)], [(64, 3), (128, 4), (256, 6), (512, 3)])

  def stacks(x: Any) -> Any:
    for i, (width, blocks) in enumerate(stages):
      x = stack(x, width, blocks, name=f'stack_{i}',
                **({'stride1': 1} if i + 1 == len(stages) else {}))
    return x

  net = family.ResNet(stacks, True, True, include_top=False, weights=None,
                      input_shape=(32, 32, 3), pooling='avg', **_named('resnet50v2'))
  return _headed(s, group_normalized(net, s(2, 8)), 5)
