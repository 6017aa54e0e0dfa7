"""FrozenLake from gymnasium: cross the ice from the top left corner to the goal without falling in.

Invariants: equal seeds give equal lakes and, on slippery ice, equal slips; a lake is held out for validation
or it is not, whatever the seed: the split follows a hash of the map, training never sees a held-out one and
validation sees no other.

Two texts are made for tiny models, one character per cell: `compact` is the whole lake, row by row, with `P`
where the player stands; `local` is what lies above, to the left, to the right and below, `#` being the shore
(the goal is where the right and the lower shore meet). Both end with `=`; an action is one of L D R U.
`words` is for models that read English.
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from roll_workers.environment.envs import InvalidAction, Observation, Replay, Step
from roll_workers.errors import UserError

Render = Literal["compact", "local", "words"]

ACTIONS = {"L": 0, "D": 1, "R": 2, "U": 3}
_AROUND = ((-1, 0), (0, -1), (0, 1), (1, 0))
_SEEDS = 2**31  # gymnasium's random maps take 32 bits
_DRAWS = 2000  # of a lake that belongs to the wanted part, before there seems to be none

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
        render: Render = "compact",
        heldOut: float = 0.2,
    ) -> None:
        if not 2 <= size <= 16:
            raise UserError(f"frozenLake: size is {size}, expected 2 to 16")
        if not 0 < frozen <= 1:
            raise UserError(f"frozenLake: frozen is {frozen}, expected a share in (0, 1]")
        if render not in get_args(Render):
            raise UserError(
                f"frozenLake: render is {render!r}, expected one of {', '.join(get_args(Render))}"
            )
        if not 0 <= heldOut < 1:
            raise UserError(f"frozenLake: heldOut is {heldOut}, expected a share in [0, 1)")
        self.size, self.frozen, self.slippery = size, frozen, slippery
        self.step_penalty, self.render, self.held_out = stepPenalty, render, heldOut
        self._cells = ""
        self._env: FrozenLakeEnv | None = None

    def reset(self, seed: int, validation: bool = False) -> Observation:
        rows = self._lake(seed, validation)
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

    def _lake(self, seed: int, validation: bool) -> list[str]:
        for draw in range(_DRAWS):
            # Far steps: neighbouring seeds of a job share no draw.
            rows = generate_random_map(
                size=self.size, p=self.frozen, seed=(seed + draw * 1_000_003) % _SEEDS
            )
            if self.held_out == 0 or is_held_out(rows, self.held_out) == validation:
                return rows
        part = "to hold out" if validation else "to train on"
        raise UserError(
            f"frozenLake: size {self.size} and frozen {self.frozen:g} leave no lake {part}: choose a larger "
            "size, or heldOut: 0, where validation uses the lakes of training"
        )

    def _text(self, position: int) -> str:
        if self.render == "local":
            return self._seen_from(*divmod(position, self.size))
        cells = self._cells[:position] + "P" + self._cells[position + 1 :]
        if self.render == "compact":
            return cells + "="
        rows = [cells[i : i + self.size] for i in range(0, len(cells), self.size)]
        return "\n".join(rows)

    def _seen_from(self, row: int, column: int) -> str:
        return "".join(self._cell(row + down, column + right) for down, right in _AROUND) + "="

    def _cell(self, row: int, column: int) -> str:
        inside = 0 <= row < self.size and 0 <= column < self.size
        return self._cells[row * self.size + column] if inside else "#"


def is_held_out(rows: list[str], share: float) -> bool:
    """A lake without holes never is: it is the commonest one, and crossing it proves little."""
    if not any("H" in row for row in rows):
        return False
    digest = hashlib.blake2b("/".join(rows).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64
