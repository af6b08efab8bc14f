"""A zoo of models as people write them; `base` defines an entry."""

from tests.keras.zoo import (
           attention,
           generative,
           losses,
           odd,
           recurrent,
           structures,
           tabular,
           text,
           transfer,
           vision,
)
from tests.keras.zoo.base import ZOO

__all__ = ['ZOO', 'attention', 'generative', 'losses', 'odd', 'recurrent',
           'structures', 'tabular', 'text', 'transfer', 'vision']
