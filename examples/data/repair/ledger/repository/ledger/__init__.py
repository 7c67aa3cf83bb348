"""Who has paid how much."""

from ledger.accounts import balances
from ledger.lines import read
from ledger.showing import report

__all__ = ["balances", "read", "report"]
