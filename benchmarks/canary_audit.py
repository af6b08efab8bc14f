"""Audits of runs: planted faults found, honest runs, bounds, and the cost of steps.

    python -m benchmarks.canary_audit
    python -m benchmarks.canary_audit --only faults honest bounds cost rates

Faults are planted in the library itself (tests/keras/planted.py). Each run trains a
tiny model for 300 steps, with canaries drawn, clipped and noised as its examples are;
honest runs have 100 steps.
A fault is found if the check that the design names for it refutes the claim at 0.05,
shared over all checks. An honest run is refuted if any p-value of its report does so.
Lower bounds are medians over runs of 5,000 canaries, divided by the epsilon that the
accountant proves. The cost of a step is that of the CNN of the MNIST tutorial, in CPU
time, by turns in one process. True positive rates are compared with those of the grid
of dp_accounting at 3,001 epsilons. Its get_true_positive_rates, which is newer than its
release 0.6, has as many points and takes longer, since it searches for each.
"""

from __future__ import annotations

import functools
import os
import warnings

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('CUDA_VISIBLE_DEVICES', '-1')

from benchmarks import _processes, _results  # noqa: E402
from tfcactus import _format  # noqa: E402

PARTS = ('faults', 'honest', 'bounds', 'cost', 'rates')
QUICK = ('--only', 'faults', '--runs', '1', '--canaries', '200')

_SIGMAS = {3: 1.465, 7: 0.885}
"""Noise multipliers of about these epsilons: 300 Poisson samples of a twentieth."""


def faults(runs, canaries):
  """Returns how many runs each fault was found in, by its check and by the test."""
  from tests.keras import planted
  from tfcactus.audit import evidence
  found = {}
  for fault, (check, _) in planted.FAULTS.items():
    with planted.planted(fault):
      made, by_check, refuted = planted.Runs(canaries), 0, 0
      for _ in range(runs):
        audit = evidence.audit_run(made.seen(), made.claim, families=False)
        tried = {each.name: each.p_value for each in audit.findings
                 if each.p_value is not None}
        by_check += tried[f'Check of {check}'] * len(tried) <= 0.05
        refuted += tried['Claim, by its trade-off curve'] <= 0.05
    found[fault] = {'check': check, 'runs': runs, 'by_check': int(by_check),
                    'by_claim': int(refuted)}
    print(fault, found[fault], flush=True)
  return found


def honest(runs, canaries):
  """Returns how many honest runs were refuted, by the sampling scheme."""
  from scipy import stats

  from tests.keras import planted
  from tfcactus.audit import evidence
  found = {}
  for scheme in planted.SCHEMES:
    made, refuted, claim, epsilons = planted.Runs(
        canaries, 100, scheme=scheme), 0, 0, 0
    truth = made.claim.account(1.0, 1.0).epsilon_bounds(made.claim.delta).upper
    for _ in range(runs):
      audit = evidence.audit_run(made.seen(), made.claim, families=False)
      refuted += audit.refuted
      claim += {each.name: each.p_value for each in audit.findings}[
          'Claim, by its trade-off curve'] <= 0.05
      epsilons += {each.name: each.epsilon for each in audit.findings}[
          'Components'] > truth
    found[scheme] = {'runs': runs, 'refuted': int(refuted), 'claim': int(claim),
                     'components_above': int(epsilons),
                     'limit': int(stats.binom.ppf(0.975, runs, 0.05))}
    print(scheme, found[scheme], flush=True)
  return found


def bounds(runs, canaries):
  """Returns medians of lower bounds over the epsilon that is proved."""
  import numpy as np

  from tests.keras import planted
  from tfcactus.audit import evidence
  found = {}
  for target, sigma in _SIGMAS.items():
    made = planted.Runs(canaries, sigma=sigma)
    truth = made.claim.account(1.0, 1.0).epsilon_bounds(made.claim.delta).upper
    each = [{finding.name: finding.epsilon for finding in evidence.audit_run(
        made.seen(), made.claim).findings} for _ in range(runs)]
    found[target] = {'epsilon': truth, 'runs': runs, **{
        name: float(np.median([one[name] for one in each])) for name in each[0]
        if each[0][name] is not None}}
    print(found[target], flush=True)
  return found


def cost(rounds):
  """Returns the CPU time of a step with canaries, over that of one without."""
  import numpy as np
  import tensorflow as tf

  from tests.keras import zoo
  from tests.keras.zoo.base import Size
  import tfcactus
  from tfcactus import keras as private

  examples, batch, steps = 60_000, 250, 40
  small = zoo.ZOO['CNN of the MNIST tutorial'].make(Size(500, real=True))
  x, y = (np.resize(part, (examples, *np.shape(part)[1:]))
          for part in (small.x, small.y))
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=examples,
      sampling_prob=batch / examples, steps=100_000, delta=1e-5)
  trained = {}
  for canaries in (0, 300, 1000):
    case = zoo.ZOO['CNN of the MNIST tutorial'].make(Size(8, real=True))
    model = private.privatize(
        case.model, plan, audit=private.Audit(canaries) if canaries else None)
    model.compile(tf.keras.optimizers.SGD(0.01), case.loss)
    batches = private.PoissonBatches(x, y, batch / examples, steps_per_epoch=steps)
    model.fit(batches, verbose=0)
    trained[canaries] = functools.partial(model.fit, batches, verbose=0)
  times = {canaries: [each / steps for each in seconds]
           for canaries, seconds in _processes.by_turns(trained, rounds).items()}
  found = {str(canaries): {
      'ms': 1e3 * float(np.median(each)),
      'ratio': float(np.median(np.divide(each, times[0])))}
           for canaries, each in times.items()}
  print(found, flush=True)
  return found


