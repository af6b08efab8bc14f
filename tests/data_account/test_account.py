"""Tests of the account of a data set: what it allows, refuses, and keeps on disk."""

import collections
import errno
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import dp_accounting
from dp_accounting import rdp
import numpy as np
import pytest

from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, DataAccount, relations, release
from tfcactus.accounting import leaky
from tfcactus.accounting.leaky import Part

ROOT = pathlib.Path(tfcactus.__file__).parent.parent
RUN = dp_accounting.PoissonSampledDpEvent(
    250 / 60000, dp_accounting.GaussianDpEvent(1.3))
GAUSSIAN = dp_accounting.GaussianDpEvent


@pytest.fixture
def make(tmp_path):
  """Returns a function that opens the account of a test, of (4, 1e-6) by default."""
  def open_account(*, name='census.account', **changes):
    if not os.path.exists(tmp_path / name):
      changes = {'epsilon': 4, 'delta': 1e-6, **changes}
    return DataAccount(tmp_path / name, **changes)
  return open_account


def _epsilon(*events, delta=1e-5):
  accountant = accounting.PhiAccountant()
  for event, count in events:
    accountant.compose(event, count)
  return accountant.epsilon_bounds(delta)


def _dense(mu, leak, delta):
  """Returns epsilon of L(leak, mu) at delta, by the closed form of the Gaussian."""
  loss = accounting.PhiAccountant().compose(GAUSSIAN(1 / mu))
  return loss.epsilon_bounds((delta - leak) / (1 - leak)).upper


ORDERS = np.array([2.0, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64])


