"""Builds small tables for tests from formulas, without solvers."""

import math

import numpy as np

from tfcactus import noise


def gaussian_scalar(sigma=1.0, bins=20, cells=160, tail_ratio=None):
  z = np.arange(cells + 1) / bins
  tail = (math.log(tail_ratio) if tail_ratio else
          -cells / bins**2 / sigma**2)
  return noise.ScalarTable.normalized(bins, -z * z / (2 * sigma**2), tail)


def wavy_scalar(bins=20, cells=160):
  """Returns a table that is not monotone: its worst shift is not the full one."""
  z = np.arange(cells + 1) / bins
  return noise.ScalarTable.normalized(
      bins, -z * z / 2 + np.log1p(0.8 * np.cos(2 * np.pi * z)), math.log(0.7))


def truncated_scalar(sigma=1.0, bins=10, cells=30):
  z = np.arange(cells + 1) / bins
  return noise.ScalarTable.normalized(
      bins, -z * z / (2 * sigma**2), float('-inf'))


def bounded_scalar(sigma=1.0, bins=10, cells=30):
  """Returns a truncated table on cells that tile [-range, range]."""
  z = (np.arange(cells) + 0.5) / bins
  return noise.ScalarTable.normalized(
      bins, -z * z / (2 * sigma**2), float('-inf'), edge_at_zero=True)


def gaussian_radial(dim=3, sigma=0.5, bins=40, shells=200):
  rho = (np.arange(shells) + 0.5) / bins
  return noise.RadialTable.normalized(
      dim, 1 / bins, 1 / bins, -rho * rho / (2 * sigma**2),
      -shells / bins**2 / sigma**2)