def rates(rounds):
  """Returns true positive rates and their CPU times, by turns, of 300 sampled steps."""
  import dp_accounting
  from dp_accounting.pld import privacy_loss_distribution as pld
  import numpy as np

  from tfcactus import accounting
  from tfcactus.accounting import attacks

  def here():
    account = accounting.PhiAccountant().compose(dp_accounting.PoissonSampledDpEvent(
        0.05, dp_accounting.GaussianDpEvent(1.5)), 300)
    return [attacks.true_positive_rate(account, rate).upper for rate in attacks.RATES]

  def grid(interval):
    found = pld.from_gaussian_mechanism(
        1.5, sampling_prob=0.05, value_discretization_interval=interval,
        use_connect_dots=False).self_compose(300)
    epsilons = np.linspace(0.0, 12.0, 3001)
    grown, deltas = np.exp(epsilons), np.array(found.get_delta_for_epsilon(epsilons))
    return [float(np.min(np.minimum(
        deltas + grown * rate, 1 - (1 - rate - deltas) / grown)))
            for rate in attacks.RATES]

  ways = {'here': here, 'grid of 1e-4': lambda: grid(1e-4),
          'grid of 1e-5': lambda: grid(1e-5)}
  bounds = {name: compute() for name, compute in ways.items()}
  times = _processes.by_turns(ways, rounds)
  found = {name: {'bounds': bounds[name], 'ms': 1e3 * float(np.median(each)),
                  'ratio': float(np.median(np.divide(each, times['here'])))}
           for name, each in times.items()}
  print(found, flush=True)
  return found


def show(found):
  """Writes the tables from the results."""
  _results.show('canary_faults', _results.markdown(
      ['fault', 'check that names it', 'found by it', 'by the trade-off curve'],
      [[fault, each['check'], f'{each["by_check"]} of {each["runs"]}',
        f'{each["by_claim"]} of {each["runs"]}']
       for fault, each in found['faults'].items()]))
  _results.show('canary_honest', _results.markdown(
      ['sampling', 'refuted at 0.05', 'by the trade-off curve alone',
       'components above the truth'],
      [[scheme, *(f'{each[name]} of {each["runs"]}' for name in (
          'refuted', 'claim', 'components_above'))]
       for scheme, each in found['honest'].items()]))
  names = ('Components', "Claim's family", 'Gaussian family',
           "One run (f-DP, claim's family)", 'One run (Steinke, Nasr and Jagielski)')
  _results.show('canary_bounds', _results.markdown(
      ['epsilon proved', *names],
      [[_format.upper(each['epsilon']), *(f'{each[name]:.2f}' for name in names)]
       for each in found['bounds'].values()]))
  _results.show('canary_cost', _results.markdown(
      ['canaries', 'CPU ms a step', 'over no canaries'],
      [[canaries, f'{each["ms"]:.1f}', f'{each["ratio"]:.3f}']
       for canaries, each in found['cost'].items()]))
  _results.show('attack_rates', _results.markdown(
      ['bounds', 'true positive rate at 0.001', 'at 0.01', 'CPU ms', 'times as long'],
      [[name, *(_format.upper(bound, 7) for bound in each['bounds']),
        f'{each["ms"]:.0f}', f'{each["ratio"]:.1f}']
       for name, each in found['rates'].items()]))


def main():
  """Measures the parts asked for; writes the results and the tables."""
  parser = _results.parser('canary_audit', __doc__)
  parser.add_argument('--only', nargs='*', choices=PARTS, default=PARTS)
  parser.add_argument('--runs', type=int, help='runs of each case')
  parser.add_argument('--canaries', type=int, help='canaries of each run')
  args = parser.parse_args()
  warnings.simplefilter('ignore')  # The ledger adds up all runs.
  found = _results.load('canary_audit', {})
  measured = {
      'faults': lambda: faults(args.runs or 20, args.canaries or 2000),
      'honest': lambda: honest(args.runs or 200, args.canaries or 300),
      'bounds': lambda: bounds(args.runs or 10, args.canaries or 5000),
      'cost': lambda: cost(args.runs or 15), 'rates': lambda: rates(args.runs or 3)}
  found.update({part: measured[part]() for part in args.only})
  _results.save('canary_audit', found)
  if set(PARTS) <= set(found):
    show(found)


if __name__ == '__main__':
  main()
