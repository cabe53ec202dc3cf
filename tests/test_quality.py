"""The quality of decisions on recorded runs: every detector and every figure, counted by hand."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from cli_runs import EXAMPLES, chat_run, write
from scipy.stats import binomtest
from trace_files import RECORDINGS, needs_recordings
from typer.testing import CliRunner

from cellium_fast import Action, Decisions, Policy, Round, ToolCall, lockstep
from cellium_fast._rules import RULES
from cellium_fast.quality import FIRED, Detector, Judge, JudgedRuns, Quality, Share, judge
from cellium_fast.replay import RunName, read_files, replay
from cellium_fast.traces import (
    COMPACTION,
    NO_EVENT,
    USER_MESSAGE,
    Problem,
    RecordedRun,
    find_files,
)

FILE = Path("runs.json")
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "quality.py"
# No tie-break is drawn, so that no run depends on another.
FIRST = Policy(tie_break="first")


def made_round(calls: str) -> Round:
    """A round with a call for each letter, which is its argument; capitals are errors."""
    return Round(
        [ToolCall("look", letter.lower(), f"saw {letter}", error=letter.isupper())
         for letter in calls],
        text=None if calls else "thinking",
    )


def run(
    name: str, rounds: Iterable[str], success: bool | None = None, user_before: Sequence[int] = (),
    compacted_before: Sequence[int] = (), source: str = "made-up",
) -> RecordedRun:
    """A run of `made_round`s; events come before the rounds with these numbers, from 1."""
    made = [made_round(calls) for calls in rounds]
    events = [NO_EVENT] * len(made)
    for number in user_before:
        events[number - 1] = USER_MESSAGE
    for number in compacted_before:
        events[number - 1] = COMPACTION
    return RecordedRun(source, FILE, name, made, events, success=success)


def fired(detector: Detector, *runs: RecordedRun) -> list[tuple[int, int]]:
    """For each run the first round in which the detector fired, and how many rounds it did."""
    found = judge(runs).fired[detector]
    return [(int(one["first"]), int(one["rounds"])) for one in found]


# --- detectors -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("rounds", "three", "five"), [
    ("aa", (0, 0), (0, 0)),
    ("aaa", (3, 1), (0, 0)),
    ("aaaaab", (3, 3), (5, 1)),
    ("aabaab", (0, 0), (0, 0)),
    ("baaacaaaa", (4, 3), (0, 0)),
    (["aa", "a", "b"], (2, 1), (0, 0)),         # parallel calls count in their order
    (["aaab"], (1, 1), (0, 0)),                 # one of a round's calls is enough
    (["ba", "ab", "a"], (0, 0), (0, 0)),
    (["aaaaaa", "a", "ba"], (1, 2), (1, 2)),
    (["a", "", "a", "", "", "a"], (6, 1), (0, 0)),      # a round without a call ends no row
    ("aAa", (3, 1), (0, 0)),                    # the results do not matter
    ([], (0, 0), (0, 0)),
    (["", ""], (0, 0), (0, 0)),
])
def test_equal_calls(
    rounds: Iterable[str], three: tuple[int, int], five: tuple[int, int]
) -> None:
    one = run("a", rounds)
    assert fired(Detector.EQUAL_CALLS_3, one) == [three]
    assert fired(Detector.EQUAL_CALLS_5, one) == [five]


@pytest.mark.parametrize(("rounds", "expected"), [
    ("AAAA", (0, 0)),
    ("ABCDE", (5, 1)),                          # any errors
    ("ABCDEFgABCDE", (5, 3)),
    ("ABaCDEF", (0, 0)),
    (["AB", "CDE"], (2, 1)),
    (["ABCDEf", "A"], (1, 1)),
    (["A", "BC", "", "DE", "F"], (4, 2)),
    ([], (0, 0)),
])
def test_five_errors(rounds: Iterable[str], expected: tuple[int, int]) -> None:
    assert fired(Detector.ERRORS_5, run("a", rounds)) == [expected]


def test_a_user_message_begins_a_new_count() -> None:
    assert fired(
        Detector.EQUAL_CALLS_3,
        run("a", "aaaa", user_before=[3]), run("b", "aaaaa", user_before=[3]),
        run("c", "aaaa", compacted_before=[3]),
        run("d", ["aa", "", "a", "a"], user_before=[2]),    # it came before a round without a call
        run("e", "aaa", user_before=[1]),
    ) == [(0, 0), (5, 1), (3, 2), (0, 0), (3, 1)]
    assert fired(
        Detector.ERRORS_5,
        run("a", "AAAAAA", user_before=[4]), run("b", "ABCDEFGH", user_before=[4]),
    ) == [(0, 0), (8, 1)]


def test_a_run_does_not_go_on_in_the_next() -> None:
    runs = [run("a", "aA"), run("b", ""), run("c", "aAA"), run("d", "AA")]
    assert fired(Detector.EQUAL_CALLS_3, *runs) == [(0, 0), (0, 0), (3, 1), (0, 0)]
    assert fired(Detector.ERRORS_5, *runs) == [(0, 0)] * 4


def test_policies_fire_by_candidates_and_by_the_action_chosen() -> None:
    # Error after error: from the fourth on retry and redirect are candidates; "first" takes retry.
    rules = {name: {"enabled": name == "failure_chain"} for name in RULES}
    policy = Policy.preset("cellium", tie_break="first", rules=rules)
    judged = judge([run("a", "ABCDEF", success=False)], policy)
    expected = {Detector.POLICY: (4, 3), Detector.POLICY_CHOSEN: (0, 0)}
    for detector, numbers in expected.items():
        found = judged.fired[detector][0]
        assert (found["first"], found["rounds"]) == numbers
    assert judged.first_rules(Detector.POLICY, success=False) == {"failure_chain": 1}
    assert judged.first_rules(Detector.POLICY, success=True) == {}
    assert judged.first_rules(Detector.EQUAL_CALLS_3, success=False) == {}


def test_the_preset_is_judged_beside_any_policy() -> None:
    runs = mixed_runs(40)
    never = Policy(rules={name: {"enabled": False} for name in RULES})
    judged, preset = judge(runs, never), judge(runs, Policy.preset("cellium"))
    assert not judged.fired[Detector.POLICY]["first"].any()
    for detector, same in (
        (Detector.CELLIUM, Detector.POLICY), (Detector.CELLIUM_CHOSEN, Detector.POLICY_CHOSEN),
    ):
        assert judged.fired[detector].tolist() == preset.fired[same].tolist()
        assert judged.fired[detector]["first"].any()


def test_all_detectors_against_plain_loops() -> None:
    runs = mixed_runs(80)
    flags: dict[tuple[str, Detector], list[bool]] = {}

    def take(names: Sequence[RunName], decisions: Decisions) -> None:
        for name, decision in zip(names, decisions, strict=True):
            for detector, actions in (
                (Detector.POLICY, decision.candidates), (Detector.POLICY_CHOSEN, [decision.action]),
            ):
                flag = Action.REDIRECT in actions or Action.TERMINATE in actions
                flags.setdefault((name.run, detector), []).append(flag)

    judging = Judge(seed=4)
    replay(runs, seed=4, on_group=judging, on_decisions=take)
    judged = judging.judged()
    for recorded in runs:
        for detector, least, errors in (
            (Detector.EQUAL_CALLS_3, 3, False), (Detector.EQUAL_CALLS_5, 5, False),
            (Detector.ERRORS_5, 5, True),
        ):
            flags[recorded.run, detector] = plain_flags(recorded, least, errors)
    for (name, detector), expected in flags.items():
        place = [one.run for one in judged.names].index(name)
        one = judged.fired[detector][place]
        first = expected.index(True) + 1 if True in expected else 0
        assert (one["first"], one["rounds"]) == (first, sum(expected)), (name, detector)
    fires = Counter(detector for (_, detector), found in flags.items() if any(found))
    assert min(fires[one] for one in fires) > 5 and len(fires) == 5


def plain_flags(recorded: RecordedRun, least: int, errors: bool) -> list[bool]:
    row: list[str] = []
    flags = []
    for one, event in zip(recorded.rounds, recorded.events, strict=True):
        if event == USER_MESSAGE:
            row = []
        flag = False
        for call in one.calls:
            if errors:
                row = [*row, "error"] if call.error else []
            else:
                row = [*row, call.arguments] if row[-1:] == [call.arguments] else [call.arguments]
            flag = flag or len(row) >= least
        flags.append(flag)
    return flags


def mixed_runs(count: int, seed: int = 5) -> list[RecordedRun]:
    chance = np.random.default_rng(seed)
    runs = []
    for number in range(count):
        letters = "Abc" if number % 2 else "aAbc"
        rounds = [
            "".join(chance.choice(list(letters), calls, p=weights(len(letters))))
            for calls in chance.choice(4, int(chance.integers(0, 16)), p=[0.1, 0.7, 0.1, 0.1])
        ]
        users = [place for place in range(2, len(rounds) + 1) if chance.random() < 0.05]
        success = (None, True, False)[chance.integers(3)]
        source = ("x", "y")[chance.integers(2)]
        runs.append(run(str(number), rounds, success, users, source=source))
    return runs


def weights(count: int) -> list[float]:
    return [0.7, *[0.3 / (count - 1)] * (count - 1)]


# --- figures -------------------------------------------------------------------------------------
def test_figures_against_a_hand_count() -> None:
    judged = judge([
        run("caught", "aaaab", success=False),              # fires in rounds 3 and 4, 2 saved
        run("caught late", "baaa", success=False),          # in round 4, none saved
        run("missed", "abcabcab", success=False),
        run("disturbed", "aaabcd", success=True),           # in round 3, 3 lost
        run("left alone", "ab", success=True),
        run("empty", [], success=True),
        run("unlabelled", "aaaaa"),                         # in rounds 3, 4 and 5
    ])
    quality = judged.quality(Detector.EQUAL_CALLS_3)
    assert counts(quality.caught) == (2, 3)
    assert counts(quality.disturbed) == (1, 3)
    assert counts(quality.saved) == (2, 5 + 4 + 8)
    assert counts(quality.lost) == (3, 6 + 2)
    assert counts(quality.flagged) == (2 + 1 + 1 + 3, 5 + 4 + 8 + 6 + 2 + 5)
    assert quality.caught.observations == quality.disturbed.observations == 3
    assert quality.saved.observations == (5 + 4 + 8) ** 2 / (5**2 + 4**2 + 8**2)
    assert judged.outcomes() == {True: 3, False: 3, None: 1}
    five = judged.quality(Detector.EQUAL_CALLS_5)
    assert [counts(five.caught), counts(five.saved), counts(five.flagged)] == [
        (0, 3), (0, 17), (1, 30),
    ]
    assert five.caught.share == 0
    assert five.caught.interval == pytest.approx((0, 3.8415 / (3 + 3.8415)), abs=1e-4)
    assert judged.quality(Detector.ERRORS_5).flagged.share == 0


def counts(share: Share) -> tuple[int, int]:
    return share.count, share.total


def test_only_unlabelled_runs() -> None:
    quality = judge([run("a", "aaa"), run("b", "ab")]).quality(Detector.EQUAL_CALLS_3)
    for share in (quality.caught, quality.disturbed, quality.saved, quality.lost):
        assert (share.count, share.total, share.share, share.interval) == (0, 0, None, None)
    assert counts(quality.flagged) == (1, 5)


def test_runs_without_rounds_and_no_runs_at_all() -> None:
    quality = judge([run("a", [], success=False)]).quality(Detector.POLICY)
    assert counts(quality.caught) == (0, 1)
    assert quality.saved.share is quality.flagged.share is None
    judged = judge([])
    assert len(judged) == 0 and judged.by_source() == {}
    for detector in Detector:
        assert judged.fired[detector].dtype == FIRED
        assert judged.quality(detector).flagged.interval is None


def test_wilson_against_scipy() -> None:
    for total in (1, 2, 7, 84, 5_087):
        for count in {0, 1, total // 3, total - 1, total}:
            flags = [1] * count + [0] * (total - count)
            ours = Share.over_runs(flags, [1] * total).interval
            theirs = binomtest(count, total).proportion_ci(method="wilson")
            assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)
            assert ours is not None and 0 <= ours[0] <= count / total <= ours[1] <= 1
            assert (ours[0] == 0) == (count == 0) and (ours[1] == 1) == (count == total)


def test_rounds_of_a_run_are_one_observation() -> None:
    many = Share.over_runs([1] * 10, [10] * 10)
    assert many.observations == 10
    assert many.interval == Share.over_runs([1] + [0] * 9, [1] * 10).interval
    # One run outweighs all others: hardly more than one observation.
    assert Share.over_runs([0] * 11, [1_000] + [1] * 10).observations == pytest.approx(1.02, 0.01)
    assert Share.over_runs([3, 0], [5, 0]).observations == 1


def test_interval_of_a_detector_that_always_fires() -> None:
    assert Share.over_runs([1, 1], [1, 1]).interval == pytest.approx((0.3424, 1), abs=1e-4)


# --- sets of runs --------------------------------------------------------------------------------
def test_by_source_and_parts() -> None:
    judged = judge([
        run("a", "aaa", success=False, source="y"), run("b", "ab", source="x"),
        run("c", "aaaaa", success=True, source="y"),
    ])
    sources = judged.by_source()
    assert list(sources) == ["x", "y"]
    assert [name.run for name in sources["y"].names] == ["a", "c"]
    assert sources["y"].rounds.tolist() == [3, 5]
    assert sources["y"].success.tolist() == [0, 1]
    assert sources["y"].fired[Detector.EQUAL_CALLS_3]["first"].tolist() == [3, 3]
    assert len(sources["x"]) == 1 and sources["x"].success.tolist() == [-1]


def test_rules_that_fired_first() -> None:
    masks = [0b1000000001, 0b1, 0b1, 0b1000000000]      # output_loop is bit 0
    runs = np.zeros(4, FIRED)
    runs["first"], runs["rounds"], runs["rules"] = [2, 3, 0, 1], [1, 1, 0, 1], masks
    names = [RunName("x", FILE, str(number)) for number in range(4)]
    success = np.array([0, 0, 0, 1], np.int8)
    judged = JudgedRuns(names, success, np.full(4, 9), dict.fromkeys(Detector, runs))
    assert judged.first_rules(Detector.POLICY, success=False) == {
        "output_loop": 2, "prolonged_stagnation": 1,
    }
    assert judged.first_rules(Detector.POLICY, success=True) == {"prolonged_stagnation": 1}


def test_size_of_groups_changes_nothing_without_tie_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = mixed_runs(40)
    whole = judge(runs, FIRST)
    for group, chunk in ((1, 1), (30, 7)):
        with monkeypatch.context() as patch:
            patch.setattr(lockstep, "GROUP_SIZE", group)
            patch.setattr(lockstep, "CHUNK_SIZE", chunk)
            parts = judge(runs, FIRST)
        assert parts.names == whole.names and parts.rounds.tolist() == whole.rounds.tolist()
        for detector in (
            one for one in Detector if one not in (Detector.CELLIUM, Detector.CELLIUM_CHOSEN)
        ):
            assert parts.fired[detector].tolist() == whole.fired[detector].tolist()


def test_judging_changes_no_decision_and_problems_are_told() -> None:
    told: list[Problem] = []
    runs = mixed_runs(60)
    alone = replay(runs, seed=3)
    judged = replay(runs, seed=3, on_group=Judge(seed=3))
    for left, right in zip(alone.runs, judged.runs, strict=True):
        assert left.actions.tolist() == right.actions.tolist()
    assert len(judge([Problem(FILE, 3, "not JSON"), *runs], on_problem=told.append)) == 60
    assert [str(one) for one in told] == ["runs.json:3: not JSON"]


# --- real recordings -----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def recorded() -> JudgedRuns:
    return judge(read_files(find_files([RECORDINGS])))


def by_default(recorded: JudgedRuns, *sources: str) -> Quality:
    """What the default policy is worth on the runs of some formats."""
    chosen = recorded.part(np.array([name.source in sources for name in recorded.names]))
    assert len(chosen), sources
    return chosen.quality(Detector.POLICY)


@needs_recordings
def test_the_default_catches_failing_runs_and_leaves_good_ones_alone(recorded: JudgedRuns) -> None:
    quality = by_default(recorded, "intercode", "inspect")
    assert quality.caught.total > 700 and quality.disturbed.total > 800
    assert quality.caught.count >= 0.25 * quality.caught.total
    assert quality.disturbed.count <= 0.0075 * quality.disturbed.total


@needs_recordings
def test_the_default_disturbs_hardly_any_agent_that_talks_to_people(recorded: JudgedRuns) -> None:
    disturbed = by_default(recorded, "tau-bench").disturbed
    assert disturbed.total == 84 and disturbed.count <= 1


@needs_recordings
def test_the_default_leaves_long_sound_sessions_alone(recorded: JudgedRuns) -> None:
    flagged = by_default(recorded, "pi-mono").flagged
    assert flagged.total > 700 and flagged.count == 0


# --- the script ----------------------------------------------------------------------------------
@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What runs the script in this process."""
    monkeypatch.setenv("COLUMNS", "160")
    command = typer.Typer()
    command.command()(runpy.run_path(str(SCRIPT))["main"])
    return lambda *arguments: CliRunner().invoke(command, list(map(str, arguments)))


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    return write(
        tmp_path / "made_up.jsonl", chat_run("loop", ["same"] * 7, success=False),
        chat_run("good", ["same"] * 6, success=True), chat_run("short", ["one"], success=False),
        chat_run("wrong", ["one", "two"], success=False),
    )


