"""TensorFlow Privacy's two functions: our numbers, and what each of them assumes."""

import ast
import enum
import importlib.util
import inspect
import math
import pathlib
import re

import dp_accounting
import pytest
from scipy import special

import tfcactus
from tfcactus import compute_dp_sgd_privacy, compute_dp_sgd_privacy_statement

POISSON = 'Poisson samples (added or removed)'
ZERO_OUT = 'passes (replaced by an empty one)'
REPLACE = 'passes (replaced by any other)'


def composed(accountant, sigma, count, prob=None):
  """Returns an accountant after `count` Gaussian sums, on Poisson samples or on all."""
  event = dp_accounting.GaussianDpEvent(sigma)
  return accountant.compose(event if prob is None else
                            dp_accounting.PoissonSampledDpEvent(prob, event), count)


def gaussian_delta(epsilon, mu):
  """Returns the delta of Gaussian noise whose mean moves by mu standard deviations."""
  return special.ndtr(mu / 2 - epsilon / mu) - math.exp(
      epsilon + special.log_ndtr(-mu / 2 - epsilon / mu))


def tables(text):
  """Returns {persons: {sampling: epsilon}} as the statement prints them."""
  return {whom: {label: float(value) for label, value in re.findall(
      r'^    (.*): +(\S+)$', lines, re.M)} for whom, lines in re.findall(
          r'^  Epsilon for (.*):\n((?:    .*\n)+)', text, re.M)}


@pytest.mark.parametrize('n, batch, sigma, epochs, steps', [
    (60_000, 250, 1.3, 15, 3600), (1_000, 300, 0.8, 2, 7), (1_000, 100, 2.0, 0.1, 1),
    (50, 50, 1.0, 3, 3), (6_000, 25, 1.0, 1.1, 264)])
def test_the_number_is_the_accountants_and_below_tensorflow_privacys(
    n, batch, sigma, epochs, steps):
  with pytest.warns(UserWarning, match='shuffled pass.* has no proof'):
    epsilon, order = compute_dp_sgd_privacy(n, batch, sigma, epochs, 1e-5)
  assert math.isnan(order)
  ours, rdp, pld = (
      composed(accountant, sigma, steps, batch / n).get_epsilon(1e-5) for accountant in
      (tfcactus.PhiAccountant(), dp_accounting.rdp.RdpAccountant(),
       dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)))
  assert epsilon == ours <= rdp
  assert epsilon == pytest.approx(pld, rel=.01) and epsilon <= pld


def test_the_statement_has_each_sampling_with_what_it_assumes():
  text = compute_dp_sgd_privacy_statement(
      6_000, 250, 1.5, 1.3, 1e-5, used_microbatching=False, max_examples_per_user=2,
      accountant_type='PLD')
  found = tables(text)
  assert list(found) == ['one example', '2 examples of one person together']
  one, two = found.values()
  assert list(one) == list(two) == [POISSON, ZERO_OUT, REPLACE]
  with pytest.warns(UserWarning):
    poisson, _ = compute_dp_sgd_privacy(6_000, 250, 1.3, 1.5, 1e-5)
  assert poisson <= one[POISSON] < poisson * (1 + 1e-4) < two[POISSON]
  # Two passes; replacing an example moves a sum by twice the clipping norm.
  for label, mu in ((ZERO_OUT, 2**.5 / 1.3), (REPLACE, 2 * 2**.5 / 1.3)):
    assert gaussian_delta(one[label] * (1 - 1e-4), mu) > 1e-5 >= gaussian_delta(
        one[label], mu)
    assert one[label] < two[label]
  words = ' '.join(text.split())
  assert 'This epsilon holds only if each example entered each batch indep' in words
  assert 'fit(x, y) and tf.data.Dataset.shuffle make, it has no proof.' in words
  assert 'For any one example replaced by any other: 2 passes' in words
  assert 'at delta 1e-05' in words and 'max_examples_per_user' not in words


