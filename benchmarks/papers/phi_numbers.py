"""Results of paper 004's figures, conversions and user-supplied laws, as text."""

from __future__ import annotations

from decimal import Decimal
import math

import dp_accounting
import numpy as np
from scipy import integrate, stats

from benchmarks.papers.item import of, within
from tfcactus import _format, accounting, noise as noise_lib
from tfcactus.accounting import renyi, views
from tfcactus.accounting.composition import contour
from tfcactus.accounting.composition.losses import gaussian, laplace as laplace_loss
from tfcactus.papers import conversions, levy

FIGURES = 'phi_figures'
RESPONSE = accounting.DominatingPair.from_masses([0.52, 0.48], [0.48, 0.52])


def gaussian_delta(mu: float, epsilon: float) -> float:
  """Returns the Gaussian's delta by the closed form."""
  one, other = stats.norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
  return float(one - math.exp(epsilon) * other)


def levys_formula() -> str:
  """Compares delta by Levy's formula (Algorithm 1) with the closed form."""
  found = levy.LevyComposition([(levy.PhiFunction.gaussian(0.5), 10)]).delta(1.0)
  return (f'ten Gaussians of 2, delta at epsilon 1: {within(found)}, closed form '
          f'{gaussian_delta(0.5 * math.sqrt(10), 1.0):.8g}')


def own_phi() -> str:
  """Compares delta of a user-supplied phi with the closed form."""
  log_phi = lambda t: 0.5j * t - 0.5 * t * t
  bounded, free = (levy.LevyComposition([(levy.PhiFunction(log_phi, decay), 1)]).delta(
      0.7) for decay in (lambda t: -0.5 * t * t, None))
  return (f'phi of a Gaussian of 1 as a function, delta at epsilon .7: '
          f'{within(bounded)} with a bound on its tail, {within(free)} without; closed '
          f'form {gaussian_delta(1.0, 0.7):.8g}')


def laplace() -> str:
  """Compares the closed form of the Laplace mechanism's phi with quadrature."""
  scale, t = 5.0, 1.0
  value = complex(np.exp(levy.PhiFunction.laplace(scale).log_phi(np.array([t]))[0]))
  ends = 0.5 * np.exp(1j * t / scale) + 0.5 * np.exp(-(1 + 1j * t) / scale)
  middle = [integrate.quad(lambda x, part=part: math.exp(-x / scale) / (
      2 * scale) * part((1 - 2 * x) * t / scale), 0, 1)[0] for part in (
          math.cos, math.sin)]
  exact = complex(ends) + complex(*middle)
  return (f'Laplace of 5, t = 1: {value.real:.6f} + {value.imag:.6f} i; by quadrature '
          f'{exact.real:.6f} + {exact.imag:.6f} i')


def from_loss_cdf() -> str:
  """Compares delta of a pair made from a distribution function of the loss."""
  mu = 0.5
  loss = mu * np.linspace(-12, 12, 2001) + 0.5 * mu**2
  pair = conversions.pair_from_loss_cdf(loss, stats.norm.cdf(loss / mu - 0.5 * mu))
  return (f'Gaussian of 2, from 2,001 points of its distribution function: delta at '
          f'epsilon 1 at most {_format.upper(pair.hockey_stick(1.0))}, closed form '
          f'{gaussian_delta(mu, 1.0):.6g}')


def from_renyi() -> str:
  """Compares delta by Renyi divergences with the closed form."""
  mu, orders = 0.5, 1 + np.geomspace(0.01, 500, 400)
  value = conversions.profile_from_renyi(orders, 0.5 * mu**2 * orders, 1.0)
  return (f'Gaussian of 2: delta at epsilon 1 at most {_format.upper(float(value))}, '
          f'closed form {gaussian_delta(mu, 1.0):.6g}')


def posts_formula() -> str:
  """Returns delta by Post's formula from Renyi divergences of real orders."""
  truth, rest = Decimal('0.7'), Decimal('0.3')

  def log_moment(s: Decimal) -> Decimal:
    loss = (truth / rest).ln()
    return (truth * (-s * loss).exp() + rest * (s * loss).exp()).ln()

  most, epsilon, told = math.log(7 / 3) * (1 + 1e-15), 0.5, []
  for terms in (10, 100):
    found = conversions.profile_by_post(log_moment, most, epsilon, terms)
    told.append(f'{terms} differences: {found.estimate:.5f}, proved {within(found, 3)}')
  exact = 0.7 - 0.3 * math.exp(epsilon)
  return (f'randomised response .7, delta at epsilon .5 from {"; from ".join(told)}; '
          f'exactly {exact:.6g}. Divergences were computed to '
          f'{200 + conversions.SPARE_DIGITS} digits')


