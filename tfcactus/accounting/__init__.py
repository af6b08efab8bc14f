"""Privacy accountants, the privacy loss of compositions, and events."""

from tfcactus.accounting import views
from tfcactus.accounting.base import (
    OneSidedAccountant,
    PairAccountant,
    TwoSidedAccountant,
)
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.composition.composition import Composition, StepLoss
from tfcactus.accounting.events import (
    AdaptedDpEvent,
    DistanceDpEvent,
    dominating_pair,
    DominatingPairDpEvent,
    noise_event,
    RandomAllocationDpEvent,
    randomized_response_event,
    SteppedDpEvent,
    ThresholdDpEvent,
    ValidationDpEvent,
)
from tfcactus.accounting.exponential import ExponentialMechanismDpEvent
from tfcactus.accounting.phi import PhiAccountant
from tfcactus.accounting.privacy_buckets import PrivacyBucketsAccountant
from tfcactus.accounting.renyi import ExtendedMomentsAccountant, RenyiAccountant
from tfcactus.accounting.run_laws import (
    BinomialRuns,
    FixedRuns,
    GeometricRuns,
    ListedRuns,
    LogarithmicRuns,
    NegativeBinomialRuns,
    PoissonRuns,
    RunLaw,
)
from tfcactus.accounting.truncated_cdp import TCDP
from tfcactus.accounting.truncated_cdp_accountant import TCDPAccountant, TCDPDpEvent
from tfcactus.accounting.tuning import SearchDpEvent
from tfcactus.noise.base import NoiseTableDpEvent
from tfcactus.pairs.continuous import continuous_pair, FunctionLaw
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds

__all__ = [
    'AdaptedDpEvent', 'BinomialRuns', 'Bounds', 'Composition', 'DistanceDpEvent',
    'DominatingPair', 'DominatingPairDpEvent', 'ExponentialMechanismDpEvent',
    'ExtendedMomentsAccountant', 'FixedRuns', 'FunctionLaw', 'GeometricRuns',
    'ListedRuns', 'LogarithmicRuns', 'NegativeBinomialRuns', 'NoiseTableDpEvent',
    'OneSidedAccountant', 'PairAccountant', 'PairBounds', 'PhiAccountant',
    'PoissonRuns', 'PrivacyBucketsAccountant', 'RandomAllocationDpEvent',
    'RenyiAccountant', 'RunLaw', 'SearchDpEvent', 'StepLoss', 'SteppedDpEvent',
    'TCDP', 'TCDPAccountant', 'TCDPDpEvent', 'ThresholdDpEvent', 'TwoSidedAccountant',
    'ValidationDpEvent', 'continuous_pair', 'dominating_pair', 'noise_event',
    'randomized_response_event', 'views',
]
