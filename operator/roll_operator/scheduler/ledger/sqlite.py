"""The ledger in SQLite: WAL, `synchronous=FULL`, one writer.

Invariant: `open` gives a scheduler exactly the state that its last commit described, in time
proportional to what is in flight, under a term that no scheduler had before. Groups that a lower
maxStaleness leaves no step are at their end then, and so is a validation that the job asks for no more.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from roll_operator.scheduler import leases, tallies, validation
from roll_operator.scheduler.groups import end_stale
from roll_operator.scheduler.ledger import rows
from roll_operator.scheduler.ledger.segments import SEGMENT_BYTES, Run, SegmentStore
from roll_operator.scheduler.lifecycle import (
    SAMPLE_ENDS,
    Altered,
    BatchState,
    Cause,
    Group,
    GroupState,
    SampleState,
    Stage,
)
from roll_operator.scheduler.record import PART_BYTES
from roll_operator.scheduler.roster import Roster
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.slots import Slots
from roll_operator.scheduler.state import (
    COMPLETE,
    COUNTED,
    Batch,
    CheckpointRow,
    JobState,
    Publication,
    TrainerSeat,
    Validation,
    Writes,
)
from roll_operator.scheduler.training import REMEMBERED_VERSIONS, go_on

SCHEMA = Path(__file__).with_name("schema.sql")
FORMAT = 4
STATEMENTS = {
    "groups": "INSERT OR REPLACE INTO groups VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
    "units": "INSERT OR REPLACE INTO units VALUES (?,?,?,?,?,?,?,?)",
    "parts": "INSERT INTO parts VALUES (?,?,?,?,?)",
    "failures": "INSERT INTO failures VALUES (?,?,?,?,?,?,?,?,?,?)",
    "batches": "INSERT OR REPLACE INTO batches VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    "steps": "INSERT OR REPLACE INTO steps VALUES (?,?,?,?,?)",
    "versions": "INSERT OR REPLACE INTO versions VALUES (?,?,?,?,?)",
    "checkpoints": (
        "INSERT OR REPLACE INTO checkpoints(lineage, step, path, digest, term, at)"
        " VALUES (?,?,?,?,?,?)"
    ),
    "dropped_checkpoints": "UPDATE checkpoints SET retained = 0 WHERE path = ?",
    "validations": "INSERT OR REPLACE INTO validations VALUES (?,?,?,?,?,?,?)",
    "abandoned": (
        f"UPDATE batches SET state = {int(BatchState.ABANDONED)} WHERE lineage <= ? AND step > ?"
        f" AND state != {int(BatchState.POISON)}"
    ),
}


META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"

# Tables whose rows are pruned, with the column that names the group.
FOLDED = (
    ("parts", "group_id"),
    ("units", "group_id"),
    ("failures", "group_id"),
    ("groups", "id"),
)
# One execution inserts up to so many rows.
MOST_ROWS = 256
# A transaction larger than that is written in part before its end.
CACHE_BYTES = 16 << 20
BUSY_MS = 2_000


class LedgerError(RuntimeError):
    """The ledger cannot be used; the message says why and what to do."""


class LedgerBusy(LedgerError):
    """Another process writes to it. The next start waits for that one's end."""


class LedgerTaken(LedgerError):
    """A newer scheduler has opened it: this one may write no more."""


