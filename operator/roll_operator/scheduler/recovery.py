"""A lost ledger is not a lost job: it goes on from a checkpoint that only the trainer's storage knows.

Every checkpoint's manifest carries a bookmark, which its trainer stores and does not read. When a ledger that
knows no checkpoint is told to start from one, it takes the bookmark over: the data goes on where it was. The
checkpoint of step 0 may be this ledger's own, saved and not committed yet: the bookmark names its ledger. Where
checkpoints were found and none is intact, a lineage comes without a bookmark: the job starts again.

Invariant: nothing that the lost ledger gave out is taken for something of the new one. It may have gone on for a
while after the bookmark was made, so numbers go on far beyond it: terms, by which leases and trainers are
fenced, and groups, which workers that are still alive may name.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from roll_operator.scheduler.state import JobState

log = logging.getLogger(__name__)

TERMS_SKIPPED = 1_000
GROUPS_SKIPPED = 1_000_000


def bookmark(state: JobState) -> str:
    return json.dumps(
        {
            "ledger": state.ledger,
            "cursor": state.cursor,
            "next_group": state.next_group,
            "lineage": state.lineage,
            "term": state.term,
            "trainer_term": state.trainer.term,
        }
    )


def recover(state: JobState, step: int, mark: str, lineage: int) -> bool:
    """Before a rewind to `step`: whether a ledger before this one was lost. Otherwise it does nothing."""
    known: dict[str, Any] = json.loads(mark or "{}")
    own = known.get("ledger", state.ledger) == state.ledger if mark else lineage == 0
    if state.checkpoints or state.formed or (step == 0 and own):
        return False
    state.cursor = known.get("cursor", 0)
    state.next_group = known.get("next_group", 1) + GROUPS_SKIPPED
    state.lineage = max(state.lineage, lineage, known.get("lineage", 0))
    state.term = max(state.term, known.get("term", 0)) + TERMS_SKIPPED
    seat = state.trainer
    seat.term = max(seat.term, known.get("trainer_term", 0)) + TERMS_SKIPPED
    whence = f"went on from the checkpoint of step {step}"
    if step == 0 and not mark:
        whence = "started again from the model, because no checkpoint is intact"
    state.ledger_lost = (
        f"the ledger was lost: training {whence}; what happened to samples before is not on record"
    )
    state.writes.meta |= {
        "term": state.term,
        "trainer": [seat.term, seat.attempt, seat.world, seat.members],
        "first_group": state.next_group,
        "ledger_lost": state.ledger_lost,
    }
    log.warning("%s", state.ledger_lost)
    return True
