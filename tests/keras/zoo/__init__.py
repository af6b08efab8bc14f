"""Models as people write them; see `base`."""

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
