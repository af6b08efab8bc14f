"""Measures time and memory of private training for each model of tests/keras/zoo.

    python -m benchmarks.model_zoo
    OTHER/bin/python -m benchmarks.model_zoo

Run it once with Keras 2 and once with Keras 3: each run saves its own results, and the
tables are written from both; `--write` writes them without measuring. Each model has a
child process, in which plain and private training alternate at an (expected) batch size
of 128. Ratios are those of CPU times, medians over the rounds. `--only` measures some
models, `--resume` those without results; both keep the results of all others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import textwrap

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import _results, _zoo_training  # noqa: E402

LONG = 'it trains some 220 models, in an environment of each Keras'

ROUNDS, PATIENCE = 5, 900
VERSIONS = (2, 3)
LONG_STEP = 10
"""Milliseconds of a plain step. In shorter steps the fixed cost of a private step
dominates."""
TOPICS = {'tabular': 'Tables and recommendation', 'vision': 'Images and video',
          'text': 'Text', 'recurrent': 'Recurrent networks and convolutions over time',
          'attention': 'Transformers and other attention',
          'hub': 'Models of KerasHub', 'applications': 'Keras Applications',
          'keras_io': 'Code examples of keras.io',
          'sequences': 'Translation, speech, state spaces, low precision',
          'generative': 'Generative models',
          'losses': 'Losses, several outputs, weights',
          'structures': 'Structures and own layers',
          'transfer': 'Fine-tuning and precisions', 'odd': 'Unusual models'}
"""Modules of tests/keras/zoo, and what the tables call them."""
KINDS = ('refused', 'failed', 'wrong')
MISSING = '–'
COLUMNS = {'slowdown': ('slowdown', '.2f'),
           'memory, MB': ('memory_above_plain_mb', '+.0f')}
"""Numbers of a model: the head of the column, the key of the results, the format."""


def measure(name: str, rounds: int) -> dict:
  """Measures a model in a child process; returns its results or how it failed."""
  command = [sys.executable, '-m', 'benchmarks.model_zoo', '--serve', name,
             '--rounds', str(rounds)]
  try:
    run = subprocess.run(command, capture_output=True, text=True,
                         timeout=PATIENCE, check=False)
  except subprocess.TimeoutExpired:
    return {'failed': f'took longer than {PATIENCE} s'}
  lines = run.stdout.strip().splitlines()
  if run.returncode or not lines:
    said = [line.strip() for line in run.stderr.splitlines() if re.search(
        r'Error\b|OOM|Input dims', line)] or run.stderr.splitlines()
    return {'failed': f'the process ended with {run.returncode}: '
                      f'{" ".join(said[-2:])}'}
  return json.loads(lines[-1])


def measure_all(topics: dict, rounds: int, found: dict) -> None:
  """Measures models, given with their topics, and saves after each."""
  for name, topic in topics.items():
    result = measure(name, rounds)
    version = result.pop('keras', None)
    print(f'{name}: {result}', flush=True)
    found['models'][name] = {'topic': topic, **result}
    if version:
      found['version'] = version
    _results.save(f'model_zoo_keras{found["keras"]}', found)


def kept(version: int) -> dict:
  """Returns the saved results for a version of Keras; without models if none."""
  return _results.load(f'model_zoo_keras{version}', {
      'keras': version, 'batch': _zoo_training.BATCH, 'models': {}})


def _results_of(found: dict, name: str) -> list[dict]:
  """Returns the results of a model under each Keras; {} where there is none."""
  return [found[version]['models'].get(name, {}) for version in VERSIONS]


def _pair(results: list[dict], key: str, shown: str) -> str:
  """Returns a number under each Keras, as one cell."""
  return ' / '.join(format(each[key], shown) if key in each else MISSING
                    for each in results)


def _by_version(words: list[str]) -> str:
  """Returns the words for both Keras; one of them where they are equal."""
  said = [f'Keras {version}: {each}' for version, each in zip(VERSIONS, words) if each]
  return next(filter(None, words)) if len({*words} - {''}) == 1 else '; '.join(said)


def _outcome(result: dict) -> str:
  """Returns the route of a model in short, or that it does not train."""
  for kind in KINDS:
    if kind in result:
      return kind
  return result.get('route', '').partition(' vectorised:')[0].replace(
      'whole model', 'whole model vectorised')


def _table(found: dict, names: list[str]) -> str:
  """Returns a table with one row per model."""
  rows = []
  for name in names:
    results = _results_of(found, name)
    rows.append([name, _by_version([_outcome(each) for each in results]),
                 *(_pair(results, key, shown) for key, shown in COLUMNS.values())])
  return _results.markdown(['model', 'route', *COLUMNS], rows)


def _names(found: dict) -> dict[str, list[str]]:
  """Returns the models of each topic, in order."""
  topics = {name: result['topic'] for version in VERSIONS
            for name, result in found[version]['models'].items()}
  return {topic: sorted((name for name, its in topics.items() if its == topic),
                        key=str.casefold) for topic in TOPICS}


def models_tables(found: dict) -> str:
  """Returns a section with a table for each topic."""
  return '\n\n'.join(f'## {TOPICS[topic]}\n\n{_table(found, names)}'
                     for topic, names in _names(found).items() if names)


def reasons(found: dict) -> str:
  """Returns the whole words of refusals, and why whole models are vectorised."""
  names = [name for each in _names(found).values() for name in each]
  parts = []
  for heading, words_of in (('Refused or failed, in the words of the error', _trouble),
                            ('Why whole models are vectorised', _whole)):
    parts.append(f'## {heading}')
    for name in sorted(names, key=str.casefold):
      results = _results_of(found, name)
      words = [' '.join(words_of(each).split()) for each in results]
      if any(words):
        # Both Keras, names of operations apart: one of them says it.
        alike = len({re.sub(r"'[^']*'", '', each) for each in words}) == 1
        said = words[-1] if alike else _by_version([
            each or (_outcome(result) if result else '')
            for each, result in zip(words, results)])
        # Indented, so that no sign in the words is taken for Markdown.
        lines = textwrap.wrap(said, 84, break_long_words=False, break_on_hyphens=False)
        parts.append(f'**{name}**\n\n' + '\n'.join(f'    {line}' for line in lines))
  return '\n\n'.join(parts)


def _trouble(result: dict) -> str:
  """Returns the words of a refusal, failure or known defect, or ''."""
  return next((result[kind] for kind in KINDS if kind in result), '')


def _whole(result: dict) -> str:
  """Returns why the whole model is vectorised, or ''."""
  return result.get('route', '').partition('whole model vectorised: ')[2]


def _summary(found: dict) -> list[tuple[str, str]]:
  """Returns what the summary says of one Keras: names and values."""
  models = found['models']
  ran = {name: each for name, each in models.items() if 'slowdown' in each}
  long = {name: each for name, each in ran.items() if each['plain_ms'] >= LONG_STEP}
  routes = [each['route'] for each in ran.values()]

  def middle(of: dict, key: str, shown: str) -> str:
    return format(statistics.median(each[key] for each in of.values()), shown)

  def worst(of: dict, key: str, shown: str) -> str:
    name = max(of, key=lambda name: of[name][key])
    return f'{of[name][key]:{shown}} ({name})'

  return [
      ('models that run', str(len(ran))),
      ('of them batched', str(sum(route == 'batched' for route in routes))),
      ('of them with layers vectorised',
       str(sum(route.startswith('vectorised') for route in routes))),
      ('of them vectorised whole', str(sum(r.startswith('whole') for r in routes))),
      ('models that are refused', str(sum('refused' in e for e in models.values()))),
      (f'median slowdown where plain steps take {LONG_STEP} ms or more',
       f'{middle(long, "slowdown", ".2f")} ({len(long)} models)'),
      ('largest of these', worst(long, 'slowdown', '.2f')),
      ('median slowdown of all', middle(ran, 'slowdown', '.2f')),
      ('largest of all', worst(ran, 'slowdown', '.2f')),
      ('median first step, times plain', middle(ran, 'first_step', '.1f')),
      ('largest first step, times plain', worst(ran, 'first_step', '.1f'))]


def summary_table(found: dict) -> str:
  """Returns a table with medians and worst cases for each version of Keras."""
  both = [_summary(found[version]) for version in VERSIONS]
  return _results.markdown(
      ['', *(f'Keras {found[version].get("version", version)}'
             for version in VERSIONS)],
      [[name, *(dict(each)[name] for each in both)] for name, _ in both[0]])


def main() -> None:
  """Measures the models for the installed Keras, and writes the tables."""
  parser = _results.parser('model_zoo', __doc__)
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  parser.add_argument('--rounds', type=int, default=ROUNDS,
                      help='rounds in which plain and private training alternate')
  parser.add_argument('--only', nargs='*', metavar='NAME', default=[],
                      help='models or topics (modules of tests/keras/zoo) to measure; '
                      'saved results of others are kept')
  parser.add_argument('--resume', action='store_true',
                      help='measure only models without saved results, or that failed')
  parser.add_argument('--write', action='store_true',
                      help='measure nothing, and write the tables from saved results')
  args = parser.parse_args()
  if args.serve:
    print(json.dumps(_zoo_training.measure(args.serve, args.rounds)))
    return
  if not args.write:
    version, topics = _zoo_training.topics()
    unknown = {*args.only} - {*topics, *TOPICS}
    if unknown:
      parser.error('Expected models or topics of the zoo for this Keras, got '
                   f'{sorted(unknown)}; topics are {", ".join(TOPICS)}.')
    found = kept(version)
    if args.only:
      topics = {name: topic for name, topic in topics.items()
                if {name, topic} & {*args.only}}
    if args.resume:
      topics = {name: topic for name, topic in topics.items()
                if 'failed' in found['models'].get(name, {'failed': ''})}
    elif not args.only:
      found['models'] = {}
    measure_all(topics, args.rounds, found)
  show({each: kept(each) for each in VERSIONS})


def show(both: dict) -> None:
  """Writes the tables from the results for both versions of Keras."""
  _results.show('model_zoo_summary', summary_table(both))
  _results.show('model_zoo', models_tables(both))
  _results.show('model_zoo_reasons', reasons(both))


if __name__ == '__main__':
  main()
