"""Packaging of tfcactus: metadata, pins, console script."""

import pathlib

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = '0.1.0'

# TensorFlow Privacy 0.9.0 imports with TensorFlow 2.14 and 2.15 only; those
# need numpy 1, and numpy 1 needs cvxpy below 1.8.
TENSORFLOW = [
    'tensorflow>=2.14,<2.16',
    'tensorflow-privacy==0.9.0',
    # Later tensorflow-metadata wants protobuf 5, which TensorFlow 2.15 refuses.
    'tensorflow-metadata<1.18',
    'tensorflow-datasets>=4.9.3; python_version >= "3.10"',
    # The last release for Python 3.9; an open range takes pip minutes there.
    'tensorflow-datasets==4.9.3; python_version < "3.10"',
    # tensorflow-datasets imports it without asking for it.
    'importlib_resources',
]
CORE = [
    'numpy>=1.23,<2',
    'scipy>=1.11',
    'cvxpy>=1.4,<1.8',
    'clarabel>=0.6',
    'attrs',
    'cryptography>=3.4',
    'dp-accounting==0.4.3',
    'scikit-learn',
    'threadpoolctl>=3',
]
PLOT = ['matplotlib>=3.5']
TEST = ['pytest>=7', 'hypothesis>=6', 'mpmath>=1.2', 'ruff>=0.4']

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
    package_data={'tfcactus.noise': ['tables/*.npz']},
    python_requires='>=3.9,<3.12',
    install_requires=CORE + TENSORFLOW,
    extras_require={'test': TEST + PLOT, 'plot': PLOT},
    entry_points={'console_scripts': ['tfcactus=tfcactus.cli:main']},
    classifiers=[
        'License :: OSI Approved :: Apache Software License',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
    ],
)
