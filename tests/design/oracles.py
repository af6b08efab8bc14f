"""Computes divergences by brute force, without code of the solvers."""

from __future__ import annotations

import numpy as np
from scipy import special


def scalar_divergence(table, shift, objective='kl'):
  """Returns the divergence at a shift by whole cells, with the tail enumerated."""
  reach = table.half_density.size + 4 * table.bins
  z = np.arange(-reach, reach + 1) / table.bins
  log_p = table.log_density_at(z)
  log_q = table.log_density_at(z - shift / table.bins)
  p = np.exp(log_p) / table.bins
  if objective == 'kl':
    return float(np.sum(p * (log_p - log_q)))
  return float(np.sum(p * np.expm1(log_p - log_q)))


def scalar_cost(table, power):
  """Returns E|Z|^power, by Gauss-Legendre quadrature inside every cell."""
  x, w = np.polynomial.legendre.leggauss(24)
  half = table.half_density
  index = np.arange(half.size)
  low = np.maximum(index - 0.5, 0.0) / table.bins
  high = (index + 0.5) / table.bins
  z = low[:, None] + (high - low)[:, None] * (x + 1) / 2
  inside = np.sum(z**power * w / 2, axis=1) * (high - low)
  return float(2 * np.sum(np.exp(half) * inside))


def radial_divergence(table, objective='kl', nodes=12):
  """Returns the divergence at a unit shift, from the law of |x - e| given |x|."""
  dim, radii = table.dim, table.radii
  x, w = np.polynomial.legendre.leggauss(nodes)
  log_f, mass = table.shell_log_density, table.shell_mass
  total = 0.0
  for i in np.flatnonzero(mass > 1e-20):
    low = radii[i - 1] if i else 0.0
    rho = low + (radii[i] - low) * (x + 1) / 2
    weight = w * (rho / radii[i])**(dim - 1)
    weight /= weight.sum()
    chance = np.zeros(radii.size)
    for r, share in zip(rho, weight):
      chance += share * np.diff(moved_cdf(dim, r, radii), prepend=0.0)
    loss = log_f[i] - log_f
    chance = np.maximum(chance, 0.0)
    gain = loss if objective == 'kl' else np.expm1(np.where(
        chance > 0, loss, 0.0))
    total += mass[i] * np.sum(chance * gain)
  return float(total)


def moved_cdf(dim, rho, t):
  """Returns P(|x - e| <= t) for x uniform on the sphere of radius rho."""
  if dim == 1:
    return 0.5 * (abs(rho - 1) <= t) + 0.5 * (rho + 1 <= t)
  z = np.clip((1 - (rho * rho + 1 - t * t) / (2 * rho)) / 2, 0, 1)
  return special.betainc((dim - 1) / 2, (dim - 1) / 2, z)
