"""One privacy budget for everything that is done with a data set, kept in a file."""

from __future__ import annotations

from tfcactus.data_account.account import DataAccount
from tfcactus.data_account.book import Slot

__all__ = ['DataAccount', 'Slot']
