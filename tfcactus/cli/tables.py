"""`tfcactus tables`: the shipped noise tables and their certificates."""

from __future__ import annotations

import argparse
from typing import Any

from tfcactus import _format
from tfcactus.cli import command
from tfcactus.noise import library


def _run(args: argparse.Namespace) -> None:
  rows: list[dict[str, Any]] = []
  for entry in library.entries():
    table = library.get(entry.name)
    rows.append({
        'name': entry.name, 'kind': table.kind, 'dim': table.dim,
        'noise_multiplier': table.noise_multiplier, 'monotone': table.monotone,
        **{key: table.info.get(key) for key in (
            'objective', 'lower_bound', 'gap')}, 'digest': table.digest})
  command.show(args, rows, '\n'.join([
      f'{"name":36s} {"dim":>6s} {"sigma":>9s} {"objective":>14s} '
      f'{"bound":>14s} {"gap":>8s} digest',
      *(f'{row["name"]:36s} {row["dim"]:6d} {row["noise_multiplier"]:9.6g} '
        f'{_format.upper(row["objective"], 9):>14s} '
        f'{_format.lower(row["lower_bound"], 9):>14s} '
        f'{_format.upper(row["gap"], 2):>8s} {row["digest"]}' for row in rows)]))


COMMAND = command.Command(
    'tables', 'list the noise tables that come with the package',
    command.add_json, _run)
