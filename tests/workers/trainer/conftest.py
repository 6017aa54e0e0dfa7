"""`trainer_world.py` beside this file is imported by name under --import-mode=importlib."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from trainer_world import Scheduler


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 that is made once."""
    from roll_workers.builtin.models import CHARSETS, tiny_qwen2

    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_qwen2(CHARSETS["tiny-qwen2"], folder)
    return folder


@pytest.fixture
def schedulers(tmp_path: Path) -> Iterator[Callable[..., Scheduler]]:
    """Makes schedulers, each with a storage of its own; they and their workers end with the test."""
    played: list[Scheduler] = []

    def make(name: str, world: int = 1) -> Scheduler:
        played.append(Scheduler(tmp_path / name, world))
        return played[-1]

    yield make
    for each in played:
        each.stop()


@pytest.fixture
def scheduler(schedulers: Callable[..., Scheduler]) -> Scheduler:
    return schedulers("run")
