"""Trains the tutorial CNN with Opacus, for `training_speed`.

PyTorch is imported in `contender`, as it may not be installed.
"""

from __future__ import annotations

MODES = ('hooks', 'functorch', 'ew', 'ghost')


def contender(x, y, batch, mode):
  """Returns a function that trains for a given number of steps.

  Images `x` have shape (examples, 28, 28, 1), and `batch` is the expected batch size.
  `mode` is Opacus' way to per-example gradients, one of `MODES`.
  """
  import warnings

  import opacus
  import torch
  from torch import nn
  warnings.simplefilter('ignore')  # Opacus warns of secure mode and unused hooks.
  model = nn.Sequential(
      nn.ZeroPad2d(3), nn.Conv2d(1, 16, 8, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
      nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
      nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
  assert sum(p.numel() for p in model.parameters()) == 26_010
  dataset = torch.utils.data.TensorDataset(
      torch.tensor(x).permute(0, 3, 1, 2).contiguous(), torch.tensor(y))
  loader = torch.utils.data.DataLoader(dataset, batch_size=batch)
  loss = nn.CrossEntropyLoss()
  made = opacus.PrivacyEngine().make_private(
      module=model, optimizer=torch.optim.SGD(model.parameters(), 0.01),
      data_loader=loader, noise_multiplier=1.3, max_grad_norm=1.5,
      grad_sample_mode=mode, **({'criterion': loss} if mode == 'ghost' else {}))
  if mode == 'ghost':
    model, optimizer, loss, loader = made
  else:
    model, optimizer, loader = made

  def train(steps):
    done = 0
    while done < steps:
      for images, labels in loader:
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()
        done += 1
        if done == steps:
          break

  return train