def test_microbatches_have_no_epsilon_on_poisson_samples():
  text = compute_dp_sgd_privacy_statement(6_000, 250, 2, 1.3, 1e-5)  # The default.
  alone = compute_dp_sgd_privacy_statement(6_000, 250, 2, 1.3, 1e-5, False)
  assert tables(text) == {'one example': {
      REPLACE: tables(alone)['one example'][REPLACE]}}
  words = ' '.join(text.split())
  assert 'no proved epsilon where means of several examples are clipped' in words
  assert 'Pass used_microbatching=False' in words and 'PoissonBatches' not in words
  # One example more moves others to other microbatches of allocated batches too.
  assert 'AllocatedBatches' not in words and 'AllocatedBatches' in alone
  assert 'No batch may hold examples of two passes' in words


@pytest.mark.parametrize('change, words', [
    ({'n': 0}, 'Expected n >= 1'), ({'n': 60_000.5}, 'Expected n to be an integer'),
    ({'batch_size': 60_001}, 'Expected batch_size of at most n=60000'),
    ({'batch_size': 0}, 'Expected batch_size >= 1'),
    ({'batch_size': None}, 'Expected batch_size to be an integer'),
    ({'noise_multiplier': 0}, 'without noise nothing is private'),
    ({'noise_multiplier': -1}, 'Expected noise_multiplier > 0'),
    ({'epochs': 0}, 'Expected epochs > 0'), ({'epochs': 'ten'}, 'Expected epochs to'),
    ({'epochs': math.inf}, 'Expected epochs to be finite'),
    ({'epochs': 1e300}, 'Expected the number of steps <='),
    ({'delta': 0}, 'Expected delta in'), ({'delta': 1}, 'Expected delta in'),
    ({'delta': math.nan}, 'Expected delta to be finite')])
def test_arguments_that_mean_nothing_are_refused_by_their_names(change, words):
  right = {'n': 60_000, 'batch_size': 250, 'noise_multiplier': 1.3, 'epochs': 15,
           'delta': 1e-5}
  with pytest.raises(ValueError, match=words):
    compute_dp_sgd_privacy(**{**right, **change})
  names = {'n': 'number_of_examples', 'epochs': 'num_epochs'}
  words = re.sub(r'\b(n|epochs)\b', lambda found: names[found[0]], words)
  with pytest.raises(ValueError, match=words):
    compute_dp_sgd_privacy_statement(
        **{names.get(name, name): value for name, value in {**right, **change}.items()})


class Theirs(enum.Enum):
  RDP = 'RDP'
  ZCDP = 'ZCDP'


@pytest.mark.parametrize('more, words', [
    ({'max_examples_per_user': 0}, 'Expected max_examples_per_user >= 1'),
    ({'max_examples_per_user': 101}, 'Expected max_examples_per_user <= 100'),
    ({'used_microbatching': 'no'}, 'Expected used_microbatching to be True or False'),
    ({'accountant_type': 'prv'}, "Expected accountant_type 'RDP' or 'PLD'"),
    ({'accountant_type': Theirs.ZCDP}, 'got accountant_type=<Theirs.ZCDP')])
def test_further_arguments_of_the_statement_are_checked(more, words):
  with pytest.raises(ValueError, match=words):
    compute_dp_sgd_privacy_statement(100, 10, 1, 1.3, 1e-5, **more)
  assert compute_dp_sgd_privacy_statement(
      100, 10, 1, 1.3, 1e-5, accountant_type=Theirs.RDP)


def test_the_arguments_are_tensorflow_privacys():
  # Read as text: the import of the whole package takes many seconds.
  package = importlib.util.find_spec('tensorflow_privacy')
  if package is None:
    pytest.skip('needs TensorFlow Privacy')
  text = (pathlib.Path(package.origin).parent / 'privacy' / 'analysis' /
          'compute_dp_sgd_privacy_lib.py').read_text(encoding='utf-8')
  theirs = {node.name: node.args for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef)}
  for ours in (compute_dp_sgd_privacy, compute_dp_sgd_privacy_statement):
    wanted = theirs[ours.__name__]
    found = inspect.signature(ours).parameters.values()
    assert [each.name for each in found] == [each.arg for each in wanted.args]
    defaults = [each.default for each in found if each.default is not each.empty]
    assert defaults[:2] == [ast.literal_eval(each) for each in wanted.defaults[:2]]
    assert len(defaults) == len(wanted.defaults)
