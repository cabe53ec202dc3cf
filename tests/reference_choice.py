"""The choice of a policy for each session in plain Python, from the words of the docs.

It shares no code with the package: draws are those of `reference_random`, sums are fractions.
"""

from collections import Counter
from fractions import Fraction

import reference_random

PURPOSE = 5


class Choices:
    """What a fleet knows of its policies, each in each pool, and of the open sessions."""

    def __init__(self, key, policies):
        self.key, self.policies = key, list(policies)
        self.won, self.learned, self.opened = Counter(), Counter(), Counter()
        self.trials = {}

    def choose(self, uid, pool):
        """The policy of a session that opens."""
        draws = [
            reference_random.beta(*self.shapes(pool, name), self.key, uid, row, PURPOSE)
            for row, name in enumerate(self.policies)
        ]
        return self.policies[draws.index(max(draws))]

    def shapes(self, pool, policy):
        """alpha and beta of its posterior."""
        won, learned = self.won[pool, policy], self.learned[pool, policy]
        return float(1 + won), float(1 + learned - won)

    def open(self, session, pool, policy):
        """It was chosen for this session."""
        self.opened[pool, policy] += 1
        self.trials[session] = pool, policy, []

    def reward(self, session, reward):
        """A round of the session got this reward."""
        if session in self.trials:
            self.trials[session][2].append(Fraction(reward))

    def use(self, session, policy):
        """The session goes on under this policy."""
        if session in self.trials and self.trials[session][1] != policy:
            del self.trials[session]

    def close(self, session, told=None):
        """The session closed; `told` whether it succeeded, None if nobody said."""
        if session not in self.trials:
            return
        pool, policy, rewards = self.trials.pop(session)
        if told is None and not rewards:
            return
        mean = sum(rewards) / len(rewards) if rewards else 0
        self.learned[pool, policy] += 1
        self.won[pool, policy] += mean if told is None else int(told)
