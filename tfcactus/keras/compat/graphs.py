"""Traced graphs, as TensorFlow writes them down."""

from __future__ import annotations

from typing import Iterator

import tensorflow as tf


def nodes(graph: tf.Graph) -> Iterator[tf.compat.v1.NodeDef]:
  """All operations of a graph, those of the functions that it calls included."""
  definition = graph.as_graph_def()
  yield from definition.node
  for function in definition.library.function:
    yield from function.node_def
