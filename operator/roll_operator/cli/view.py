"""What a person sees while a job runs: one live picture on a terminal, a plain line every few seconds elsewhere."""

import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from roll_api import RLJob
from roll_api.figures import figure

from roll_operator.controller.local import Snapshot
from roll_operator.plan import FailJob, Progress, Restarted, ready_count

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

PLAIN_SECONDS = 5.0
LIVE_SECONDS = 0.25
BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 48


class View(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def show(self, now: Snapshot, news: Sequence[FailJob | Restarted]) -> None: ...


def choose_view(job: RLJob, folder: Path, *, continues: bool) -> View:
    roles = ", ".join(
        f"{count} {role}"
        for role in ("trainer", "inference", "reward", "environment")
        if (count := getattr(job.spec.roles, role).replicas)
    )
    begins = "continues" if continues else "starts"
    print(
        f"{job.name} {begins}: {job.spec.steps} steps, 1 scheduler, {roles}; everything is in {folder}"
    )
    sys.stdout.flush()
    return LiveView() if sys.stdout.isatty() else PlainView()


def news_line(event: FailJob | Restarted) -> str:
    failure = event.failure
    if isinstance(event, FailJob):
        return f"{failure.pod or 'the job'} cannot go on: everything is stopped"
    when = "now" if event.wait <= 0 else f"in {event.wait:.0f} s"
    return f"{failure.pod} died ({failure.message}); restarting {event.role} {when}"


def plain_line(now: Snapshot) -> str:
    seen, status = now.progress, now.status
    if seen is None or status.phase in ("Pending", "Starting"):
        at = f", to go on from step {seen.step}" if seen is not None and seen.step else ""
        ready = f"{ready_count(now.processes)} processes ready after {now.seconds:.0f} s"
        return f"{status.phase.lower()}: {ready}{at}"
    if seen.step == 0:
        return _first_step_line(now, seen)
    reward = "-" if seen.reward is None else f"{seen.reward:.2f}"
    line = (
        f"step {seen.step}/{now.job.spec.steps} reward {reward} {figure(seen.samples_per_second, 3)} samples/s "
        f"stale {seen.staleness_max} restarts {status.restarts}"
    )
    if seen.validation is not None:
        line += f" held-out {seen.validation[1]:.2f} (step {seen.validation_step})"
    return line


def _first_step_line(now: Snapshot, seen: Progress) -> str:
    """What the first step waits for."""
    of = now.job.spec.rollout.samples_per_step
    line = f"step 0/{now.job.spec.steps}: {seen.samples.get('scored', 0)} of {of} samples scored"
    if (held := seen.held) is not None and held.seconds >= 1:
        line += f"; {held.pod} has been at the {held.stage} of one for {held.seconds:.0f} s"
    return line


class Notices:
    """Each notice of the scheduler is told once, and each time that training went back to a checkpoint."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._step = 0

    def fresh(self, now: Snapshot) -> list[str]:
        notices = now.progress.notices if now.progress else ()
        news = [notice for notice in notices if notice not in self._told]
        self._told.update(news)
        if now.progress is not None:
            if (again := self._step - now.progress.step) > 0:
                steps = "1 step" if again == 1 else f"{again} steps"
                news.append(f"the trainer is at step {now.progress.step} again: it redoes {steps}")
            self._step = now.progress.step
        return news


class PlainView:
    def __init__(self) -> None:
        self._next = 0.0
        self._last = ""
        self._notices = Notices()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, now: Snapshot, news: Sequence[FailJob | Restarted]) -> None:
        for event in news:
            print(news_line(event), flush=True)
        for notice in self._notices.fresh(now):
            print(f"note: {notice}", flush=True)
        if now.stopping and self._last != "stopping":
            self._last = "stopping"
            print("stopping: the trainer saves a checkpoint", flush=True)
        if time.monotonic() >= self._next and not now.stopping:
            self._next = time.monotonic() + PLAIN_SECONDS
            print(plain_line(now), flush=True)


class LiveView:
    """Drawn by us, a few times a second, so that no thread of the library takes time from training."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live: Live = Live(
            console=Console(highlight=False), auto_refresh=False, transient=False
        )
        self._next = 0.0
        self._rewards: dict[int, float] = {}
        self._notices = Notices()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, now: Snapshot, news: Sequence[FailJob | Restarted]) -> None:
        if now.progress is not None and now.progress.reward is not None:
            self._rewards[now.progress.step] = now.progress.reward
        for event in news:
            self._live.console.print(news_line(event), markup=False)
        for notice in self._notices.fresh(now):
            self._live.console.print(f"note: {notice}", markup=False)
        if time.monotonic() >= self._next or news:
            self._next = time.monotonic() + LIVE_SECONDS
            self._live.update(_picture(now, self._rewards), refresh=True)


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The last `width` points, or means of equal parts when there are more."""
    if not values:
        return ""
    if len(values) > width:
        cuts = [round(n * len(values) / width) for n in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in values)


def _picture(now: Snapshot, rewards: dict[int, float]) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    seen, status = now.progress, now.status
    step = seen.step if seen else 0
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    phase = "stopping" if now.stopping else status.phase
    grid.add_row(now.job.name, f"{phase}, {_minutes(now.seconds)}{_left(now, step)}")
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        f"{step}/{now.job.spec.steps}",
        ProgressBar(now.job.spec.steps, min(step, now.job.spec.steps), width=40),
    )
    grid.add_row("step", bar)
    if seen is not None:
        reward = "-" if seen.reward is None else f"{seen.reward:.3f}"
        grid.add_row("reward", f"{reward}  {sparkline([rewards[n] for n in sorted(rewards)])}")
        if seen.validation is not None:
            first, last = seen.validation
            grid.add_row("held out", f"{first:.3f} → {last:.3f} (step {seen.validation_step})")
        samples = status.samples
        grid.add_row(
            "samples",
            f"{figure(seen.samples_per_second, 3)}/s, {samples.trained} trained, {samples.in_flight} in flight",
        )
        grid.add_row("staleness", f"mean {seen.staleness_mean:.1f}, max {seen.staleness_max}")
    for role in dict.fromkeys(process.role for process in now.processes):
        grid.add_row(role, _role_line(now, role))
    return grid


def _role_line(now: Snapshot, role: str) -> "Text":
    from rich.text import Text

    colours = {"ready": "green", "starting": "yellow", "stopping": "yellow", "ended": "dim"}
    line = Text()
    for process in now.processes:
        if process.role == role:
            line.append("● ", colours.get(process.state, "red"))
            line.append(f"{process.state}  ")
    restarts = now.record.restarts.get(role, 0)
    if restarts:
        line.append(f"restarts {restarts}", "yellow")
    return line


def _left(now: Snapshot, step: int) -> str:
    if step <= 0 or now.progress is None or now.progress.samples_per_second <= 0:
        return ""
    per_step = now.job.spec.rollout.samples_per_step
    left = (now.job.spec.steps - step) * per_step / now.progress.samples_per_second
    return f", about {_minutes(left)} left" if left > 0 else ""


def _minutes(seconds: float) -> str:
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60}:{whole % 60:02d}"
