"""What all tests share: random tests that say the same on every machine, however slow it is; the fast tests
first, then those on a real API server, then those on a real cluster.

`HYPOTHESIS_PROFILE=search make test` looks in new places instead.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support import real
from support.s3 import S3Server

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

REAL: dict[str, Callable[[], str]] = {
    "object_store": real.no_object_store,
    "api_server": real.no_api_server,
    "cluster": real.no_cluster,
    "ends_the_cluster": real.no_cluster,
}
LEFT_OUT = pytest.StashKey[list[str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In order; what cannot run here is left out, and said. In CI it fails instead, with the same words."""
    kinds = list(REAL)

    def rank(item: pytest.Item) -> int:
        return max(
            (n for n, kind in enumerate(kinds, 1) if item.get_closest_marker(kind)), default=0
        )

    items.sort(key=rank)
    if os.environ.get("CI") == "true":
        return
    missing = {n: why for n, kind in enumerate(kinds, 1) if (why := REAL[kind]())}
    left_out = [item for item in items if rank(item) in missing]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = sorted({missing[rank(item)] for item in left_out})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for why in terminalreporter.config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(why)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A real S3 server, known to every process that is started from here."""
    server = S3Server(tmp_path / "s3")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    server.start()
    yield server
    server.stop()