class SqliteLedger:
    """All belongs to the scheduler's thread, but for `finish`, which waits for the disk in a thread of its own.

    sqlite3 gives the interpreter's lock away for each execution. A thread that competes for it with the one that
    decides would wait up to 5 ms each time to get it back.
    """

    def __init__(
        self, folder: Path, settings: Settings, *, sync: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        read_only: bool = False,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._term = 0  # of the scheduler that this is; 0: none
        self._rows: Counter[str] = Counter()  # ever added to each table of tallies.KEYS
        self._written: Counter[str] = Counter()  # what the ledger says of them
        self._meta: set[str] = (
            set()
        )  # rows of `meta` that are known to be there; none: look at the disk
        self._path = folder / "ledger.sqlite"
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        self._db = connect(self._path, read_only=read_only)
        if not read_only:
            self._db.execute(f"PRAGMA synchronous={'FULL' if sync else 'OFF'}")
            self._db.execute(f"PRAGMA cache_size=-{CACHE_BYTES >> 10}")
            self._db.executescript(SCHEMA.read_text())
        self.store = SegmentStore(folder / "segments", segment_bytes=segment_bytes)
        self.reader = connect(self._path, read_only=True)

    def close(self) -> None:
        self._db.close()
        self.reader.close()
        self.store.close()

    def commit(self, writes: Writes, payloads: list[Run]) -> None:
        """Make it durable, from one thread."""
        self.begin(writes, payloads)
        self.finish(writes, payloads)

    def begin(self, writes: Writes, payloads: list[Run]) -> None:
        """Every row into one transaction, which `finish` ends. Up to CACHE_BYTES nothing is written here.

        There is one writer: who finds another waits for it no longer than BUSY_MS, and who finds a newer one's
        term writes nothing (LedgerTaken).
        """
        if payloads:
            writes.meta["tail"] = payloads[-1].end
        self._begin()
        with self._undone() as db:
            self._check_owner(db)
            self._recall_rows()
            for name, statement in STATEMENTS.items():
                batch = getattr(writes, name)
                if not batch:
                    continue
                if name in tallies.KEYS:
                    self._count_new(name, batch)
                if statement.startswith("INSERT"):
                    _insert(db, statement, batch)
                else:
                    db.executemany(statement, batch)
            self._write_meta(writes.meta)
            if isinstance(raised := writes.meta.get("term"), int):  # a lost ledger is gone on from
                self._term = raised

    def finish(self, writes: Writes, payloads: list[Run]) -> None:
        """Payloads first, then the transaction that refers to them."""
        dead: set[int] = set()
        with self._undone() as db:
            if payloads:
                self.store.write(payloads)
            if writes.fold is not None:
                dead = _fold(db, *writes.fold, self.store.segments())
            db.execute("COMMIT")
        if dead:
            self.store.drop(dead)

    def _recall_rows(self) -> None:
        """At the start, and after a transaction that came to nothing."""
        if not self._meta:
            found = self._db.execute("SELECT value FROM meta WHERE key = 'rows'").fetchone()
            self._rows = Counter(json.loads(found[0]) if found else {})
            self._written = self._rows.copy()

    def _count_new(self, table: str, batch: Iterable[Sequence[object]]) -> None:
        places = tallies.KEYS[table]
        where = " AND ".join(f"{column} = ?" for column in places)
        query = f"SELECT count(*) FROM {table} WHERE {where}"
        for key in {tuple(row[place] for place in places.values()) for row in batch}:
            (known,) = self._db.execute(query, key).fetchone()
            self._rows[table] += 1 - known

    def _write_meta(self, values: Mapping[str, object]) -> None:
        new = values.keys() - self._meta
        if new:
            self._meta |= new
            self._count_new("meta", [(key,) for key in new])
        batch = [(key, json.dumps(value)) for key, value in values.items()]
        if self._rows != self._written:
            batch.append(("rows", json.dumps(self._rows)))
            self._written = self._rows.copy()
        _insert(self._db, META, batch)

    def _begin(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            why = "another process writes to it; end that one, a job has one scheduler"
            raise LedgerBusy(f"{self._path}: {why}") from error

    def _check_owner(self, db: sqlite3.Connection) -> None:
        (found,) = db.execute("SELECT value FROM meta WHERE key = 'term'").fetchone()
        if int(found) != self._term:
            raise LedgerTaken(
                f"{self._path}: a newer scheduler has opened it (term {found}, this one has {self._term}); "
                "this one ends, a job has one scheduler"
            )

    @contextmanager
    def _undone(self) -> Iterator[sqlite3.Connection]:
        """The open transaction, which leaves nothing behind if it can't be ended."""
        try:
            yield self._db
        except BaseException:
            self._meta.clear()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def groups_of(self, batch: Batch) -> list[Group]:
        return rows.read_groups(self.reader, self._settings.graph, batch.group_ids)

    def samples_between(self, step: int, later: int) -> int:
        """Of the batches of the steps between, as far as they count."""
        (found,) = self.reader.execute(
            "SELECT total(samples) FROM batches WHERE step > ? AND step < ? AND state NOT IN (?, ?)",
            (step, later, int(BatchState.POISON), int(BatchState.ABANDONED)),
        ).fetchone()
        return int(found)

    def has_failed(self, group: int, lease: int) -> bool:
        """Whether the lease ended as a failure that was counted."""
        query = "SELECT 1 FROM failures WHERE group_id = ? AND lease = ?"
        return self.reader.execute(query, (group, lease)).fetchone() is not None

    def batches(self) -> list[Batch]:
        return [read_batch(row) for row in self.reader.execute("SELECT * FROM batches")]

    def checkpoints(self) -> list[CheckpointRow]:
        return read_checkpoints(self.reader)

    def open(self, now: float) -> JobState:
        """Begin a new term on what the last commit left."""
        self._begin()  # an older scheduler may just be ending: this waits for it, and reads what it left
        with self._undone() as db:
            meta = read_meta(db)
            check_format(meta, self._path)
            if meta and "term" not in meta:
                # Terms would begin again, and with them the numbers of leases.
                raise LedgerError(f"{self._path}: it says no term; see `roll ledger verify`")
            self._term = term = int(meta.get("term", 0)) + 1
            name = str(meta.get("ledger") or uuid.uuid4().hex)
            self._recall_rows()
            self._write_meta({"term": term, "format": FORMAT, "ledger": name})
            db.execute("COMMIT")
        self._db.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        self.store.resume(*meta.get("tail", (0, 0)))
        state = JobState(
            settings=self._settings,
            store=self.store,
            archive=self,
            term=term,
            ledger=name,
            opened=now,
            last_progress=now,
            slots=Slots(self._settings.groups_per_step),
        )
        try:
            _restore(state, self._db, meta, now)
        except Altered as error:
            raise LedgerError(f"{self._path}: {error}; see `roll ledger verify`") from error
        return state


def _insert(db: sqlite3.Connection, statement: str, batch: Sequence[tuple[object, ...]]) -> None:
    """Many rows: as few executions as it takes."""
    first = 0
    while left := len(batch) - first:
        count = min(MOST_ROWS, 1 << left.bit_length() - 1)  # few sizes: each is prepared once
        db.execute(_many(statement, count), list(chain.from_iterable(batch[first : first + count])))
        first += count


@cache
def _many(statement: str, count: int) -> str:
    head, values = statement.split(" VALUES ")
    return f"{head} VALUES {','.join([values] * count)}"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    try:
        target = f"{path.resolve().as_uri()}?mode=ro" if read_only else str(path)
        db = sqlite3.connect(
            target, uri=read_only, isolation_level=None, check_same_thread=False, timeout=30
        )
        if not read_only:
            db.execute("PRAGMA journal_mode=WAL")
        return db
    except sqlite3.OperationalError as error:
        raise LedgerError(f"{path}: cannot be opened: {error}") from error


def read_meta(db: sqlite3.Connection) -> dict[str, Any]:
    """By name; what the row "progress" holds stands beside the other rows."""
    meta: dict[str, Any] = {
        key: json.loads(value) for key, value in db.execute("SELECT key, value FROM meta")
    }
    meta.update(meta.get("progress", {}))
    return meta


def check_format(meta: dict[str, Any], path: Path) -> None:
    found = meta.get("format", FORMAT)
    if found != FORMAT:
        raise LedgerError(
            f"{path}: written by another release (format {found}, this one has {FORMAT}); "
            "use that release, or start over with --fresh"
        )


def read_batch(row: Sequence[Any]) -> Batch:
    (lineage, step, edition, state, ids, samples, tokens, digest, previous, oldest, attempts, reward,
     staleness, formed, acquired, bound) = row  # fmt: skip
    return Batch(
        lineage=lineage, step=step, edition=edition, state=BatchState(state),
        group_ids=struct.unpack(f"<{len(ids) // 8}q", ids), samples=samples, tokens=tokens,
        digest=digest, previous=previous, oldest=oldest, attempts=attempts, reward=reward,
        staleness=staleness, formed=formed, acquired_term=acquired, max_staleness=bound,
    )  # fmt: skip


def read_checkpoints(db: sqlite3.Connection) -> list[CheckpointRow]:
    """The retained ones, oldest first."""
    query = "SELECT step, lineage, path, digest FROM checkpoints WHERE retained ORDER BY step"
    return [CheckpointRow(*row) for row in db.execute(query)]


def _restore(state: JobState, db: sqlite3.Connection, meta: dict[str, Any], now: float) -> None:
    for name in (*COUNTED, "ledger_lost"):
        if name in meta:
            setattr(state, name, meta[name])
    state.filtered = {
        int(step): n for step, n in state.filtered.items()
    }  # JSON knows no other keys
    # An error ended the run, not the job: whoever starts it again has changed something.
    state.counters = Counter(meta.get("counters", {}))
    state.roster = Roster.restored(meta)
    for split in ("train", "validation"):
        if known := meta.get(f"data.{split}"):
            size, digest = known
            state.data[split] = (size, digest)
    if "trainer" in meta:
        term, attempt, world, members = meta["trainer"]
        state.trainer = TrainerSeat(
            term, attempt, {int(rank): name for rank, name in members.items()}, world=world
        )
    state.checkpoints = read_checkpoints(db)
    # One more than are remembered: a step may be reported again whose version is still the one of before.
    newest = "SELECT * FROM versions WHERE lineage = ? AND number <= ? ORDER BY number DESC LIMIT ?"
    most = (state.lineage, state.reported, REMEMBERED_VERSIONS + 1)
    for _, number, term, digest, places in db.execute(newest, most):
        if term == state.vouched_term or number <= state.vouched_from:
            state.versions[number] = Publication(
                number, state.lineage, digest, tuple(places.split("\n"))
            )
    for number in list(state.versions)[REMEMBERED_VERSIONS:]:
        del state.versions[number]
    for lineage, version, count, done, total, scored, finished in db.execute(
        "SELECT * FROM validations WHERE groups >= 0 ORDER BY lineage, version"
    ):
        state.validations.append(
            Validation(version, lineage, count, done, total, scored, bool(finished))
        )
    for row in db.execute(
        "SELECT * FROM batches WHERE step >= ? AND state NOT IN (?, ?)",
        (state.folded, int(BatchState.POISON), int(BatchState.ABANDONED)),
    ):
        batch = read_batch(row)
        state.batches[batch.step] = batch
    ids = [i for (i,) in db.execute("SELECT id FROM groups WHERE state IN (1, 3) ORDER BY id")]
    for group in rows.read_groups(db, state.settings.graph, ids):
        _resume_group(state, group, now)
    end_stale(state, now)
    if not state.settings.validation_every:
        validation.abandon(state, now, Cause.SURPLUS)
        if state.data.pop("validation", None):  # others may be held out later
            state.writes.meta["data.validation"] = None
    complete = state.finished == COMPLETE
    other_terms = state.ending and state.ending_terms != state.settings.filter_terms
    if state.reported < state.settings.steps and (complete or other_terms):
        go_on(state, now)
    if ids:
        state.resume_at = now + state.settings.reconnect_grace


def _resume_group(state: JobState, group: Group, now: float) -> None:
    state.groups[group.id] = group
    if group.validation is None:
        state.slots.place(group, group.step, group.slot)
    if group.state is not GroupState.OPEN:
        return
    if group.lead is not None and group.lead.state is SampleState.WAITING:
        state.pre_policy += len(group.kept)
        leases.enqueue(state, group.lead, now)
        return
    for unit in group.units:
        if unit.state is SampleState.WAITING:
            if unit.stage == Stage.RESET:
                state.pre_policy += 1
            leases.enqueue(state, unit, now)


def _fold(db: sqlite3.Connection, lineage: int, step: int, segments: set[int]) -> set[int]:
    """Replace the rows of pruned groups by their ids, ends and a chained digest."""
    ended = (
        int(GroupState.FILTERED), int(GroupState.FAILED), int(GroupState.CANCELLED),
        int(GroupState.EVALUATED),
    )  # fmt: skip
    groups = db.execute(
        f"SELECT id, size, seal, state, cause FROM groups WHERE (state = {int(GroupState.BATCHED)}"
        f" AND step <= ?) OR (state IN {ended} AND ended_step <= ?) ORDER BY id",
        (step, step),
    ).fetchall()
    ids = [group[0] for group in groups]
    these = json.dumps(ids)
    mine = "IN (SELECT value FROM json_each(?))"
    ends = _ends(db, groups, these) | tallies.of_groups(db, f"WHERE group_id {mine}", [these])
    (packed,) = db.execute(
        f"SELECT total(length(packed)) FROM parts WHERE group_id {mine}", (these,)
    ).fetchone()
    for table, key in FOLDED:
        db.execute(f"DELETE FROM {table} WHERE {key} {mine}", (these,))
    last = db.execute("SELECT digest FROM folds ORDER BY id DESC LIMIT 1").fetchone()
    row = (
        lineage, step, struct.pack(f"<{len(ids)}q", *ids), sum(group[1] for group in groups),
        int(packed) // PART_BYTES, json.dumps(ends), _contents(groups),
    )  # fmt: skip
    db.execute(
        "INSERT INTO folds(lineage, step, groups, samples, parts, ends, contents, digest)"
        " VALUES (?,?,?,?,?,?,?,?)",
        (*row, fold_digest(last[0] if last else b"", *row)),
    )
    used = {s for (s,) in db.execute("SELECT DISTINCT segment FROM parts")}
    return segments - used


def _ends(db: sqlite3.Connection, groups: list[Any], these: str) -> dict[str, int]:
    own: dict[int, list[tuple[SampleState, str]]] = {}
    for group, state, cause in db.execute(
        "SELECT group_id, state, cause FROM units WHERE idx >= 0"
        " AND group_id IN (SELECT value FROM json_each(?))",
        (these,),
    ):
        if SampleState(state) in SAMPLE_ENDS:
            own.setdefault(group, []).append((SampleState(state), cause))
    ends: dict[str, int] = {}
    for group, size, _, state, cause in groups:
        rows.count_ends(ends, GroupState(state), cause, size, own.get(group, ()))
    return ends


def _contents(groups: list[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for group, size, seal, _, _ in groups:
        digest.update(struct.pack("<qq", group, size))
        digest.update(seal)
    return digest.digest()


def fold_digest(previous: bytes, *row: object) -> bytes:
    return hashlib.blake2b(repr((previous, *row)).encode(), digest_size=16).digest()
