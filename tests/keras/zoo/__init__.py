"""A zoo of models as people write them; `base` defines an entry."""

from tests.keras.zoo import (
           applications,
           attention,
           generative,
           hub,
           keras_io,
           losses,
           odd,
           recurrent,
           sequences,
           structures,
           tabular,
           text,
           transfer,
           vision,
)
from tests.keras.zoo.base import ZOO

__all__ = ['ZOO', 'applications', 'attention', 'generative', 'hub', 'keras_io',
           'losses', 'odd', 'recurrent', 'sequences', 'structures', 'tabular', 'text',
           'transfer', 'vision']
