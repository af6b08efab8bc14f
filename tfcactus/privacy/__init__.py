"""What noise costs: dominating pairs and the phi-function accountant."""

from tfcactus.privacy.accountant import PhiAccountant
from tfcactus.privacy.bounds import Bounds
from tfcactus.privacy.buckets import PrivacyBucketsAccountant
from tfcactus.privacy.composition import Composition
from tfcactus.privacy.composition import Step
from tfcactus.privacy.dominating import dominating_pair
from tfcactus.privacy.events import DominatingPairDpEvent
from tfcactus.privacy.events import noise_event
from tfcactus.privacy.events import NoiseTableDpEvent
from tfcactus.privacy.events import randomized_response_event
from tfcactus.privacy.pair import DominatingPair
from tfcactus.privacy.pair import PairBounds
from tfcactus.privacy.renyi import ExtendedMomentsAccountant
from tfcactus.privacy.tcdp import TCDP
from tfcactus.privacy.tcdp_accountant import TCDPAccountant
from tfcactus.privacy.tcdp_accountant import TCDPDpEvent

__all__ = [
    'Bounds', 'Composition', 'DominatingPair', 'DominatingPairDpEvent',
    'ExtendedMomentsAccountant', 'NoiseTableDpEvent', 'PairBounds', 'PhiAccountant',
    'PrivacyBucketsAccountant', 'Step', 'TCDP', 'TCDPAccountant', 'TCDPDpEvent',
    'dominating_pair', 'noise_event', 'randomized_response_event',
]