def _other_filters(events, delta):
  """Returns epsilon by other accounts: Renyi with the order that is best for these
  releases, at order 8 and at any order with delta / 14; and Whitehouse et al."""
  total = rdp.RdpAccountant(ORDERS)
  for event, count in events:
    total.compose(event, count)

  def at(delta):
    """Returns epsilon by each order (Canonne, Kamath and Steinke, 2020)."""
    return total.rdp + np.log1p(-1 / ORDERS) - (
        math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
  # Theorem of "Fully Adaptive Composition" (2023): half of delta for the releases.
  squares = sum(_epsilon(event, delta=delta / 2 / len(events)).upper**2
                for event in events)
  return (min(at(delta)), at(delta)[ORDERS == 8][0], min(at(delta / ORDERS.size)),
          math.sqrt(2 * math.log(2 / delta) * squares) + squares / 2)


@representatives('row, events', [
    ('three runs of the tutorial, five Gaussian statistics of noise multiplier 20',
     ((RUN, 3600), (RUN, 3600), (RUN, 3600), *[(GAUSSIAN(20.0), 1)] * 5)),
    ("ten runs of the tutorial's first 900 steps", ((RUN, 900),) * 10),
    ('ten runs of the tutorial', ((RUN, 3600),) * 10)], 1)
def test_slots_are_exact_and_the_adaptive_part_loses_a_few_percent(make, row, events):
  exact = _epsilon(*events)
  reserved = make(epsilon=exact.upper * (1 + 1e-9), delta=1e-5, leak=0, slots={
      str(index): event for index, event in enumerate(events)})
  for index, (event, count) in enumerate(events):
    reserved.spend(event, count, label=str(index))
  assert exact.lower <= reserved.guarantee().upper <= exact.upper * (1 + 1e-8)
  assert reserved.epsilon_if_planned() == pytest.approx(exact.upper, rel=1e-12)
  # Shares of the leak as the account chooses them, with what they cost in all.
  adaptive = make(name='adaptive', epsilon=1.1 * exact.upper, delta=1e-5, leak=1e-6)
  for event, count in events:
    adaptive.spend(event, count)
  cost = adaptive.epsilon_if_planned()
  assert exact.upper < cost < 1.07 * exact.upper
  added = sum(_epsilon(event, delta=1e-5 / len(events)).upper for event in events)
  page = (pathlib.Path(__file__).parents[2] / 'docs' / 'epsilon.md').read_text()
  others = _other_filters(events, 1e-5)
  assert cost < min(others)
  told = [f'{math.ceil(1e4 * each) / 1e4:.4f}'
          for each in (exact.upper, cost, *others, added)]
  assert f'| {row} | {" | ".join(told)} |' in page
  parts = [Part(entry['leak'], entry['mu']) for entry in adaptive.entries]
  assert cost == pytest.approx(_dense(
      math.sqrt(sum(part.mu**2 for part in parts)), sum(part.leak for part in parts),
      1e-5), rel=1e-6)


WIDTH, CELLS = 1e-3, 1 << 15
"""A lattice of losses from -16.384 on."""


def _lattice(mu, prob, steps):
  """Returns roughly the law under P of the loss of sampled Gaussians, removed."""
  z, width = np.linspace(-12, 12 + mu, 400_001, retstep=True)
  p, q = (width * np.exp(-0.5 * (z - shift)**2) / math.sqrt(2 * math.pi)
          for shift in (mu, 0))
  loss = np.log1p(prob * np.expm1(mu * (z - 0.5 * mu)))
  one = np.bincount(np.rint(loss / WIDTH).astype(int) % CELLS,
                    prob * p + (1 - prob) * q, CELLS)
  law = np.fft.irfft(np.fft.rfft(one)**steps, CELLS)
  return np.roll(law, CELLS // 2)


def _adaptive_delta(epsilon, mu, branches):
  """Returns delta of a Gaussian followed by the worse branch for its answer."""
  losses = WIDTH * (np.arange(CELLS) - CELLS // 2)
  laws = [_lattice(*branch) for branch in branches]
  x, step = np.linspace(-6, 6.5, 160, retstep=True)
  p = np.exp(-0.5 * (x - mu)**2) / math.sqrt(2 * math.pi)
  left = epsilon - mu * (x - mu / 2)
  return step * sum(one * max(np.sum(law * np.maximum(-np.expm1(
      np.minimum(more - losses, 0)), 0)) for law in laws) for one, more in zip(p, left))


@pytest.mark.more
def test_the_filter_by_the_exact_delta_of_what_ran_fails_and_is_not_offered(
    make, monkeypatch):
  branches = [(GAUSSIAN(1 / 0.2706),), (dp_accounting.PoissonSampledDpEvent(
      0.001, GAUSSIAN(0.5)), 200)]
  first, limit = GAUSSIAN(2.0), 8.13e-5
  for branch in branches:  # Either list has the delta of the budget at epsilon 2.
    account = accounting.PhiAccountant().compose(first).compose(*branch)
    assert 8.1e-5 < account.get_delta(2.0) <= limit
  assert _adaptive_delta(2.0, 0.5, [(0.2706, 1, 1)]) == pytest.approx(8.12e-5, rel=0.01)
  assert _adaptive_delta(2.0, 0.5, [(0.2706, 1, 1), (2.0, 0.001, 200)]) > 1.33e-4
  account = make(epsilon=2, delta=limit, leak=1e-8)
  # Its mu is 0.885 with many points, and larger with few.
  monkeypatch.setattr(leaky, 'POINTS', 8)
  monkeypatch.setattr(leaky, 'REFINED', 4)
  account.spend(first)
  with pytest.raises(ValueError, match='what is left .* release nothing'):
    account.spend(*branches[1])
  account.spend(*branches[0])


@pytest.mark.parametrize('relation, shift', [
    ('add-or-remove', 1), ('zero-out', 1), ('replace', 2)])
def test_the_budget_is_used_up_to_the_end_and_not_further(make, relation, shift):
  account = make(epsilon=2, neighboring_relation=relation, leak=0)
  noise = shift / account.left.mu
  alone = accounting.PhiAccountant(relations.check(relation)).compose(GAUSSIAN(noise))
  assert 2 * (1 - 1e-6) < alone.get_epsilon(1e-6) <= 2
  account.spend(GAUSSIAN(noise * math.sqrt(2) * (1 + 1e-9)), 2)
  assert account.left.mu < 1e-4 and account.guarantee().upper <= 2
  with pytest.raises(ValueError, match='Nothing was entered'):
    account.spend(GAUSSIAN(1e3 * noise))
  assert len(account.entries) == 1
  assert account.guarantee().neighboring_relation == relations.label(
      relations.check(relation))


def test_slots_leave_the_rest_to_the_adaptive_part(make):
  account = make(slots={'march': (RUN, 3600)})
  _, rest = account.left
  whole = _epsilon((RUN, 3600), (GAUSSIAN(1 / rest), 1), delta=0.9e-6 / (1 - 1e-7))
  assert 4 * (1 - 1e-6) < whole.upper <= 4
  account.spend(RUN, 3000, label='march')  # Stopped early.
  account.spend(RUN, 600, label='march')  # The rest, in another run.
  with pytest.raises(ValueError, match='0 of 3600 .* that are left'):
    account.spend(RUN, label='march')
  with pytest.raises(ValueError, match='Expected another label'):
    account.spend(GAUSSIAN(3.0), label='march')
  assert account.left == Part(account.left.leak, rest)
  account.reserve(RUN, 100, label='april')
  left = account.left
  account.spend(RUN, 40, label='april')
  assert account.left == left and account.slots['april'].used == 40
  with pytest.raises(ValueError, match='Expected another label'):
    account.reserve(RUN, 100, label='april')


@pytest.mark.parametrize('refused, words', [
    (lambda account: account.spend('event'), 'plan.step_event'),
    (lambda account: account.spend(GAUSSIAN(3.0), 0), 'count'),
    (lambda account: account.spend(GAUSSIAN(3.0), unit='user'), "unit='example'"),
    (lambda account: account.spend(GAUSSIAN(3.0), label='a\nb'), 'one line'),
    (lambda account: account.spend(
        accounting.AdaptedDpEvent([GAUSSIAN(9.0)], '', True)), "unit='example'"),
    (lambda account: account.spend(dp_accounting.ComposedDpEvent([
        GAUSSIAN(9.0), accounting.AdaptedDpEvent([GAUSSIAN(9.0)], '', True)])),
     "unit='example'"),
    (lambda account: account.spend(GAUSSIAN(0.0)), 'no mu at all'),
    (lambda account: account.spend(dp_accounting.NonPrivateDpEvent()), 'no mu at all'),
    (lambda account: account.spend(dp_accounting.ComposedDpEvent(
        [GAUSSIAN(20.0), dp_accounting.NonPrivateDpEvent()])), 'no mu at all'),
    (lambda account: account.spend(dp_accounting.ComposedDpEvent(
        [GAUSSIAN(20.0), GAUSSIAN(0.0)])), 'no mu at all'),
    (lambda account: account.spend(accounting.randomized_response_event(0.5, 4)),
     'relation of the account'),
    (lambda account: account.spend(dp_accounting.UnsupportedDpEvent()), 'known cost'),
    (lambda account: account.spend(GAUSSIAN(0.1)), 'one Gaussian release of noise'),
    (lambda account: account.release(release.histogram, [0, 1], num_bins=2, seed=1,
                                     noise=tfcactus.Gaussian(9.0)), 'from a seed'),
    (lambda account: account.release(lambda: 3), 'a function of tfcactus.release'),
    # Its __module__ is None.
    (lambda account: account.release(np.random.rand), 'a function of tfcactus.release'),
])
def test_what_has_no_cost_or_exceeds_the_budget_is_refused(make, refused, words):
  account = make()
  with pytest.raises(ValueError, match=words):
    refused(account)
  assert not account.entries and account.left == make().left


def test_releases_and_searches_enter_themselves(make):
  account = make()
  found = account.release(release.histogram, [0, 1, 1], num_bins=2,
                          noise=tfcactus.Gaussian(5.0))
  assert found.value.shape == (2,)
  account.release(release.noisy_value, 3.0, sensitivity=1.0, label='income',
                  noise=tfcactus.Laplace(20.0))
  search = accounting.SearchDpEvent(accounting.LogarithmicRuns(mean=3), GAUSSIAN(20.0),
                                    score='released')
  account.spend(search, label='search')
  labels = [entry['label'] for entry in account.entries]
  assert labels == ['histogram', 'income', 'search']
  assert [entry['leak'] > 0 for entry in account.entries] == [False, True, True]
  assert account.entries[0]['mu'] == pytest.approx(0.2)
  # The conditions of the search are those of the account.
  assert search.condition in account.guarantee().statement
  refused = make(name='small', epsilon=0.1)
  with pytest.raises(ValueError, match='release nothing'):
    refused.release(release.histogram, [0, 1], num_bins=2, noise=tfcactus.Gaussian(0.5))


def test_the_guarantee_names_whom_it_protects(make):
  account = make(unit='user', neighboring_relation='zero-out')
  account.spend(GAUSSIAN(10.0), unit='user')
  found = account.guarantee()
  assert found.upper <= 4 and found.delta == 1e-6 and found.steps == 1
  assert 'For any one user, with all rows of that user, replaced' in found.statement
  assert account.head in found.statement
  with pytest.raises(ValueError, match='without an account'):
    found.report()  # The accountant does not hold the leak.


@pytest.mark.parametrize('changes, words', [
    ({'epsilon': 3}, 'epsilon=4'), ({'delta': 1e-5}, 'delta=1e-06'),
    ({'unit': 'user'}, "unit='example'"), ({'slots': {}}, 'slots='),
    ({'neighboring_relation': 'replace'}, 'ADD_OR_REMOVE_ONE'),
    ({'slots': {'march': (RUN, 10)}}, 'slots='), ({'leak': 0.0}, 'leak='),
])
def test_an_account_opens_with_what_it_was_begun_with(make, changes, words):
  make(slots={'march': (RUN, 20)})
  assert make(epsilon=4, delta=1e-6, unit='example', slots={'march': (RUN, 20)},
              neighboring_relation='add-or-remove').slots['march'].count == 20
  with pytest.raises(ValueError, match=words):
    make(**changes)


@pytest.mark.parametrize('changes, words', [
    ({'epsilon': 0}, 'epsilon'), ({'delta': 2}, 'delta'),
    ({'leak': 1e-6}, 'leak below'), ({'unit': ''}, 'one line'),
    ({'slots': {'big': (RUN, 10**6)}}, 'Expected slots within'),
    ({'slots': [RUN]}, 'slots to be a dict'), ({'slots': {'': RUN}}, 'one line'),
    ({'slots': {'a': (RUN, 1.5)}}, 'count'), ({'slots': {'a': 3}}, 'plan.step_event'),
    ({'slots': {'a': type('Own', (accounting.ExponentialMechanismDpEvent,), {})(
        0.1)}}, 'can be saved'),
    ({'neighboring_relation': 'swap'}, 'neighboring_relation'),
    ({'epsilon': None}, 'give epsilon and delta'),
])
def test_an_account_begun_wrongly_leaves_no_file(make, tmp_path, changes, words):
  with pytest.raises(ValueError, match=words):
    make(**changes)
  assert not list(tmp_path.iterdir())


def test_slots_alone_need_no_adaptive_part(make):
  exact = _epsilon((RUN, 3600)).upper
  account = make(epsilon=exact, delta=1e-5, leak=0, slots={'march': (RUN, 3600)})
  assert account.left.mu < 0.01
  with pytest.raises(ValueError, match='what is left'):
    account.spend(GAUSSIAN(2.0))
  account.spend(RUN, 3600, label='march')


def _lines(account):
  return pathlib.Path(account.path).read_bytes().splitlines(True)


def _edited(lines):
  return [*lines[:1], lines[1].replace(b'"count": 1', b'"count": 0'), *lines[2:]]


@pytest.mark.parametrize('edit', [
    _edited, lambda lines: [lines[0], *lines[2:]], lambda lines: lines[1:],
    lambda lines: [*lines, lines[-1]], lambda lines: [lines[0], lines[2], lines[1]],
    lambda lines: [*lines, b'0123 {}\n'], lambda lines: [*lines, b'\n'],
    lambda lines: [b'not an account\n'], lambda lines: [*lines, b'not a line'],
    lambda lines: [b'not an account'],
    lambda lines: [line.replace(b'0', b'1') for line in lines]])
def test_edited_files_are_refused(make, edit):
  account = make()
  for _ in range(2):
    account.spend(GAUSSIAN(9.0))
  with open(account.path, 'r+b') as file:  # In place.
    lines = edit(_lines(account))
    file.write(b''.join(lines))
    file.truncate()
  # No file of others loses an incomplete last line either.
  with pytest.raises(ValueError, match='its own lines'):
    make()
  with pytest.raises(ValueError, match='its own lines|only grow'):
    account.spend(GAUSSIAN(9.0))
  with pytest.raises(ValueError, match='its own lines|only grow'):
    account.report()
  with open(account.path, 'rb') as file:
    assert file.read() == b''.join(lines)


def test_a_file_that_was_set_back_is_noticed_by_who_saw_more(make):
  account = make()
  account.spend(GAUSSIAN(9.0))
  before, head = _lines(account), account.head
  account.spend(GAUSSIAN(9.0))
  with open(account.path, 'r+b') as file:
    file.write(b''.join(before))
    file.truncate()
  for ask in (lambda: account.left, lambda: account.spend(GAUSSIAN(9.0))):
    with pytest.raises(ValueError, match='only grow'):
      ask()
  assert make().head == head  # Nobody else can notice, but the head shows it.


def test_words_do_not_vouch_for_a_copy_and_units_are_named(make, tmp_path):
  shutil.copy(make().path, tmp_path / 'copy')
  with pytest.raises(ValueError, match='Expected moved to be True or False'):
    make(name='copy', moved='no')
  with pytest.raises(ValueError, match='Expected unit to be words on one line'):
    make(name='other', unit='')


def test_copies_are_refused_until_somebody_vouches(make, tmp_path):
  account = make()
  account.spend(GAUSSIAN(9.0))
  shutil.copy(account.path, tmp_path / 'copy')
  for _ in range(2):
    with pytest.raises(ValueError, match='moved=True'):
      make(name='copy')
  moved = make(name='copy', moved=True)
  moved.spend(GAUSSIAN(9.0))
  assert [entry['kind'] for entry in moved.entries] == ['spend', 'moved', 'spend']
  assert make(name='copy').left == moved.left
  with pytest.raises(ValueError, match='moved=True'):  # It may go on in one place only.
    shutil.copyfile(moved.path, account.path)
    account.spend(GAUSSIAN(9.0))
  os.remove(account.path)
  with pytest.raises(ValueError, match='put it back'):
    account.spend(GAUSSIAN(9.0))
  with pytest.raises(ValueError, match='give epsilon and delta'):
    DataAccount(account.path)


def test_a_line_that_was_not_finished_is_dropped(make):
  account = make()
  account.spend(GAUSSIAN(9.0))
  with open(account.path, 'ab') as file:
    file.write(b'0123456789abcdef {"kind": "sp')
  again = make()
  again.spend(GAUSSIAN(9.0))
  assert len(make().entries) == 2 == len(account.entries)


def test_a_full_disk_releases_nothing(make, monkeypatch):
  account, write = make(), os.write

  def full(file, data):
    if len(data) > 20:
      return write(file, data[:20])
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'write', full)
  with pytest.raises(OSError, match='No space left'):
    account.spend(GAUSSIAN(9.0))
  monkeypatch.undo()
  assert not make().entries
  account.spend(GAUSSIAN(9.0))
  assert len(make().entries) == 1


def test_threads_and_accounts_of_one_file_see_each_other(make):
  accounts = [make(), make()]

  def spend(account):
    for _ in range(10):
      account.spend(GAUSSIAN(100.0))

  threads = [threading.Thread(target=spend, args=(account,))
             for account in accounts * 2]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(accounts[0].entries) == len(accounts[1].entries) == 40


@representatives('kills', [3, 20])
def test_killed_processes_show_all_that_they_released(make, tmp_path, kills):
  account = make(epsilon=40, delta=1e-5, slots={'plan': (RUN, 10**6)})
  log = tmp_path / 'log'
  subprocess.run(
      [sys.executable, '-m', 'tests.data_account.spending_process', account.path,
       str(log), str(kills)], cwd=ROOT, check=True, timeout=300,
      env={**os.environ, 'PYTHONPATH': str(ROOT)})
  released = collections.Counter(log.read_text().split())
  shown = collections.Counter()
  for entry in make().entries:
    sigma = entry.get('what', 'plan').partition('=')[2].rstrip(')')
    shown.update({sigma or 'plan': entry['count']})
  assert released <= shown and sum((shown - released).values()) <= kills + 3
  # Between kills come 20 entries or more; all but those at work were released.
  assert sum(released.values()) >= 20 * kills - (kills + 3)
  assert released['plan'] > 5 * kills
  # The total is the composition of what ran.
  ran = accounting.PhiAccountant().compose(RUN, shown.pop('plan'))
  for sigma, count in shown.items():
    ran.compose(GAUSSIAN(float(sigma)), count)
  assert account.epsilon_if_planned() == pytest.approx(
      ran.get_epsilon(1e-5), rel=1e-9)


def test_where_there_are_no_locks_there_is_no_account(make, monkeypatch):
  monkeypatch.setattr(tfcactus._record_file, 'fcntl', None)
  with pytest.raises(ValueError, match='Windows'):
    make()


def test_entries_are_plain_and_parts_are_those_of_the_accountant(make):
  account = make()
  account.spend(RUN, 360, label='run')
  [entry] = account.entries
  assert json.loads(_lines(account)[1].split(b' ', 1)[1])['mu'] == entry['mu']
  assert 'PoissonSampled' in entry['what'] and entry['count'] == 360
  part = leaky.part(accounting.PhiAccountant().compose(RUN, 360),
                    make(name='again').left)
  assert Part(entry['leak'], entry['mu']) == part
