"""Packaging of tfcactus: metadata, requirements, extras, console script.

The core (noise, design, accounting, releases, the command line) needs numpy and
what builds on it. It never brings TensorFlow, so that it installs next to
whichever TensorFlow is there already. The extras are named after what they are
for. Where two packages disagree about a third, as TensorFlow 2.15 and 2.21 do
about numpy, the range here is wide, and pip takes what fits.
"""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r"^__version__ = '(.*)'$",
    (ROOT / 'tfcactus/__init__.py').read_text(encoding='utf-8'), re.M).group(1)

CORE = [
    'numpy>=1.23,<3',
    'scipy>=1.11',
    'cvxpy>=1.4',
    'clarabel>=0.6',
    'attrs>=22',
    'cryptography>=3.4',
    # TensorFlow Privacy 0.9.0 pins 0.4.3, which 0.6 of Python 3.10 replaces.
    'dp-accounting>=0.4.3,<0.7',
    'threadpoolctl>=3',
]
TRAINING = [
    'tensorflow>=2.14,<2.22',
    # Keras 3.0 to 3.4 do not add up gradients of replicas.
    'keras!=3.0.*,!=3.1.*,!=3.2.*,!=3.3.*,!=3.4.*',
]
# It asks for no later Python than 3.11, and its optimizers for no later
# TensorFlow than 2.15 (its queries, which is all tfcactus needs, run on any).
TENSORFLOW_PRIVACY = [
    'tensorflow-privacy==0.9.0; python_version < "3.12"',
    'tensorflow>=2.14,<2.16; python_version < "3.12"',
]
# What the scripts under training/ load, in a checkout.
DATASETS = [
    'tensorflow-datasets>=4.9.3; python_version >= "3.10"',
    # The last release for Python 3.9; an open range takes pip minutes there.
    'tensorflow-datasets==4.9.3; python_version < "3.10"',
    # Later ones import what protobuf 4 lacks, which TensorFlow up to 2.17 asks
    # for, and leave a tensorflow_datasets that imports but has no load(). From
    # Python 3.12 on pip must take those that go with TensorFlow 2.20 and later;
    # with 2.16 to 2.19 there, add "tensorflow-metadata<1.18" by hand: no marker
    # can tell, and training.datasets says so.
    'tensorflow-metadata<1.18; python_version < "3.12"',
    # tensorflow-datasets imports it without asking for it.
    'importlib_resources',
    'scikit-learn',
]
PLOT = ['matplotlib>=3.5']
# TensorFlow asks for it up to 2.20 by itself.
TENSORBOARD = ['tensorboard>=2.14']
TEST = ['pytest>=7', 'pytest-xdist>=3', 'hypothesis>=6', 'mpmath>=1.2', 'pandas>=1.5',
        'ruff>=0.4', 'mypy>=1.8', 'nbclient>=0.8', 'ipykernel>=6']
# KerasHub, whose models the tests train where it is installed. An extra of its own,
# since no marker can say which TensorFlow pip takes: KerasHub asks for Keras 3.15 and,
# by tensorflow-text, for TensorFlow 2.20 or later.
HUB = ['keras-hub>=0.32; python_version >= "3.11"']
# What `make docs` builds the site by, in a checkout.
DOCS = ['mkdocs>=1.6,<2', 'mkdocs-material>=9.5,<10', 'mkdocstrings[python]>=0.26,<2',
        'nbformat>=5.7']

setuptools.setup(
    name='tfcactus',
    version=VERSION,
    description=('Differentially private Keras training with optimally '
                 'designed noise and an exact accountant: a TensorFlow '
                 'Privacy plug-in.'),
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=setuptools.find_packages(include=['tfcactus', 'tfcactus.*']),
    package_data={'tfcactus': ['py.typed'], 'tfcactus.noise': ['tables/*.npz']},
    python_requires='>=3.9',
    install_requires=CORE,
    extras_require={
        'training': TRAINING,
        'tensorflow-privacy': TRAINING + TENSORFLOW_PRIVACY,
        'datasets': DATASETS,
        'plot': PLOT,
        'tensorboard': TENSORBOARD,
        'docs': DOCS,
        'test': TEST + PLOT,
        'hub': HUB,
    },
    entry_points={'console_scripts': ['tfcactus=tfcactus.cli.main:main']},
    classifiers=[f'Programming Language :: Python :: 3.{minor}'
                 for minor in range(9, 14)],
)
