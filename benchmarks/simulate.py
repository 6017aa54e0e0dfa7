"""What sample-level scheduling is worth: the real decision code in virtual time.

A discrete-event simulator of engines, environments and a trainer drives the scheduler's own functions
(life cycle, admission, assignment, batching): only sockets, disks and models are left out.

What the model assumes, for the scheduler and for the baselines alike:
- a slot of an engine makes one token per tick, however many of its neighbours are busy, and takes the next
  sample at once; prompts cost nothing. Real engines slow down as they fill, which narrows all gains;
- lengths are log-normal (median 2,000, cap 32,000), half of the variance belongs to the prompt, and every
  scheme sees lengths of the same law;
- training takes a fixed time per batch, 30 % of a synchronous step (generation : training = 70 : 30 is the
  published split), on devices of its own. The barrier uses these devices in turns: that alone allows up to
  1 / 0.7 = 1.43x or 1 / 0.3 = 3.3x, whichever the bottleneck permits; the rest of a gain is the tail of
  long samples that nobody waits for;
- weights are swapped at once and a sample in flight goes on with the new ones; scoring takes no time;
- nothing fails.

The barrier fills 1,024 slots continuously within a step, so it is a good one: only its end is idle. With 64
slots an engine the synchronous step is mostly tail, and the trainer soon is the bottleneck. With half of the
slots and the same trainer both are about equal, with a quarter generation is the bottleneck. The oracle is the lower of the engines'
and the trainer's capacity: no schedule can be faster. The lockstep of agents waits for the slowest sample and
the slowest environment of every turn.

    python benchmarks/simulate.py            # the table of benchmarks/README.md, about 5 minutes
    python benchmarks/simulate.py --quick    # sigma 1.0 only
    python benchmarks/simulate.py --scale    # once with 4,096 engines: what a decision costs
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import time
from dataclasses import dataclass, replace

from roll_operator.scheduler import core, flow, presence, training
from roll_operator.scheduler.__main__ import settle_memory
from roll_operator.scheduler.lifecycle import Block, Stage
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.slots import Slots
from roll_operator.scheduler.stages import StageGraph
from roll_operator.scheduler.state import (
    Batch,
    CheckpointRow,
    JobState,
    Payload,
    Publication,
)

MEDIAN_TOKENS = 2000
CAP_TOKENS = 32_000


NOWHERE = Block(0, 0)


class NoStore:
    """Payloads are not simulated."""

    def append(self, payload: Payload) -> Block:
        return NOWHERE

    def read(self, block: Block, first: int, length: int) -> Payload:
        return b""

    def groups_of(self, batch: Batch) -> list:
        raise AssertionError("a simulated trainer never goes back")


@dataclass(frozen=True)
class Workload:
    sigma: float = 1.0
    engines: int = 16
    slots: int = 64
    groups: int = 256
    size: int = 8
    steps: int = 40
    turns: float = 1.0  # mean number of turns; 1: no agents
    train_like: int = (
        0  # slots of the engines to whose synchronous step the trainer is scaled; 0: its own
    )
    environment: float = 0.0  # median duration of an environment's step, in ticks
    seed: int = 1

    def length(self, group: int, index: int, turn: int = 0) -> int:
        """Log-normal; half of the variance belongs to the prompt."""
        z_prompt = random.Random(f"{self.seed}/{group}").gauss(0, 1)
        z_sample = random.Random(f"{self.seed}/{group}/{index}/{turn}").gauss(0, 1)
        z = (z_prompt + z_sample) / math.sqrt(2)
        median = MEDIAN_TOKENS if self.turns == 1 else MEDIAN_TOKENS / self.turns
        return max(1, min(CAP_TOKENS, round(median * math.exp(self.sigma * z))))

    def turn_count(self, group: int, index: int) -> int:
        if self.turns == 1:
            return 1
        z = random.Random(f"{self.seed}/turns/{group}/{index}").gauss(0, 1)
        return max(1, min(50, round(self.turns * math.exp(0.6 * z - 0.18))))

    def step_time(self, group: int, index: int, turn: int) -> float:
        z = random.Random(f"{self.seed}/env/{group}/{index}/{turn}").gauss(0, 1)
        return self.environment * math.exp(1.0 * z)


def makespan(jobs: list[float], slots: int) -> float:
    """Continuous filling of slots, in order."""
    free = [0.0] * slots
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


def barrier(load: Workload) -> tuple[float, float, float]:
    """(ticks per step with a batch barrier, ticks of training, tokens per step)."""
    spans, tokens = [], []
    for step in range(8):
        first = 10**6 + step * load.groups
        units = [(g, i) for g in range(first, first + load.groups) for i in range(load.size)]
        if load.turns == 1:
            lengths = [float(load.length(g, i)) for g, i in units]
            spans.append(makespan(lengths, load.engines * load.slots))
            tokens.append(sum(lengths))
            continue
        span, turn, made = 0.0, 0, 0.0
        while active := [(g, i) for g, i in units if load.turn_count(g, i) > turn]:
            lengths = [float(load.length(g, i, turn)) for g, i in active]
            span += makespan(lengths, load.engines * load.slots)
            span += max(load.step_time(g, i, turn) for g, i in active)
            made += sum(lengths)
            turn += 1
        spans.append(span)
        tokens.append(made)
    generation = statistics.fmean(spans)
    plain = generation
    if load.turns > 1:  # agents train on as many tokens as a batch of single turns
        lengths = [float(load.length(g, 0)) for g in range(load.groups * load.size)]
        plain = makespan(lengths, load.engines * load.slots)
    elif load.train_like:
        _, train, _ = barrier(replace(load, slots=load.train_like, train_like=0))
        return generation + train, train, statistics.fmean(tokens)
    # 70 : 30 is the published split of a synchronous RLVR step.
    train = plain * 3 / 7
    return generation + train, train, statistics.fmean(tokens)


def admitted_tokens(load: Workload, first: int, last: int) -> float:
    """Of the groups in the order of admission that steps first+1..last would hold if none were late.

    What those steps really trained has the same number of samples: their ratio is the bias in length.
    """
    return sum(
        load.length(group, index, turn)
        for group in range(first * load.groups + 1, last * load.groups + 1)
        for index in range(load.size)
        for turn in range(load.turn_count(group, index))
    )


@dataclass
class Outcome:
    tokens_per_tick: float
    staleness: float
    length_ratio: float
    waste: float
    trainer_idle: float
    engine_idle: float
    micros_per_transition: float
    transitions: int


def simulate(
    load: Workload, staleness: int, ahead: float, train_ticks: float, late_drop: bool = False
) -> Outcome:
    settings = Settings(
        steps=load.steps,
        groups_per_step=load.groups,
        group_size=load.size,
        max_staleness=staleness,
        run_ahead=ahead,
        no_progress=1e12,
        silence=1e12,
        graph=StageGraph(interactive=load.turns > 1, scored=load.turns == 1),
        late_drop=late_drop,
        keep_checkpoints=1,
    )
    state = JobState(settings, NoStore(), NoStore(), term=1, slots=Slots(load.groups))
    now = 0.0
    for pool, role, count, credits in (
        ("policy", "inference", load.engines, load.slots),
        ("environment", "environment", 8, 10**6),
        ("reward", "reward", 8, 10**6),
    ):
        for i in range(count):
            presence.hello(
                state,
                presence.Greeting(
                    worker=f"{role}-{i}/1",
                    pod=f"{role}-{i}",
                    pod_uid=f"{role}-{i}",
                    role=role,
                    pool=pool,
                    credits=credits,
                    data={},
                ),
                now,
            )
    presence.hello(
        state,
        presence.Greeting(worker="t/1", pod="t", pod_uid="t", role="trainer", pool="trainer"),
        now,
    )
    training.rewind(state, 1, 0, now)
    training.commit(state, 1, CheckpointRow(0, 1, "0", ""), now)
    training.publish(state, 1, Publication(0, 1, "", ()))

    events: list[tuple[float, int, object]] = []
    order = 0
    generated, trained_tokens, window_tokens = 0.0, 0.0, 0.0
    at_work, step, idle_since, idle = False, 0, 0.0, 0.0
    transitions, spent = 0, 0.0
    stale: list[float] = []
    warm, last = max(2, load.steps // 5), load.steps - 3
    began_at = (0.0, 0.0)
    running, occupied, looked = 0, 0.0, 0.0  # slots at work, their ticks since the warm-up

    def push(at: float, what: object) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (at, order, what))

    def turn() -> None:
        """Let the scheduler decide, then start what it handed out."""
        nonlocal transitions, spent, generated, running
        while True:
            clock = time.thread_time()
            core.dispatch(state, now)
            _, out = state.take()
            spent += time.thread_time() - clock
            for worker, publication in out.policies.items():
                presence.holding(state, state.workers[worker], 1, publication.number)
            instant = False
            for leases in out.assign.values():
                for lease in leases:
                    transitions += 1
                    unit = lease.unit
                    group, index = unit.key
                    if lease.stage == Stage.GENERATE:
                        ticks = load.length(group, index, lease.turn)
                        generated += ticks
                        running += 1
                        push(now + ticks, lease)
                    elif lease.stage == Stage.STEP:
                        push(now + load.step_time(group, index, lease.turn), lease)
                    else:
                        finish(lease)
                        instant = True
            if not (instant or out.policies):
                return

    def finish(lease: object) -> None:
        nonlocal spent
        worker = state.workers[lease.worker]
        unit = lease.unit
        generates = lease.stage == Stage.GENERATE
        ends = lease.stage == Stage.SCORE
        done = lease.stage == Stage.STEP and (lease.turn + 1 >= load.turn_count(*unit.key))
        clock = time.thread_time()
        flow.result(
            state,
            worker,
            group=unit.group.id,
            index=unit.index,
            lease=lease.id,
            stage=lease.stage,
            turn=lease.turn,
            payload=b"",
            now=now,
            tokens=load.length(*unit.key, lease.turn) if generates else 0,
            oldest=lease.floor if generates else None,
            newest=state.published if generates else None,
            reward=0.5 if ends or done else None,
            done=done,
            resident=lease.stage in (Stage.RESET, Stage.STEP) and not done,
        )
        spent += time.thread_time() - clock

    turn()
    while step < load.steps:
        if not at_work:
            clock = time.thread_time()
            batch = training.acquire(state, 1, step + 1, now) or (
                core.dispatch(state, now) or training.acquire(state, 1, step + 1, now)
            )
            spent += time.thread_time() - clock
            if batch is not None:
                idle += now - idle_since
                at_work = True
                push(now + train_ticks, batch)
                stale.append(batch.staleness)
                turn()
        if not events:
            raise AssertionError("nothing left to happen: a deadlock")
        now, _, what = heapq.heappop(events)
        occupied += running * (now - looked)
        looked = now
        if isinstance(what, Batch):
            step += 1
            at_work = False
            trained_tokens += what.tokens
            window_tokens += what.tokens if warm < step <= last else 0
            training.report(state, 1, step, "{}", now)
            training.publish(state, 1, Publication(step, 1, "", ()))
            if step % 5 == 0:
                training.commit(state, 1, CheckpointRow(step, 1, str(step), ""), now)
            idle_since = now
            if step == warm:
                began_at = (now, trained_tokens)
                idle = occupied = 0.0
        else:
            running -= what.stage == Stage.GENERATE
            if what.unit.lease is what:
                finish(what)
        turn()
    span = now - began_at[0]
    return Outcome(
        tokens_per_tick=(trained_tokens - began_at[1]) / span,
        engine_idle=1 - occupied / (span * load.engines * load.slots),
        staleness=statistics.fmean(stale[warm:]),
        length_ratio=window_tokens / (admitted_tokens(load, warm, last) or math.nan),
        waste=1 - trained_tokens / generated,
        trainer_idle=idle / span,
        micros_per_transition=spent / max(1, transitions) * 1e6,
        transitions=transitions,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="sigma 1.0 only")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--scale", action="store_true", help="4,096 engines, once")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settle_memory()
    rows = []
    if args.scale:
        load = Workload(engines=4096, groups=16384, size=8, steps=4)
        _, train, _ = barrier(Workload(engines=64, groups=256, steps=4))
        got = simulate(load, 3, 1.5, train)
        print(
            f"4,096 engines x 64 slots: {got.transitions:,} transitions, "
            f"{got.micros_per_transition:.1f} us of CPU each"
        )
        return
    print(
        f"{'workload':<22}{'S':>3}{'A':>5}  {'x barrier':>9} {'of oracle':>9} {'stale':>6} "
        f"{'length':>7} {'waste':>6} {'engines idle':>12} {'trainer idle':>12} {'us/transition':>13}"
    )
    for name, load in workloads(args.quick):
        if args.only not in name:
            continue
        step, train, tokens = barrier(load)
        base = tokens / step
        oracle = min(load.engines * load.slots, tokens / train)
        for staleness, ahead in ((0, 0.0), (1, 1.0), (2, 2.0), (3, 1.5)):
            got = simulate(load, staleness, ahead, train)
            row = {
                "workload": name,
                "S": staleness,
                "A": ahead,
                "speedup": got.tokens_per_tick / base,
                "oracle": got.tokens_per_tick / oracle,
                **vars(got),
            }
            rows.append(row)
            print(
                f"{name:<22}{staleness:>3}{ahead:>5}  {row['speedup']:>8.2f}x "
                f"{row['oracle']:>9.1%} {got.staleness:>6.2f} "
                f"{got.length_ratio:>7.3f} {got.waste:>6.1%} {got.engine_idle:>12.1%} "
                f"{got.trainer_idle:>12.1%} {got.micros_per_transition:>13.1f}",
                flush=True,
            )
    if args.json:
        print(json.dumps(rows))


def workloads(quick: bool) -> list[tuple[str, Workload]]:
    plain = [(f"sigma {s}", Workload(sigma=s)) for s in ((1.0,) if quick else (0.6, 1.0, 1.3))]
    # The trainer of the full fleet, but a half or a quarter of its slots.
    half, quarter = Workload(slots=32, train_like=64), Workload(slots=16, train_like=64)
    agents = Workload(sigma=1.0, turns=8.0, environment=100.0, groups=128, steps=20)
    return [
        *plain,
        ("sigma 1.0, 1/2 slots", half),
        ("sigma 1.0, 1/4 slots", quarter),
        ("agents, 8 turns", agents),
    ]


if __name__ == "__main__":
    main()
