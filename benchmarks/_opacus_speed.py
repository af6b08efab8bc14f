"""Opacus on the tutorial CNN, for training_speed; PyTorch is imported here."""

from __future__ import annotations


def contender(x, y, batch):
  """Returns a function: steps -> trains so many by Opacus' hooks.

  Args:
    x: Images, shape (examples, 28, 28, 1).
    y: Labels.
    batch: Expected batch size.
  """
  import opacus
  import torch
  from torch import nn
  model = nn.Sequential(
      nn.ZeroPad2d(3), nn.Conv2d(1, 16, 8, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
      nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
      nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))
  dataset = torch.utils.data.TensorDataset(
      torch.tensor(x).permute(0, 3, 1, 2).contiguous(), torch.tensor(y))
  loader = torch.utils.data.DataLoader(dataset, batch_size=batch)
  model, optimizer, loader = opacus.PrivacyEngine().make_private(
      module=model, optimizer=torch.optim.SGD(model.parameters(), 0.01),
      data_loader=loader, noise_multiplier=1.3, max_grad_norm=1.5)
  loss = nn.CrossEntropyLoss()

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