def tilted_contour() -> str:
  """Compares delta by the accountant's Laplace inversion with the closed form."""
  found = contour.Contour(((gaussian.GaussianLoss(0.5, 1.0, 'remove'), 10),)).delta(1.0)
  return ('ten Gaussians of 2, delta at epsilon 1, from divergences at complex orders: '
          f'{within(found, 12)}, closed form '
          f'{gaussian_delta(0.5 * math.sqrt(10), 1.0):.12g}')


def imaginary_orders() -> str:
  """Compares phi with Renyi divergences: one function of the order."""
  top = 0.2
  pair = noise_lib.Laplace(1 / top).dominating_pair().upper
  value = laplace_loss.log_moment(np.array([2.0, 1j]), top)
  phi = complex(levy.PhiFunction.laplace(1 / top).log_phi(np.array([1.0]))[0])
  return (f'Laplace of 5: log moment at 2 over 2 {0.5 * value[0].real:.8f}, D_3 of its '
          f'atoms {pair.renyi_divergence(3.0):.8f}; at i {value[1]:.6f}, log phi(1) '
          f'{phi:.6f}')


def phi_to_tradeoff() -> str:
  """Compares a trade-off function by Levy's formula with the closed form."""
  whole = levy.LevyComposition([(levy.PhiFunction.gaussian(0.5), 4)])
  loss = np.linspace(-6, 8, 561)
  pair = conversions.pair_from_loss_cdf(
      loss, np.maximum.accumulate([whole.loss_cdf(x).lower for x in loss]))
  found = views.tradeoff(pair, np.array([0.1, 0.5]))
  exact = stats.norm.cdf(stats.norm.isf([0.1, 0.5]) - 1)
  return ('four Gaussians of 2, false negative rates at .1 and .5: at least ' +
          ' and '.join(_format.lower(value, 5) for value in found) +
          f', closed form {exact[0]:.5f} and {exact[1]:.5f}')


def own_densities() -> str:
  """Compares delta of Cauchy noise by Algorithm 2 with quadrature."""
  # The loss of Cauchy noise has its extrema at the roots of x^2 - x = 1.
  turns = [0.5 - math.sqrt(1.25), 0.5 + math.sqrt(1.25)]
  pair = accounting.continuous_pair(stats.cauchy(0), stats.cauchy(1), turns)
  one, ten = (accounting.PhiAccountant().compose(
      accounting.DominatingPairDpEvent(pair), count).delta_bounds(epsilon)
              for count, epsilon in ((1, 0.5), (10, 3.0)))
  exact = integrate.quad(lambda x: max(
      stats.cauchy.pdf(x) - math.exp(0.5) * stats.cauchy.pdf(x - 1), 0.0), -20, 1,
                         points=turns, limit=200)[0]
  return (f'Cauchy noise of scale 1, delta at epsilon .5: {within(one)}, by quadrature '
          f'{exact:.7g}; ten times, at epsilon 3: {within(ten, 6)}')


def example_14() -> str:
  """Compares delta of noise whose variance depends on the data with chi-square."""
  ratio, count, epsilon = 1.2, 7, 2.0
  pair = accounting.continuous_pair(stats.norm(0, 1), stats.norm(0, ratio), [0.0])
  found = accounting.PhiAccountant().compose(
      accounting.DominatingPairDpEvent(pair), count).delta_bounds(epsilon)
  slope = 0.5 * (1 - ratio**-2)
  above, below = ((count * math.log(ratio) + sign * epsilon) / slope
                  for sign in (1, -1))
  wide = stats.chi2.sf(above / ratio**2, count) - math.exp(epsilon) * stats.chi2.sf(
      above, count)
  narrow = stats.chi2.cdf(below, count) - math.exp(epsilon) * stats.chi2.cdf(
      below / ratio**2, count)
  return (f'standard deviations 1 and 1.2, seven times, delta at epsilon 2: '
          f'{within(found, 7)}, by the chi-square law {max(wide, narrow):.7g}; Renyi '
          f'divergences are infinite from order {0.5 / slope:.3g} on')


