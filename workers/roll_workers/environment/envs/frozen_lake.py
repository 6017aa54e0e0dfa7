"""FrozenLake from gymnasium: cross the ice from the top left corner to the goal without falling in.

The compact text is made for tiny models: one character per cell, rows one after the other, `P` where the
player stands, then `=`; an action is one of L D R U. The words are for models that read English.
Equal seeds give equal maps and, on slippery ice, equal slips.
"""

from __future__ import annotations

from typing import Literal

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from roll_workers.environment.envs import InvalidAction, Observation, Replay, Step
from roll_workers.errors import UserError

ACTIONS = {"L": 0, "D": 1, "R": 2, "U": 3}
_SEEDS = 2**31  # gymnasium's random maps take 32 bits

_RULES = (
    "You walk on a frozen lake. P is you, F is ice, H is a hole, G is the goal. "
    "Answer with one letter: L (left), D (down), R (right) or U (up).\n"
)


class FrozenLake:
    replay = Replay.EXACT
    action_pattern = "[LDRU]"

    def __init__(
        self,
        size: int = 4,
        frozen: float = 0.8,
        slippery: bool = False,
        stepPenalty: float = 0.0,
        render: Literal["compact", "words"] = "compact",
    ) -> None:
        if not 2 <= size <= 16:
            raise UserError(f"frozenLake: size is {size}, expected 2 to 16")
        if not 0 < frozen <= 1:
            raise UserError(f"frozenLake: frozen is {frozen}, expected a share in (0, 1]")
        if render not in ("compact", "words"):
            raise UserError(f"frozenLake: render is {render!r}, expected 'compact' or 'words'")
        self.size, self.frozen, self.slippery = size, frozen, slippery
        self.step_penalty, self.render = stepPenalty, render
        self._cells = ""
        self._env: FrozenLakeEnv | None = None

    def reset(self, seed: int) -> Observation:
        rows = generate_random_map(size=self.size, p=self.frozen, seed=seed % _SEEDS)
        self._cells = "".join(rows).replace("S", "F")
        self._env = FrozenLakeEnv(desc=rows, is_slippery=self.slippery)
        position, _ = self._env.reset(seed=seed % _SEEDS)
        text = self._text(int(position))
        if self.render == "words":
            text = _RULES + text
        return Observation(text, facts={"map": rows})

    def step(self, action: str) -> Step:
        assert self._env is not None, "step before reset"
        if action not in ACTIONS:
            raise InvalidAction(action)
        position, reward, ended, _, _ = self._env.step(ACTIONS[action])
        return Step(
            Observation(self._text(int(position))), float(reward) - self.step_penalty, bool(ended)
        )

    def _text(self, position: int) -> str:
        cells = self._cells[:position] + "P" + self._cells[position + 1 :]
        if self.render == "compact":
            return cells + "="
        rows = [cells[i : i + self.size] for i in range(0, len(cells), self.size)]
        return "\n".join(rows)
