"""An environment of your own: guess a secret digit; after each guess the world says where it may still be."""

import random


class Guess:
    replay = "Exact"  # the same seed and the same actions give the same episode
    action_pattern = r"\d"  # what in an answer is the action

    def __init__(self, highest=9):
        self.low, self.high = 0, highest

    def reset(self, seed):
        self.secret = random.Random(seed).randint(self.low, self.high)
        return self.text()

    def step(self, action):
        guess = int(action)
        if self.low <= guess < self.secret:
            self.low = guess + 1
        if self.secret < guess <= self.high:
            self.high = guess - 1
        right = guess == self.secret
        # observation, reward, terminated, truncated, info
        return self.text(), float(right), right, False, {}

    def text(self):
        return f"{self.low},{self.high}="  # in characters that the model's tokenizer knows
