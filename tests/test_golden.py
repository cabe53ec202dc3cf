"""The `cellium` policy against sessions recorded with the original control loop.

`data/golden-sessions.jsonl.gz` holds 40 of them; CELLIUM_GOLDEN may name the file with all 400.
"""

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cellium_fast import Fleet, Policy, Round, RoundBatch, ToolCall

SAMPLE = Path(__file__).parent / "data" / "golden-sessions.jsonl.gz"
EXACT = {
    "stuck_iterations": "stuck_iterations",
    "cycle": "cycle",
    "output_repeats": "output_repeats",
    "plateau": "is_plateau",
    "making_progress": "is_making_progress",
}
DOUBLE = {
    "progress_score": "progress_score",
    "progress_trend": "progress_trend",
    "progress_trend_raw": "progress_trend_raw",
    "context_ratio": "context_saturation",
    "repetition_score": "repetition_score",
    "error_rate": "error_rate",
    "empty_rate": "empty_rate",
    "result_quality": "result_quality",
}


@pytest.fixture(scope="module")
def recorded():
    path = Path(os.environ.get("CELLIUM_GOLDEN") or SAMPLE)
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def golden_fleet():
    return Fleet(policies={"cellium": Policy.preset("cellium", tie_break="first")})


def compare(found, action, candidates, expected, where):
    """One decision against the recorded one."""
    for name, recorded_name in EXACT.items():
        assert found[name] == expected[recorded_name], (where, name)
    for name, recorded_name in DOUBLE.items():
        assert found[name] == pytest.approx(expected[recorded_name], abs=1e-9), (where, name)
    # The progress history is kept in single precision.
    confidence = expected["trend_confidence"]
    assert found["trend_confidence"] == pytest.approx(confidence, abs=1e-6), where
    assert [code for code in range(5) if candidates >> code & 1] == expected["candidates"], where
    assert action == expected["action"], where


def columns(rounds):
    calls = [call for given in rounds for call in given["calls"]]
    return RoundBatch(
        call_offsets=np.cumsum([0] + [len(given["calls"]) for given in rounds], dtype=np.int64),
        call_tool=np.array([call["tool"] + 1 for call in calls], np.uint64),
        call_signature=np.array([call["signature"] for call in calls], np.uint64),
        call_flags=np.array([call["error"] + 2 * call["empty"] for call in calls], np.uint8),
        call_size=np.array([call["size"] for call in calls], np.uint32),
        text=np.array([given["output"] + 1 for given in rounds], np.uint64),
        context_tokens=np.array([given["context_tokens"] for given in rounds], np.int64),
    )


def test_all_live_sessions_in_one_batch(recorded):
    fleet = golden_fleet()
    ids = fleet.open(
        len(recorded),
        context_limit=[session["context_limit"] for session in recorded],
        round_limit=[session["max_rounds"] for session in recorded],
    )
    actions = Counter()
    for t in range(max(len(session["rounds"]) for session in recorded)):
        live = [i for i, session in enumerate(recorded) if t < len(session["rounds"])]
        rounds = [recorded[i]["rounds"][t] for i in live]
        decisions = fleet.step(ids[live], columns(rounds))
        features = [
            dict(zip(decisions.features.dtype.names, row, strict=True))
            for row in decisions.features.tolist()
        ]
        actions.update(decisions.action.tolist())
        for place, i in enumerate(live):
            where = f"session {i}, round {t + 1}"
            reward = rounds[place]["before"]["reward"]
            assert float(decisions.reward[place]) == pytest.approx(reward, abs=1e-7), where
            if t + 1 < len(recorded[i]["rounds"]):
                expected = recorded[i]["rounds"][t + 1]["before"]
                candidates = int(decisions.candidates[place])
                compare(features[place], decisions.action[place], candidates, expected, where)
    assert set(actions) == set(range(5)), "the sample lost an action"


def as_object(given):
    """The same round as objects. A text of blanks is EMPTY and keeps its size."""
    calls = [
        ToolCall(
            str(call["tool"]),
            result=(" " if call["empty"] else "x") * call["size"],
            error=call["error"],
            signature=call["signature"],
        )
        for call in given["calls"]
    ]
    return Round(calls, text=f"text {given['output']}", context_tokens=given["context_tokens"])


def test_one_session_at_a_time(recorded):
    fleet = golden_fleet()
    for i, session in enumerate(recorded):
        limits = {"context_limit": session["context_limit"], "round_limit": session["max_rounds"]}
        with fleet.session(str(i), **limits) as handle:
            for t, given in enumerate(session["rounds"]):
                where = f"session {i}, round {t + 1}"
                before, decision = handle.decision, given["before"]
                features = before.features._asdict()
                candidates = sum(action.mask for action in before.candidates)
                compare(features, before.action, candidates, decision, where)
                reward = handle.step(as_object(given)).reward
                assert reward == pytest.approx(decision["reward"], abs=1e-7), where
