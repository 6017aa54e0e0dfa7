"""How sequences lie in the rectangles that a model takes: which share a row, which rows share a pass.

Samples of a group have the same prompt. A row is a *trunk*, the tokens that its sequences have in common,
followed by one *branch* per sequence. A branch sees the trunk and itself, never its neighbours, and its
positions go on where the trunk ends; so the trunk is computed once and every log-prob is what it would have
been alone. A row with one branch is an ordinary sequence, and needs no mask: what pads it lies to its right.

With 8 samples per prompt, 6 prompt and 4 new tokens, a pass has 960 tokens instead of 2,560.
Everything here is integer arithmetic on the batch: the same batch always lies the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roll_workers.trainer.batch import TokenBatch

Ints = npt.NDArray[np.int64]

# Padding that is cheaper than one more pass: in tokens (measured with 2 layers on CPU), or as a share.
PASS_OVERHEAD = 128
PADDING_SHARE = 0.05
SHARE = 2 * PASS_OVERHEAD  # tokens that are worth a lane of their own


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides the cost of a pass, in multiply-adds: dense work per token, attention per pair."""

    per_token: float
    per_pair: float
    vocabulary: int
    branching: bool  # whether the model's attention can be masked freely


@dataclass(frozen=True, slots=True)
class Row:
    sequences: tuple[int, ...]
    trunk: int  # tokens
    length: int  # tokens, trunk and branches


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward and backward pass."""

    input_ids: Ints  # [rows, length], padded on the right
    position_ids: Ints | None  # None: 0, 1, 2, ...
    branch: (
        Ints | None
    )  # [rows, length]: 0 trunk, 1.. branches, -1 padding; None: plain causal rows
    positions: Ints  # flat indices into [rows * length] whose logits are needed, each once
    row: Ints  # per action token: which entry of `positions` predicts it
    actions: Ints  # per action token: its index among the batch's action tokens


def micro_batches(
    batch: TokenBatch, shape: Shape, max_tokens: int, max_logits: int = 1 << 26, lanes: int = 1
) -> Iterator[MicroBatch]:
    """Cuts the batch into passes of at most `max_tokens` padded tokens and `max_logits` logits.

    `lanes` of them run at a time: passes are as many and as large as keep all lanes equally busy.
    """
    if not len(batch):
        return
    owner = batch.sequence.numpy()
    first_action = np.searchsorted(owner, np.arange(len(batch) + 1))  # among action tokens
    start = batch.action[first_action[:-1]] - batch.offsets[:-1]
    # The last action token of a sequence predicts nothing that is trained: it is no input.
    used = batch.action[first_action[1:] - 1] - batch.offsets[:-1]
    rows = _rows(batch, shape, start, used, max_tokens)
    rows.sort(key=lambda row: row.length)  # stable: equal lengths keep the batch's order
    logits_of = np.diff(first_action)
    tokens = sum(row.length for row in rows)
    lanes = min(lanes, max(tokens // SHARE, 1))
    passes = lanes * -(-tokens // (lanes * max_tokens))
    room = min(max_tokens, tokens // passes + rows[-1].length)
    for chosen in _fill(rows, logits_of, shape.vocabulary, room, max_logits):
        yield _lay_out(batch, chosen, used, first_action)


def _rows(batch: TokenBatch, shape: Shape, start: Ints, used: Ints, max_tokens: int) -> list[Row]:
    alone = [Row((s,), 0, int(used[s])) for s in range(len(batch))]
    if not shape.branching:
        return alone
    rows: list[Row] = []
    edges = np.flatnonzero(np.diff(batch.group)) + 1
    for members in np.split(np.arange(len(batch)), edges):
        trunk = _shared(batch, members, start)
        tails = used[members] - trunk
        count = _branches(shape, trunk, float(tails.mean()), len(members), max_tokens)
        if trunk == 0 or count == 1:
            rows += [alone[s] for s in members]
            continue
        for part in np.array_split(np.arange(len(members)), -(-len(members) // count)):
            rows.append(Row(tuple(members[part].tolist()), trunk, int(trunk + tails[part].sum())))
    return rows


def _shared(batch: TokenBatch, members: Ints, start: Ints) -> int:
    """Length of the common prefix before anybody's first action token."""
    shared = int(start[members].min())
    begin = batch.offsets[members]
    ahead = batch.tokens[begin[:, None] + np.arange(shared)]
    differs = np.flatnonzero((ahead != ahead[0]).any(0))
    return int(differs[0]) if differs.size else shared


