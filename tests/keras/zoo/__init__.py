"""Models as people write them; see `base`."""

from tests.keras.zoo import attention
from tests.keras.zoo import generative
from tests.keras.zoo import losses
from tests.keras.zoo import odd
from tests.keras.zoo import recurrent
from tests.keras.zoo import structures
from tests.keras.zoo import tabular
from tests.keras.zoo import text
from tests.keras.zoo import transfer
from tests.keras.zoo import vision
from tests.keras.zoo.base import ZOO

__all__ = ['ZOO', 'attention', 'generative', 'losses', 'odd', 'recurrent',
           'structures', 'tabular', 'text', 'transfer', 'vision']