def test_script_lists_evidence_disturbed_and_missed_runs(
    recordings: Path, script: Callable[..., Any]
) -> None:
    done = script(recordings, "--missed", 1, "--policy", "cellium")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("policy 1 33.3 6.1-79.2 1 100.00") for line in lines)
    assert "output_loop 1 1" in lines
    assert "Successful runs disturbed: 1" in lines
    assert f"openai-chat {recordings}:good, 6 rounds, round 5: " in " ".join(lines)
    assert "Failing runs never flagged, the longest: 1" in lines
    assert lines[-1] == f"openai-chat {recordings}:wrong, 2 rounds"


def test_script_as_json_with_sources_chosen_on(
    recordings: Path, script: Callable[..., Any]
) -> None:
    done = script(
        recordings, EXAMPLES, "--choose", "openai-chat", "--missed", 5, "--json",
        "--policy", "cellium",
    )
    assert done.exit_code == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    assert {"intercode", "openai-chat", "swe-agent"} <= set(value["sources"])
    assert value["chosen_on"] == value["sources"]["openai-chat"]
    halves = [value[half]["runs"] for half in ("chosen_on", "checked_on")]
    assert min(halves) > 3 and value["total"]["runs"] == sum(halves)
    assert value["evidence"]["output_loop"]["successful"] == 1
    assert [(one["run"], one["first"]) for one in value["disturbed"]] == [("good", 5)]
    assert "output_loop" in value["disturbed"][0]["rules"]
    assert [one["run"] for one in value["missed"][:2]] == ["wrong", "short"]
    table = script(recordings, EXAMPLES, "--choose", "openai-chat").stdout
    assert "chosen on" in table and "checked on" in table


def test_script_runs_as_a_program(recordings: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(recordings)], capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Successful runs disturbed: 0" in done.stdout


def test_script_refuses(
    recordings: Path, tmp_path: Path, script: Callable[..., Any]
) -> None:
    done = script(recordings, "--choose", "nonsense")
    assert done.exit_code == 2
    assert "--choose: wanted one of openai-chat, got 'nonsense'" in done.stderr
    done = script(write(tmp_path / "empty.json"))
    assert done.exit_code == 1
    assert "no run could be read" in done.stderr
    assert script(recordings, "--policy", "nonsense").exit_code == 2
