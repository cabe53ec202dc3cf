"""The built-in population in plain Python, written from docs/simulator.md; no code is shared.

Numbers come from the TOML file, random numbers from `reference_random`.
"""

from __future__ import annotations

import math
from typing import Any

from reference_random import block_bits

STATES = [
    "working", "slow", "looping_same", "looping_changing", "failing_recovers", "failing_stays",
    "polling", "context_growth", "false_summit",
]
ACTIONS = ["continue", "retry", "redirect", "compress", "terminate"]
LIMIT = 128_000
PURPOSE = 127
TROUBLE = 2**32


def draws(seed: int, agent: int, round: int) -> list[float]:
    """The four random numbers of an agent in a round."""
    bits = block_bits(seed, agent, round, PURPOSE, 0)
    return [(bits >> shift & 0xFFFFFFFF) / 2**32 for shift in (96, 64, 32, 0)]


class Agent:
    def __init__(self, tables: dict[str, Any], seed: int, number: int) -> None:
        self.reactions, self.rates = tables["reactions"], tables["rates"]
        self.seed, self.number = seed, number
        which, goal, right, _ = draws(seed, number, 0)
        profiles = list(self.rates["profiles"].values())
        total = math.fsum(profile["share"] for profile in profiles)
        running = 0.0
        for profile in profiles:
            running += profile["share"]
            if which < running / total:
                break
        self.profile = profile
        self.left = profile["goals"][int(10 * goal)]
        self.right = right < profile["right"]
        self.state = "working"
        self.tokens = self.rates["tokens_at_start"]
        self.round = self.since = self.looks = 0

    def play(self, action: str) -> tuple[str, dict[str, Any]]:
        """How things stand after the next round, and the round."""
        self.round += 1
        move, trouble, kind, spread = draws(self.seed, self.number, self.round)
        self._react(action, move, trouble, kind, spread)
        quarter = 4 * spread
        fraction = quarter - math.floor(quarter)
        profile = self.profile
        size = profile["tokens"] * (0.5 + spread)
        if self.state == "context_growth":
            size *= self.rates["growth"]
        self.tokens += int(size)
        shown = {
            "calls": 1, "tool": 1 + math.floor(quarter), "signature": self.round,
            "result": self.round, "flags": 0, "size": 40 + int(2000 * fraction),
            "text": self.round, "tokens": self.tokens,
        }
        gives_up = self.state != "working" and move >= 1 - self.rates["giving_up"][self.state]
        if self.tokens >= LIMIT or gives_up:
            return "failed", {**shown, "calls": 0}      # there is no call any more
        if self.state in ("working", "slow", "context_growth"):
            return self._work(kind, spread, fraction, shown), shown
        self._show(shown)
        return "running", shown

    def _react(
        self, action: str, move: float, trouble: float, kind: float, spread: float
    ) -> None:
        reactions = self.reactions[self.state]
        told = reactions[action]
        if action != "continue":
            self.left += told["cost"]
        if action == "compress":
            self.tokens = int(self.tokens * self.rates["left_by_compression"])
        reached = self.state
        if move < told["out"]:
            reached = "working"
        elif move < told["out"] + told["worse"]:
            reached = reactions["worse_into"]
        elif self.state == "working":
            running = 0.0
            for name in STATES[1:8]:
                running += self.profile["entering"][name]
                if trouble < running:
                    reached = name
                    break
        if reached == self.state:
            return
        if self.state == "false_summit":
            self.left += self.rates["rework"]
            self.right = kind < self.rates["right_after_rework"]
        self.state, self.since, self.looks = reached, self.round, int(8 * spread)

    def _work(self, kind: float, spread: float, fraction: float, shown: dict[str, Any]) -> str:
        talk = self.profile["talk"]
        productive = True
        if self.tokens > self.rates["crowded_from"] * LIMIT:
            room = 1 - self.tokens / LIMIT
            productive = fraction * (1 - self.rates["crowded_from"]) < room
        if kind < talk:
            shown["calls"] = 0
        elif kind < talk + (1 - talk) * self.profile["error"]:
            shown.update(flags=1, size=100)
            productive = False
        if self.state == "slow":
            shown.update(size=12, result=TROUBLE + 8 * self.since + self.round % 3)
            productive = productive and kind >= 1 - self.rates["slow_pace"]
        self.left -= int(productive)
        if self.left > 0:
            return "running"
        if self.right:
            return "succeeded"
        self.state, self.since, self.looks = "false_summit", self.round, int(8 * spread)
        return "running"

    def _show(self, shown: dict[str, Any]) -> None:
        same = TROUBLE + 8 * self.since
        even = self.looks % 2 == 0
        if self.state == "false_summit":
            shown["calls"] = 0
            if even:
                shown["text"] = same
        if self.state in ("looping_same", "failing_recovers", "polling"):
            shown["signature"] = same
        if self.state in ("looping_same", "looping_changing", "failing_recovers"):
            shown["result"] = same
        if self.state in ("failing_recovers", "failing_stays"):
            shown.update(flags=1, size=100)
        if self.state == "failing_recovers" and self.looks == 0:
            shown["flags"] = 1 + 4
        if self.state == "failing_stays":
            if even:
                shown["signature"] = same
            if self.looks < 6:
                shown["result"] = same
        if self.state == "polling":
            shown["tool"] = 5
            if even:
                shown["result"] = same
