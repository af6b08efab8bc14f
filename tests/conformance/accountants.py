"""The accountants that the conformance tests cover, a line each."""

from __future__ import annotations

import functools
from typing import Callable

from tests.conformance.pure_dp_accountant import PureDPAccountant
from tfcactus.accounting import (
    ExtendedMomentsAccountant,
    PhiAccountant,
    PrivacyBucketsAccountant,
    RenyiAccountant,
    TCDPAccountant,
)
from tfcactus.accounting.base import PairAccountant

ACCOUNTANTS: dict[str, Callable[..., PairAccountant]] = {
    'phi': PhiAccountant,
    'renyi': RenyiAccountant,
    'extended moments': ExtendedMomentsAccountant,
    'privacy buckets': functools.partial(PrivacyBucketsAccountant, buckets=1 << 11),
    'truncated CDP': TCDPAccountant,
    'pure DP': PureDPAccountant,
}
