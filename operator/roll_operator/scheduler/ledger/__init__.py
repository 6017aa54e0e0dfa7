"""The durable record of a job: metadata in a database, payloads in files beside it.

Invariant: a commit is all or nothing, and payloads are on disk before the commit that refers to them.
`sqlite` is the embedded default; another database has the same door: `open`, `commit`, `groups_of`.
"""

from roll_operator.scheduler.ledger.segments import SegmentStore
from roll_operator.scheduler.ledger.sqlite import (
    LedgerBusy,
    LedgerError,
    LedgerTaken,
    SqliteLedger,
)

__all__ = ["LedgerBusy", "LedgerError", "LedgerTaken", "SegmentStore", "SqliteLedger"]
