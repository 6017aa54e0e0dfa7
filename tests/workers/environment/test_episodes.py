"""Episodes turn by turn, and their replay in a worker that never saw them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roll_wire.sample_pb2 import Trajectory
from roll_workers.environment.envs import Env, Observation, Replay, Step
from roll_workers.environment.envs.frozen_lake import FrozenLake
from roll_workers.environment.episodes import ReplayDiffers, Turn, World
from roll_workers.runtime.trajectory import action_piece, sequences
from roll_workers.text import Codec

CODEC = Codec.of_model("builtin:tiny-qwen2-frozenlake", Path(), Path())
EOS = 1


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def lake(**options: Any) -> Callable[[], Env]:
    return lambda: FrozenLake(**({"size": 3, "frozen": 1.0} | options))


def world(make: Callable[[], Env] | None = None, **options: Any) -> World:
    return World(make or lake(), CODEC, **({"max_turns": 10} | options))


def said(text: str, turn: int) -> Trajectory:
    tokens = [*CODEC.encode(text), EOS]
    return Trajectory(pieces=[action_piece(tokens, [-0.5] * len(tokens), 2, turn, "stop")])


def play(of: World, *answers: str, seed: int = 1) -> tuple[Trajectory, Turn]:
    """The trajectory and the last turn of an episode with these answers."""

    async def main() -> tuple[Trajectory, Turn]:
        episode, turn = await of.reset(seed, inline)
        so_far = Trajectory()
        so_far.MergeFrom(turn.trajectory)
        for number, answer in enumerate(answers):
            assert not turn.done
            so_far.MergeFrom(said(answer, number))
            turn = await of.step(episode, so_far, inline)
            so_far.MergeFrom(turn.trajectory)
        return so_far, turn

    return asyncio.run(main())


def replay_and_step(of: World, so_far: Trajectory, answer: str) -> Turn:
    async def main() -> Turn:
        before = Trajectory()
        before.MergeFrom(so_far)
        before.MergeFrom(said(answer, len(so_far.observations) - 1))
        return await of.step(await of.replay(before, inline), before, inline)

    return asyncio.run(main())


def test_only_what_the_policy_sampled_is_masked_as_action() -> None:
    trajectory, turn = play(world(), "R", "D")
    [sequence] = sequences(trajectory)
    shown = [CODEC.backend.id_to_token(token) for token in sequence.tokens]
    masked = [token for token, own in zip(shown, sequence.action_mask, strict=True) if own]
    assert "".join(shown) == "PFFFFFFFG=R<eos>FPFFFFFFG=D<eos>FFFFPFFFG="
    assert masked == ["R", "<eos>", "D", "<eos>"]
    assert not turn.done


def test_every_reset_and_step_is_recorded() -> None:
    trajectory, _ = play(world(), "R", "=", "D", seed=11)
    seen = [(o.turn, o.action, o.text, o.reward) for o in trajectory.observations]
    assert seen == [
        (0, "", "PFFFFFFFG=", 0.0),
        (1, "R", "FPFFFFFFG=", 0.0),
        (2, "", "FPFFFFFFG=", 0.0),
        (3, "D", "FFFFPFFFG=", 0.0),
    ]
    assert all(len(o.hash) == 16 for o in trajectory.observations)
    assert json.loads(trajectory.facts["seed"]) == 11


def test_the_goal_ends_the_episode_with_the_sum_of_the_steps_rewards() -> None:
    of = world(lake(stepPenalty=0.1), format_penalty=-0.5)
    trajectory, turn = play(of, "R", "=", "R", "D", "D")
    assert turn.done
    assert list(trajectory.reward.turns) == pytest.approx([-0.1, -0.5, -0.1, -0.1, 0.9])
    assert turn.reward == trajectory.reward.value == pytest.approx(0.1)
    assert not turn.trajectory.pieces, "nothing is generated after the end"


def test_with_scorers_of_its_own_the_job_gets_no_reward_from_the_environment() -> None:
    trajectory, turn = play(world(rewards_itself=False), "R", "R", "D", "D")
    assert (turn.done, turn.reward) == (True, None)
    assert not trajectory.HasField("reward")


def test_the_turn_limit_ends_the_episode() -> None:
    trajectory, turn = play(world(max_turns=2), "L", "L")
    assert (turn.done, turn.reward) == (True, 0.0)
    assert trajectory.observations[-1].done


def test_a_full_context_ends_the_episode() -> None:
    narrow = Codec(CODEC.backend, full=lambda: None, context=30, has_chat=False)
    of = World(lake(), narrow, max_turns=10, max_new_tokens=2)
    _, turn = play(of, "L")  # 10 + 2 + 10 tokens, and room for 2 more
    assert not turn.done
    _, turn = play(of, "L", "L")
    assert turn.done


def test_the_first_valid_letter_is_the_action_unless_a_pattern_says_otherwise() -> None:
    assert play(world(), "=FRD")[0].observations[-1].action == "R"
    picky = world(action_pattern="=([LDRU])")
    assert play(picky, "R=D")[0].observations[-1].action == "D"
    assert play(picky, "RD")[0].observations[-1].action == ""


def test_a_replayed_episode_goes_on_as_if_nothing_had_happened() -> None:
    of = world(lake(frozen=0.8), format_penalty=-0.1)
    answers = ["R", "=", "D"]
    lakes = {seed: FrozenLake(size=3).reset(seed).text for seed in range(50)}
    seed = next(s for s, t in lakes.items() if "H" in t and t[1] == t[4] == t[7] == "F")
    trajectory, _ = play(of, *answers, seed=seed)
    undisturbed = play(of, *answers, "D", seed=seed)[1]
    replayed = replay_and_step(of, trajectory, "D")
    assert replayed.trajectory == undisturbed.trajectory


def test_a_validation_episode_is_replayed_on_its_held_out_lake() -> None:
    of = world(lake(frozen=0.8))

    async def main() -> None:
        for seed in range(10):
            episode, turn = await of.reset(seed, inline, validation=True)
            again = await of.replay(turn.trajectory, inline)
            assert (again.hash, again.turn) == (episode.hash, 0)

    asyncio.run(main())


def test_a_replay_that_differs_is_refused() -> None:
    trajectory, _ = play(world(), "R", "D")
    with pytest.raises(ReplayDiffers, match="turn 0"):
        replay_and_step(world(lake(size=4)), trajectory, "D")
    with pytest.raises(ReplayDiffers, match="turn 1"):
        replay_and_step(world(lake(stepPenalty=0.5)), trajectory, "D")
    trajectory.observations[2].hash = b"0" * 16
    with pytest.raises(ReplayDiffers, match="turn 2"):
        replay_and_step(world(), trajectory, "D")


class Counter:
    """Counts its steps; can't be replayed exactly because it starts where the class says."""

    replay = Replay.NONE
    start = 0

    def reset(self, seed: int, validation: bool = False) -> Observation:
        self.count = self.start
        return Observation("P" * (self.count + 1))

    def step(self, action: str) -> Step:
        self.count += 1
        return Step(Observation("P" * (self.count + 1)))


class Saved(Counter):
    replay = Replay.SNAPSHOT

    def snapshot(self) -> bytes:
        return str(self.count).encode()

    def restore(self, state: bytes) -> Observation:
        self.count = int(state)
        return Observation("P" * (self.count + 1))


def test_an_environment_without_replay_starts_again() -> None:
    trajectory, _ = play(world(Counter), "R")
    with pytest.raises(ReplayDiffers, match="replay: None"):
        replay_and_step(world(Counter), trajectory, "R")


def test_a_snapshot_takes_the_place_of_the_recorded_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trajectory, _ = play(world(Saved), "R", "R")
    monkeypatch.setattr(Saved, "start", 7)  # a replay of the actions would differ
    turn = replay_and_step(world(Saved), trajectory, "R")
    assert turn.trajectory.observations[0].text == "PPPP"
    trajectory.blobs[-1].inline = b"5"
    with pytest.raises(ReplayDiffers, match="turn 2"):
        replay_and_step(world(Saved), trajectory, "R")
