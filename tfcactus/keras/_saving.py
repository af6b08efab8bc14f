"""Plans, noise and states of optimizers as what a config of Keras can hold."""

from __future__ import annotations

import base64
import dataclasses
import io
import os
import tempfile
from typing import Any
from typing import Dict
from typing import List
from typing import Optional

import numpy as np

from tfcactus import clipping
from tfcactus import noise as noise_lib
from tfcactus import plan as plan_lib
from tfcactus.keras.sampler import NoNoise


def noise_config(noise: Any) -> Dict[str, Any]:
  """Noise as a plain dict; tables whole, so that their digest stays.

  Args:
    noise: Any noise that can be drawn.
  """
  if isinstance(noise, NoNoise):
    return {'kind': 'none'}
  if isinstance(noise, noise_lib.Gaussian):
    return {'kind': 'gaussian', 'noise_multiplier': noise.noise_multiplier}
  if isinstance(noise, noise_lib.Laplace):
    return {'kind': 'laplace', 'scale': noise.scale}
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'noise.npz')
    noise.save(path)
    with open(path, 'rb') as file:
      return {'kind': 'table', 'digest': noise.digest, 'npz': _text(file.read())}


def noise_from(config: Dict[str, Any]) -> Any:
  """Noise from its `noise_config`.

  Raises:
    ValueError: if the config is damaged.
  """
  kind = config.get('kind')
  if kind == 'none':
    return NoNoise()
  if kind == 'gaussian':
    return noise_lib.Gaussian(config['noise_multiplier'])
  if kind == 'laplace':
    return noise_lib.Laplace(config['scale'])
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'noise.npz')
    with open(path, 'wb') as file:
      file.write(base64.b64decode(config['npz']))
    noise = noise_lib.load(path)
  if noise.digest != config['digest']:
    raise ValueError(
        f'Expected the noise table {config["digest"]} in the config, got '
        f'{noise.digest}; the file is damaged.')
  return noise


def check_format(filepath: Any, save_format: Any) -> None:
  """Refuses to save a private model in a format that does not hold all of it.

  Args:
    filepath: As `Model.save` takes it.
    save_format: As `Model.save` of Keras 2 takes it, or None.

  Raises:
    ValueError: if it is not a .keras file.
  """
  named = str(filepath).endswith('.keras') or not isinstance(
      filepath, (str, os.PathLike))
  if not named or save_format not in (None, 'keras'):
    asked = '' if save_format is None else f' with save_format={save_format!r}'
    raise ValueError(
        f"Expected a .keras file, such as save('m.keras'), got {filepath!r}"
        f'{asked}: other formats do not hold the plan and what was released. '
        "For inference alone, export('folder') writes a SavedModel of the "
        'plain model, and private_model.inner.save(...) takes any format.')


def plan_config(plan: Any) -> Optional[Dict[str, Any]]:
  """A `PrivacyPlan` (or None) as a plain dict."""
  if plan is None:
    return None
  fields = {field.name: getattr(plan, field.name)
            for field in dataclasses.fields(plan)}
  rule = fields['adaptive_clipping']
  return {**fields, 'noise': noise_config(plan.noise),
          'adaptive_clipping': None if rule is None else (
              dataclasses.asdict(rule))}


def plan_from(config: Optional[Dict[str, Any]]) -> Any:
  """A `PrivacyPlan` (or None) from its `plan_config`."""
  if config is None:
    return None
  fields = dict(config)
  rule = fields['adaptive_clipping']
  return plan_lib.PrivacyPlan(**{
      **fields, 'noise': noise_from(fields['noise']),
      'adaptive_clipping': None if rule is None else (
          clipping.AdaptiveClipping(**rule))})


def arrays_config(arrays: List[np.ndarray]) -> str:
  """Arrays as text."""
  buffer = io.BytesIO()
  np.savez_compressed(buffer, *arrays)
  return _text(buffer.getvalue())


def arrays_from(text: str) -> List[np.ndarray]:
  """Arrays from their `arrays_config`."""
  with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as found:
    return [found[f'arr_{i}'] for i in range(len(found.files))]


def _text(data: bytes) -> str:
  return base64.b64encode(data).decode('ascii')
