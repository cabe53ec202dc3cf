"""Made-up runs for tuning, in which the best policy is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cellium_fast import Policy, Round, ToolCall
from cellium_fast.traces import NO_EVENT, RecordedRun

LONG = "a result that is too long to be slight, whatever it says: "
REPEATS = "rules.repeated_round.repeats"
ERRORS = "rules.repeated_error.errors"

ALONE: dict[str, Any] = {"only": [REPEATS], "folds": 0}


def only_rules(**rules: dict[str, Any]) -> Policy:
    """A policy with these rules alone, all others off, that draws nothing."""
    off = {name: {"enabled": False} for name, _ in Policy().rules if name not in rules}
    return Policy(tie_break="first", rules={**off, **rules})


# Too slow by far: made-up runs call for 4.
SLOW = only_rules(repeated_round={"repeats": 6, "slight_repeats": 254})


def run(
    name: str, rounds: str, success: bool | None, source: str = "made-up", path: str = "runs.json"
) -> RecordedRun:
    """A run with a call a round: a letter is its argument and result, a capital is an error."""
    made = [
        Round([ToolCall("look", letter.lower(), f"{LONG}{letter.lower()}", error=letter.isupper())])
        for letter in rounds
    ]
    return RecordedRun(source, Path(path), name, made, [NO_EVENT] * len(made), success=success)


def planted(
    source: str = "made-up", failing: int = 6, sound: int = 4, hasty: int = 1,
) -> list[RecordedRun]:
    """Runs for which four equal rounds are best, or three if hasty successful ones do not count.

    Failing runs repeat a round eight times; successful ones three times, which hasty ones do, or
    twice.
    """
    runs = [run(f"loop {number}", "xyaaaaaaaa", False, source) for number in range(failing)]
    runs += [run(f"hasty {number}", "xaaaybbz", True, source) for number in range(hasty)]
    runs += [run(f"good {number}", "xaaybbz", True, source) for number in range(sound)]
    return [*runs, run("unknown", "aaaaaaaaaa", None, source)]


def rotated() -> list[RecordedRun]:
    """Three sources: with and without the runs of "strict", another threshold is best."""
    strict = [run(f"s{number}", "xaaaaybbbbz", True, "strict") for number in range(3)]
    return [*planted("one"), *planted("two"), *strict, run("s", "aaaaaaaaaa", False, "strict")]
