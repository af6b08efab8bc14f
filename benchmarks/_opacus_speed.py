"""Trains the tutorial CNN and a transformer with Opacus, for benchmarks of speed.

PyTorch is imported in functions, as it may not be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MODES = ('hooks', 'functorch', 'ew', 'ghost')


def contender(x, y, batch, mode):
  """Returns a function that trains the tutorial CNN for a given number of steps.

  Images `x` have shape (examples, 28, 28, 1), and `batch` is the expected batch size.
  `mode` is Opacus' way to per-example gradients, one of `MODES`.
  """
  import torch
  from torch import nn
  model = nn.Sequential(
      nn.ZeroPad2d(3), nn.Conv2d(1, 16, 8, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
      nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
      nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
  assert sum(p.numel() for p in model.parameters()) == 26_010
  dataset = torch.utils.data.TensorDataset(
      torch.tensor(x).permute(0, 3, 1, 2).contiguous(), torch.tensor(y))

  def train(steps):
    for _ in trained(model, dataset, batch, steps, mode):
      pass

  return train


def trained(model: Any, dataset: Any, batch: int, steps: int, mode: str | None
            ) -> Iterator[None]:
  """Trains a PyTorch model by SGD; yields after each step.

  `mode` is one of `MODES`, on Poisson samples of expected size `batch`; with None,
  training is not private, on batches of this size.
  """
  import warnings

  import opacus
  import torch
  warnings.simplefilter('ignore')  # Opacus warns of secure mode and unused hooks.
  optimizer: Any = torch.optim.SGD(model.parameters(), 0.01)
  loader: Any = torch.utils.data.DataLoader(dataset, batch_size=batch)
  loss: Any = torch.nn.CrossEntropyLoss()
  if mode:
    made = opacus.PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.3,
        max_grad_norm=1.5, grad_sample_mode=mode,
        **({'criterion': loss} if mode == 'ghost' else {}))
    if mode == 'ghost':
      model, optimizer, loss, loader = made
    else:
      model, optimizer, loader = made
  while True:
    for inputs, labels in loader:
      optimizer.zero_grad()
      loss(model(inputs), labels).backward()
      optimizer.step()
      yield
      steps -= 1
      if not steps:
        return


def transformer(length: int, words: int, width: int, layers: int, heads: int,
                classes: int) -> Any:
  """Returns the encoder of `large_model.transformer` in PyTorch.

  Attention is written with linear layers, the only ones beside embeddings for which
  Opacus has ghost norms.
  """
  from torch import nn

  class Attention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self):
      super().__init__()
      self.inputs = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
      self.output = nn.Linear(width, width)

    def forward(self, x):
      shape = (-1, length, heads, width // heads)
      found = nn.functional.scaled_dot_product_attention(
          *(each(x).reshape(shape).transpose(1, 2) for each in self.inputs))
      return self.output(found.transpose(1, 2).reshape(x.shape))

  class Added(nn.Module):
    """Adds its input to what `inner` makes of it, and normalises the sum."""

    def __init__(self, inner):
      super().__init__()
      self.inner = inner
      self.norm = nn.LayerNorm(width)

    def forward(self, x):
      return self.norm(x + self.inner(x))

  class Mean(nn.Module):
    """Averages over the words of a text."""

    def forward(self, x):
      return x.mean(1)

  return nn.Sequential(
      nn.Embedding(words, width),
      *(Added(inner) for _ in range(layers) for inner in (
          Attention(), nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(),
                                     nn.Linear(4 * width, width)))),
      Mean(), nn.Linear(width, classes))
