"""Vocabularies: words that many records hold, with noisy counts.

Source: Korolova, Kenthapadi, Mishra and Ntoulas, "Releasing Search Queries and Clicks
Privately" (WWW 2009), for noisy counts with a threshold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
import math

import dp_accounting
import numpy as np

from tfcactus import _checks, accounting, noise as noise_lib
from tfcactus.randomness import KeyStream
from tfcactus.release import noise_sources, planner
from tfcactus.release.result import Release


def vocabulary(words: Iterable[Collection[Hashable]], *, noise: noise_lib.ScalarNoise,
               delta: float, words_per_record: int = 1, seed: int | None = None
               ) -> Release:
  """Releases words whose noisy number of records reaches a threshold.

  The threshold follows from `noise`, `delta` and `words_per_record`. Words that one
  record alone holds reach it with probability at most `delta`, all of that record
  together. Order and choice of the words follow the noisy numbers.

  Args:
    words: The words of each record, of type str, bytes or int; others do not count, nor
      do booleans. A repeated word of a record counts once.
    noise: Noise in units of what one record adds to the numbers: the square root of
      words_per_record under Gaussian noise, else words_per_record. Log-concave, and in
      closed form unless words_per_record is one.
    delta: Probability in (0, 1) with which a record's own words may show. It is part of
      the delta of the event.
    words_per_record: Most words of a record that count: a uniformly random choice.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release whose value is a dict of words and their noisy numbers, by falling number,
    equal ones by `repr`. A word that counts for `error(beta)` records is left out with
    probability at most beta.

  Raises:
    ValueError: if an argument is out of range, or a record is a text or number.
  """
  most = _checks.count('words_per_record', words_per_record)
  law = noise_sources.spread_noise(noise, whole=most == 1)
  # A record changes `most` numbers by one. Rounded up: the root must not be too small.
  scale = float(most) if law.gaussian_std is None else math.nextafter(
      math.sqrt(most), math.inf)
  # One more than for empty counts: words of one record have a count of one.
  threshold = 1 + planner.count_threshold(
      law, num_bins=most, beta=_checks.delta(delta), scale=scale)
  counts = _counted(words, most, KeyStream(seed, 'words of records'))
  noisy = np.array([*counts.values()], np.int64) + noise_sources.drawn_steps(
      law, noise_sources.generator(seed), len(counts), scale)
  passed = [pair for pair in zip(counts, noisy.tolist()) if pair[1] >= threshold]
  return Release(
      value=dict(sorted(passed, key=lambda pair: (-pair[1], repr(pair[0])))),
      event=dp_accounting.ComposedDpEvent(
          [accounting.noise_event(law), accounting.ThresholdDpEvent(float(delta))]),
      mechanism=f'words that reach a noisy number of {threshold} records with '
      f'{law.name} noise, at most {most} of each record', seeded=seed is not None,
      error_kind='records that hold a word which is left out',
      error_bound=lambda beta: threshold + 0.5 + scale * float(
          noise_sources.upper_quantile(law, beta)))


def _counted(words: Iterable[Collection[Hashable]], most: int, stream: KeyStream
             ) -> Counter[Hashable]:
  """Returns how many records hold each word, counting at most `most` words of each."""
  _checks.instance('words', words, Iterable, 'give a list of the words of each record')
  counts: Counter[Hashable] = Counter()
  for record in words:
    if isinstance(record, (str, bytes, bytearray)) or not isinstance(record, Iterable):
      raise ValueError('Expected a list or set of words for each record, got one of '
                       f'type {type(record).__name__}; split a text, or put a word '
                       'into a list of its own.')
    # Equal words of other types, as 1 and True, would tell which record came first.
    own = list(dict.fromkeys(
        word for word in (each.item() if isinstance(each, np.generic) else each
                          for each in record) if type(word) in (str, bytes, int)))
    # The choice depends on this record alone.
    counts.update(own if len(own) <= most else [
        own[place] for place in stream.subset(most, len(own))])
  return counts
