"""What noise costs: dominating pairs and the phi-function accountant."""

from tfcactus.privacy.accountant import PhiAccountant
from tfcactus.privacy.dominating import dominating_pair
from tfcactus.privacy.events import noise_event
from tfcactus.privacy.events import NoiseTableDpEvent
from tfcactus.privacy.lattice import Bounds
from tfcactus.privacy.lattice import Composition
from tfcactus.privacy.pair import DominatingPair
from tfcactus.privacy.pair import PairBounds

__all__ = [
    'Bounds', 'Composition', 'DominatingPair', 'NoiseTableDpEvent', 'PairBounds',
    'PhiAccountant', 'dominating_pair', 'noise_event',
]