def _branches(shape: Shape, trunk: int, tail: float, most: int, max_tokens: int) -> int:
    """How many branches per row are cheapest: a longer row saves trunks and pays with attention pairs."""

    def cost_per_sequence(k: int) -> float:
        length = trunk + k * tail
        pairs = length * length if k > 1 else length * length / 2
        return (length * shape.per_token + pairs * shape.per_pair) / k

    fitting = [k for k in range(1, most + 1) if k == 1 or trunk + k * tail <= max_tokens]
    return min(fitting, key=cost_per_sequence)


def _fill(
    rows: list[Row], logits_of: Ints, vocabulary: int, max_tokens: int, max_logits: int
) -> Iterator[list[Row]]:
    """Rows of similar length go together. A row that is too long on its own is a pass of its own."""
    chosen: list[Row] = []
    tokens = logits = 0
    for row in rows:
        more = int(sum(logits_of[s] for s in row.sequences)) * vocabulary
        padded = (len(chosen) + 1) * row.length
        wasted = padded - tokens - row.length
        if chosen and (
            padded > max_tokens
            or logits + more > max_logits
            or wasted > max(PASS_OVERHEAD, padded * PADDING_SHARE)
        ):
            yield chosen
            chosen, tokens, logits = [], 0, 0
        chosen.append(row)
        tokens += row.length
        logits += more
    yield chosen


def _lay_out(batch: TokenBatch, rows: list[Row], used: Ints, first_action: Ints) -> MicroBatch:
    width = max(row.length for row in rows)
    ids = np.zeros(len(rows) * width, np.int64)
    where = np.zeros_like(ids)
    branch = np.full_like(ids, -1)
    sizes = np.array([len(row.sequences) for row in rows])
    trunks = np.array([row.trunk for row in rows])
    of = np.concatenate([row.sequences for row in rows])  # sequences, in the order they lie
    row = np.repeat(np.arange(len(rows)), sizes)
    leader = np.cumsum(sizes) - sizes  # of each row: the place of its first sequence in `of`
    trunk = trunks[row]
    tail = used[of] - trunk
    ahead = np.cumsum(tail) - tail
    column = trunk + ahead - ahead[leader][row]  # where a branch begins in its row
    begin = batch.offsets[of]

    r, n = _spread(trunks)
    ids[r * width + n] = batch.tokens[begin[leader][r] + n]
    where[r * width + n] = n
    branch[r * width + n] = 0

    b, n = _spread(tail)
    place = row[b] * width + column[b] + n
    ids[place] = batch.tokens[begin[b] + trunk[b] + n]
    where[place] = trunk[b] + n
    branch[place] = (np.arange(len(of)) - leader[row] + 1)[b]

    a, n = _spread(first_action[of + 1] - first_action[of])
    actions = first_action[of][a] + n
    # The token before an action predicts it: one of the branch, or the last one of the trunk.
    before = batch.action[actions] - begin[a] - 1
    at = np.where(before < trunk[a], before, before - trunk[a] + column[a])
    positions, row_of = np.unique(row[a] * width + at, return_inverse=True)
    branching = bool((sizes > 1).any())
    return MicroBatch(
        input_ids=ids.reshape(-1, width),
        position_ids=where.reshape(-1, width) if branching else None,
        branch=branch.reshape(-1, width) if branching else None,
        positions=positions,
        row=row_of.reshape(-1),
        actions=actions,
    )


def _spread(counts: Ints) -> tuple[Ints, Ints]:
    """For counts [2, 3]: owners [0, 0, 1, 1, 1] and numbers [0, 1, 0, 1, 2]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