def experiment_1() -> str:
  """Returns epsilon of Figure 3a, and its distance to the closed form."""
  rows = of(FIGURES, '3a')
  row = [each for each in rows if each['sigma'] == 30][-1]
  apart = max(abs(each['phi'] - each['exact']) for each in rows)
  return (f'{row["compositions"]:,} Gaussians of 30, delta 1e-10: epsilon '
          f'{_format.upper(row["phi"])}, by Renyi divergences '
          f'{_format.upper(row["Renyi"])}; from the closed form at most '
          f'{_format.upper(apart, 1)} in {len(rows)} points')


def experiment_2() -> str:
  """Returns epsilon at the last point of Figure 3b by all methods."""
  row = of(FIGURES, '3b')[-1]
  count, gaussian = row['compositions'], dp_accounting.GaussianDpEvent(5.0)
  contour = accounting.PhiAccountant().compose(gaussian, count).compose(
      accounting.DominatingPairDpEvent(RESPONSE), count).epsilon_bounds(row['delta'])
  near = levy.LevyComposition([
      (levy.PhiFunction.gaussian(0.2), count),
      (levy.PhiFunction.of_pair(RESPONSE), count)]).epsilon(row['delta'])
  return (f'{count} Gaussians of 5 and as many randomised responses of .52, delta '
          f'1e-6: epsilon {within(contour, 10)}, by Levy\'s formula {within(near)}; '
          f'PLD {_format.upper(row["PLD"])}, PRV {_format.upper(row["PRV"])}, Renyi '
          f'{_format.upper(row["Renyi"])}')


def experiment_3() -> str:
  """Returns epsilon at the last point of Figure 3c by all methods."""
  rows = of(FIGURES, '3c')
  row = rows[-1]
  others = ', '.join(f'{name} {_format.upper(row[name])}' for name in (
      'PLD', 'PRV', 'Renyi'))
  return (f'sigma 2, q .02, {row["compositions"]:,} steps, delta 1e-5: epsilon at most '
          f'{_format.upper(row["phi"])}; {others}; the paper\'s {row["published"]:.6g}')


def figure_1() -> str:
  """Returns rho and the deltas of Figure 1."""
  found = of(FIGURES, 'figure_1')
  deltas = ', '.join(f'{name} {value:.4f}' for name, value in found[
      'delta_at_epsilon_1'].items())
  return f'rho {found["rho"]:.4f}, delta at epsilon 1: {deltas}'


def touching() -> str:
  """Compares the implied trade-off function with randomised response (F.1)."""
  found = of(FIGURES, 'figure_1')
  return ('implied by rho, all orders from 1/2: nearest distance below the trade-off '
          f'function of randomised response {_format.upper(found["touching"], 2)}; '
          'implied by its own divergences, orders up to 10,000: largest distance '
          f'{_format.upper(found["own"], 2)}')


def below_one() -> str:
  """Returns what orders below one add to false negative rates (appendix F)."""
  told = [f'{name}: {row["gained_below_one"]:.2g}, {row["lost"]:.2g}'
          for name, row in of(FIGURES, 'appendix_f').items()]
  return ('largest gain in the false negative rate by orders below one, and largest '
          'remaining distance to the certified one: ' + '; '.join(told))


def best_conversion() -> str:
  """Compares delta by orders above one and by all orders (F.2, F.3)."""
  mu, epsilon, x = 2.0, 1.0, np.linspace(0, 1, 4001)
  above, below = 1 + np.geomspace(1e-3, 500, 400), np.linspace(0.5, 0.999, 150)
  deltas = []
  for orders in (above, np.append(below, above)):
    known = 0.5 * mu**2 * orders
    least = renyi.tradeoff_from_renyi(orders, known, x, known)
    # Between two points of x, the value at the larger x is a bound.
    deltas.append(float(np.max(1 - least[1:] - math.exp(epsilon) * x[:-1])))
  exact = gaussian_delta(mu, epsilon)
  return (f'Gaussian of 1/2, delta at epsilon 1: at most {_format.upper(deltas[0])} by '
          f'orders above one, {_format.upper(deltas[1])} by orders from 1/2, exactly '
          f'{exact:.6g}')


def figure_4() -> str:
  """Returns epsilon of both directions composed apart, and by one pair."""
  found = of(FIGURES, 'figure_4')
  return f'sigma 1, q .2, delta 1e-5, at {found["compositions"][0]} and ' + (
      f'{found["compositions"][-1]} steps: epsilon with both directions composed apart '
      f'{_format.upper(found["apart"][0])} and {_format.upper(found["apart"][-1])}, by '
      f'one pair {_format.upper(found["together"][0])} and '
      f'{_format.upper(found["together"][-1])}')
