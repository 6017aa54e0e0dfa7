"""What travels in columns comes out as it went in, and what does not fit together is refused."""

import pytest
from roll_wire.columns import (
    ShardSample,
    pack_results,
    pack_samples,
    pack_tasks,
    unpack_results,
    unpack_samples,
    unpack_tasks,
)
from roll_wire.session_pb2 import (
    Assign,
    LeaseId,
    PolicyVersion,
    Result,
    Results,
    Task,
    Unit,
)
from roll_wire.trainer_pb2 import ShardChunk


def test_results_come_out_as_they_went_in() -> None:
    items = [
        Result(
            unit=Unit(group=n, index=n - 1), lease=LeaseId(term=3, number=n), stage="step", turn=n,
            payload=b"x" * n, tokens=n, has_reward=n == 1, reward=float("inf") if n == 1 else 0.0,
            oldest=PolicyVersion(lineage=2, number=0) if n else None,
            newest=PolicyVersion(lineage=2, number=5) if n else None,
            done=n == 2, resident=n == 0, base_tokens=n,
        )
        for n in range(3)
    ]  # fmt: skip
    packed = Results.FromString(pack_results(items).SerializeToString())
    assert unpack_results(packed) == items


def test_tasks_come_out_as_they_went_in() -> None:
    tasks = [
        Task(
            unit=Unit(group=9, index=-1), lease=LeaseId(term=1, number=(1 << 40) - 1), stage="score",
            turn=n, attempt=n + 1, min_version=n, seed=(1 << 63) + n, position=n, validation=n == 1,
            kept_tokens=n, payload=b"p" * n, no_progress_ms=60_000,
        )
        for n in range(2)
    ]  # fmt: skip
    packed = Assign.FromString(pack_tasks(tasks).SerializeToString())
    assert unpack_tasks(packed) == tasks


def test_samples_come_out_with_the_rewards_of_their_groups() -> None:
    samples = [
        ShardSample(
            (group, index), 10 * group + index, rewards[index], rewards, bytes([group, index])
        )
        for group, rewards in ((4, (0.0, 1.0)), (2, (0.5,)), (7, (0.25, 0.0, 0.75)))
        for index in range(len(rewards))
    ]
    packed = ShardChunk.FromString(pack_samples(samples).SerializeToString())
    assert unpack_samples(packed) == samples


def test_columns_of_different_lengths_are_refused() -> None:
    packed = pack_results([Result(payload=b"ab"), Result(payload=b"c")])
    packed.turns.append(1)
    with pytest.raises(ValueError, match="a column of 1 entries in a message of 2"):
        unpack_results(packed)
    tasks = pack_tasks([Task(turn=n) for n in range(2)])
    del tasks.turns[1]
    with pytest.raises(ValueError, match="a column of 1 entries in a message of 2"):
        unpack_tasks(tasks)
    packed = pack_results([Result(payload=b"ab")])
    packed.payloads = b"abc"
    with pytest.raises(ValueError, match="payloads of 2 bytes in a message of 3"):
        unpack_results(packed)


@pytest.mark.parametrize(
    ("sizes", "rewards"),
    [
        ([2], [0.0, 1.0, 0.5]),
        ([2, 1, 0], [0.0, 1.0, 0.5]),
        ([2, 1], [0.0, 1.0]),
        ([2, 1], [0.0] * 4),
    ],
)
def test_rewards_that_do_not_fit_the_groups_are_refused(
    sizes: list[int], rewards: list[float]
) -> None:
    """Given to the wrong group, or short of one, they would train without a word."""
    samples = [ShardSample((group, 0), 0, 0.0, (), b"") for group in (4, 4, 2)]
    packed = pack_samples(samples)
    packed.group_sizes[:] = sizes
    packed.group_rewards[:] = rewards
    with pytest.raises(ValueError, match=r"\d rewards of 2 groups"):
        unpack_samples(packed)
