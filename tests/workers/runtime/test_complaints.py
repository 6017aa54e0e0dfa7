"""Failures of user code are in the log, and do not flood it."""

import logging

import pytest
from roll_wire.session_pb2 import Unit
from roll_workers.runtime.complaints import Complaints


def test_the_first_complaint_is_told_at_once_and_the_next_ones_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    complaints = Complaints(logging.getLogger("complaints"), clock=lambda: now)
    complaints.tell(Unit(group=12, index=3), "rewards.py, line 4: RuntimeError: no")
    for index in range(7):
        now = index + 1.0
        complaints.tell(Unit(group=13, index=index), "again")
    now = 10.0
    complaints.tell(Unit(group=14, index=-1), "still")
    assert [record.getMessage() for record in caplog.records] == [
        "sample 12.3: rewards.py, line 4: RuntimeError: no",
        "group 14: still (and 7 more failures before it)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
