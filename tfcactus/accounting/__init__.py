"""Privacy accountants, the privacy loss of compositions, and events."""

from tfcactus.accounting.base import OneSidedAccountant
from tfcactus.accounting.base import PairAccountant
from tfcactus.accounting.base import TwoSidedAccountant
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.composition import Composition
from tfcactus.accounting.composition.composition import StepLoss
from tfcactus.accounting.events import dominating_pair
from tfcactus.accounting.events import DominatingPairDpEvent
from tfcactus.accounting.events import noise_event
from tfcactus.accounting.events import NoiseTableDpEvent
from tfcactus.accounting.events import RandomAllocationDpEvent
from tfcactus.accounting.events import randomized_response_event
from tfcactus.accounting.events import SteppedDpEvent
from tfcactus.accounting.exponential import ExponentialMechanismDpEvent
from tfcactus.accounting.moments import ExtendedMomentsAccountant
from tfcactus.accounting.phi import PhiAccountant
from tfcactus.accounting.privacy_buckets import PrivacyBucketsAccountant
from tfcactus.accounting.renyi import RenyiAccountant
from tfcactus.accounting.truncated_cdp import TCDP
from tfcactus.accounting.truncated_cdp_accountant import TCDPAccountant
from tfcactus.accounting.truncated_cdp_accountant import TCDPDpEvent
from tfcactus.pairs.continuous import continuous_pair
from tfcactus.pairs.continuous import FunctionLaw
from tfcactus.pairs.dominating_pair import DominatingPair
from tfcactus.pairs.dominating_pair import PairBounds

__all__ = [
    'Bounds', 'Composition', 'DominatingPair', 'DominatingPairDpEvent',
    'ExponentialMechanismDpEvent', 'ExtendedMomentsAccountant', 'FunctionLaw',
    'NoiseTableDpEvent', 'OneSidedAccountant', 'PairAccountant', 'PairBounds',
    'PhiAccountant', 'PrivacyBucketsAccountant', 'RandomAllocationDpEvent',
    'RenyiAccountant', 'StepLoss', 'SteppedDpEvent', 'TCDP', 'TCDPAccountant',
    'TCDPDpEvent', 'TwoSidedAccountant', 'continuous_pair', 'dominating_pair',
    'noise_event', 'randomized_response_event',
]
