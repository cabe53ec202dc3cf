"""Counters stop at their end instead of starting again, and decisions stay sane there.

The table of counters in `docs/semantics.md`, "Numbers", is held to the records here.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import call, pack, tying_policy

from cellium_fast import Action, Fleet, Policy, Posterior, RoundBatch, _records
from cellium_fast._memory import LAST_GENERATION

SEMANTICS = (Path(__file__).parent.parent / "docs" / "semantics.md").read_text("utf-8")

BYTE, HALF, WORD, LONG = 2**8 - 1, 2**16 - 1, 2**32 - 1, 2**64 - 1

# --- Counters ------------------------------------------------------------------------------------
# Where each stops, by its row in the table of the page.
COUNTERS = {
    "`output_repeats`, `failures_in_row`, `run_length`": (10, "output_run failed_rounds"),
    "progress scores behind the trend": (10, "history_count"),
    "calls in the window, `call_repeats`, `result_repeats`, `recent_failures`":
        (12, "window_count"),
    "updates of an action in a private posterior": (BYTE, "updates"),
    'the other features of "What a round brought" and "The ladder"': (
        BYTE,
        "no_information little_information error_repeats transient_rounds idle_rounds blank_rounds"
        " text_repeats unheeded_redirects exhausted_rounds compress_wait compress_tries"
        " round_repeats",
    ),
    "`advice_age`": (BYTE, "advice_age"),
    "the feature `stuck_iterations`": (HALF, "stuck decision_stuck"),
    "updates of a private posterior since it last decayed": (HALF, "updates_since_decay"),
    "sessions that were in one slot": (LAST_GENERATION, "generation"),
    "the feature `rounds_left`": (2**31 - 1, ""),
    "rounds; calls, errors and empties of a session; characters of a result":
        (WORD, "round calls errors empties size"),
    "sessions that a pool learned from what a policy is worth, where it stops learning":
        (WORD, "choice.learned"),
    "updates of an action in a pool, sessions that a pool counted as closed":
        (LONG, "pool.updates pool.closed"),
}  # fmt: skip
# Fields of a session that count nothing.
SETTINGS = "uid context_limit context_tokens round_limit policy pool flags"
HASHES = (
    "sketch error output round_hashes round_periods counted_error signature call tool result "
    "advice pending compressed_tokens"
)
BITS = "same_call same_signature twins error_bits empty_bits repeated_tools"
NUMBERS = "trend progress history reward alpha beta"


def fields_of(text):
    return {name for name in text.split() if "." not in name}


def test_every_field_of_a_session_is_a_counter_or_is_none():
    counters = fields_of(" ".join(names for _, names in COUNTERS.values()))
    others = fields_of(f"{SETTINGS} {HASHES} {BITS} {NUMBERS}")
    assert not counters & others
    assert counters | others == set(_records.SESSION.names)


def test_the_page_lists_all_counters():
    table = SEMANTICS.partition("| counter | stops at |\n| --- | --- |\n")[2].partition("\n\n")[0]
    found = [re.fullmatch(r"\| (.*) \| ([\d,]+).* \|", row) for row in table.split("\n")]
    rows = dict(row.groups() for row in found)
    assert {name: int(top.replace(",", "")) for name, top in rows.items()} == {
        name: top for name, (top, _) in COUNTERS.items()
    }


FAILING = {"calls": [call(error=True, result=9, size=200)] * 3, "text": 5, "sketch": 7,
           "context_tokens": 99_000}  # fmt: skip
EMPTY = {"calls": [call(empty=True, size=0)] * 2, "text": 5, "sketch": 7, "context_tokens": 99_000}
TRANSIENT = {"calls": [call(error=True, transient=True)], "context_tokens": 99_000}
SILENT = {"context_tokens": 99_000}
CURRENT = [(FAILING, "failing"), (EMPTY, "empty"), (TRANSIENT, "transient"), (SILENT, "silent")]
# What a round of each kind leaves higher, or at its end.
RISES = {
    "failing": {"calls", "errors", "round", "error_repeats", "no_information", "round_repeats",
                "text_repeats", "exhausted_rounds", "failed_rounds", "output_run",
                "little_information"},
    "empty": {"calls", "empties", "round", "little_information", "exhausted_rounds", "output_run",
              "text_repeats", "round_repeats"},
    "transient": {"calls", "errors", "round", "transient_rounds", "exhausted_rounds"},
    "silent": {"round", "idle_rounds", "blank_rounds", "exhausted_rounds"},
}  # fmt: skip
TOPS = {
    name: top for top, names in COUNTERS.values() for name in fields_of(names)
    if name not in ("generation", "updates", "size", "history_count", "window_count",
                    "decision_stuck", "updates_since_decay")
}  # fmt: skip


def both_ways(given, prepare, rounds=4, **limits):
    """The records of a session after some rounds, from a record of one's making: as a batch of one
    session, of many, and as a scalar step."""
    records = []
    for sessions in (1, 40):
        fleet = Fleet(policies={"only": Policy()})
        ids = fleet.open(sessions, context_limit=100_000, **limits)
        for _ in range(3):
            fleet.step(ids, pack([given] * sessions))
        prepare(fleet._memory.sessions[:sessions])
        for _ in range(rounds):
            decisions = fleet.step(ids, pack([given] * sessions))
            check_sane(decisions)
        records.append(fleet._memory.sessions[0].copy())
    assert records[0] == records[1]
    return records[0], decisions


def check_sane(decisions):
    features = decisions.features
    for name in _records.FEATURES.names:
        values = features[name].astype(float)
        assert np.all(np.isfinite(values)), name
        if name.endswith(("_rate", "_score", "quality", "confidence", "saturation")):
            assert np.all((values >= 0) & (values <= 1)), name
    assert np.all(features["rounds_left"] >= -1)
    assert np.all((decisions.reward >= 0) & (decisions.reward <= 1))
    assert np.all(decisions.action <= max(Action))
    assert np.all(decisions.candidates >> decisions.action & 1)


@pytest.mark.parametrize(("given", "kind"), CURRENT, ids=[kind for _, kind in CURRENT])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_counters_of_a_session_stop_at_their_end(given, kind, before):
    def prepare(records):
        for name, top in TOPS.items():
            records[name] = top - before

    record, decisions = both_ways(given, prepare)
    for name in RISES[kind]:
        assert record[name] == TOPS[name], name
    for name in TOPS:
        assert record[name] <= TOPS[name], name
    features = decisions.features[0]
    assert features["round"] == WORD
    for name in ("no_information", "error_repeats", "idle_rounds", "text_repeats"):
        assert features[name] == record[name], name


def test_every_counter_of_a_session_was_seen_at_its_end():
    elsewhere = {"stuck", "unheeded_redirects", "compress_wait", "compress_tries", "advice_age"}
    assert set(TOPS) == set.union(*RISES.values()) | elsewhere


def test_stuck_stops_and_so_does_what_a_decision_saw_of_it():
    def prepare(records):
        records["stuck"] = HALF - 1

    # Retry leaves stuck as it is.
    policy = tying_policy([Action.RETRY])
    fleet = Fleet(policies={"only": policy})
    ids = fleet.open(3)
    for _ in range(4):
        fleet.step(ids, pack([FAILING] * 3))
    prepare(fleet._memory.sessions)
    for _ in range(3):
        decisions = fleet.step(ids, pack([FAILING] * 3))
        check_sane(decisions)
    assert set(decisions.features["stuck_iterations"]) == {HALF}
    assert set(fleet._memory.sessions["decision_stuck"][:3]) == {HALF}


@pytest.mark.parametrize(("action", "name"), [
    (Action.REDIRECT, "unheeded_redirects"), (Action.COMPRESS, "compress_tries"),
])
def test_interventions_stop_being_counted(action, name):
    rules = {rule: {"enabled": False} for rule, _ in Policy().rules}
    rules["failure_chain"] = {"failures": 1, "actions": [int(action)]}
    fleet = Fleet(policies={"only": Policy(rules=rules)})
    ids = fleet.open(1)
    fleet._memory.sessions[name] = BYTE - 1
    for _ in range(3):
        decisions = fleet.step(ids, pack([FAILING]))
        assert decisions.action[0] == action
        assert fleet._memory.sessions[name][0] == BYTE


def test_rounds_since_compress_stop():
    fleet = Fleet()
    ids = fleet.open(1)
    fleet._memory.sessions["compress_wait"] = BYTE - 1
    waits = [int(fleet.step(ids, pack([SILENT])).features["compress_wait"][0]) for _ in range(3)]
    assert waits == [BYTE] * 3


@pytest.mark.parametrize("interval", [1, 3, 10, 254])
def test_the_age_of_advice_goes_back_by_the_interval(interval):
    fleet = Fleet(policies={"only": tying_policy([Action.REDIRECT], repeat_interval=interval)})
    ids = fleet.open(1)
    ages = [int(fleet.step(ids, RoundBatch()).advice_age[0]) for _ in range(700)]
    assert ages[:256] == list(range(256))
    assert all(age == before + 1 or (before, age) == (BYTE, 256 - interval)
               for before, age in itertools.pairwise(ages))  # fmt: skip


def test_rounds_left_stops():
    for limit in (1, 2**31 - 1, 2**31, 2**31 + 1, WORD):
        fleet = Fleet()
        ids = fleet.open(1, round_limit=limit)
        left = fleet.step(ids, RoundBatch()).features["rounds_left"][0]
        assert left == min(limit - 1, 2**31 - 1)
        fleet._memory.sessions["round"] = WORD - 2
        for _ in range(4):
            decisions = fleet.step(ids, RoundBatch())
            check_sane(decisions)
            assert decisions.features["rounds_left"][0] == max(
                limit - int(decisions.features["round"][0]), 0
            )
        assert decisions.action[0] == Action.TERMINATE


def test_sizes_stop():
    fleet = Fleet()
    ids = fleet.open(1)
    for _ in range(5):
        fleet.step(ids, pack([{"calls": [call(size=WORD)]}]))
    check_sane(fleet.step(ids, pack([{"calls": [call(size=WORD)]}])))
    assert fleet._memory.sessions["size"][0].tolist() == [WORD] * 5


def test_the_window_and_the_history_stop():
    fleet = Fleet()
    ids = fleet.open(1)
    for _ in range(30):
        fleet.step(ids, pack([{"calls": [call()] * 2}]))
    record = fleet._memory.sessions[0]
    assert (record["window_count"], record["history_count"]) == (12, 10)


def test_context_sizes_at_the_end():
    fleet = Fleet()
    ids = fleet.open(1, context_limit=2**63 - 1)
    for tokens in (2**63 - 1, 2**32, 2**62, 0, 2**63 - 1):
        check_sane(fleet.step(ids, RoundBatch(context_tokens=np.array([tokens]))))


# --- Learning at the end of numbers --------------------------------------------------------------
def learner(private, every=0, alpha=2.0):
    posterior = {"alpha": alpha, "decay_every": every}
    policy = tying_policy([0], n_step=1, learn_from="all", posterior=posterior)
    fleet = Fleet(policies={"only": policy})
    return fleet, fleet.open(1, private=private)


def reward(fleet, ids, value, rounds=1):
    for _ in range(rounds):
        fleet.step(ids, RoundBatch(reward=np.array([value], np.float32)))


def test_updates_of_a_private_posterior_stop():
    fleet, ids = learner(private=True)
    reward(fleet, ids, 1.0, 300)
    learned = fleet.private_posterior(ids[0])
    assert learned["updates"].tolist() == [BYTE, 0, 0, 0, 0]
    assert learned["alpha"][0] == 302.0


@pytest.mark.parametrize("every", [1, 255, HALF])
def test_updates_since_a_decay_never_pass_its_interval(every):
    fleet, ids = learner(private=True, every=every)
    fleet._memory.sessions["updates_since_decay"] = every - 1
    fleet._memory.sessions["alpha"][0] = 102.0
    reward(fleet, ids, 1.0)
    assert fleet._memory.sessions["updates_since_decay"][0] == 0
    assert fleet.private_posterior(ids[0])["alpha"][0] == pytest.approx(2 + 0.99 * 101)
    # And after a change to a shorter interval: at once.
    fleet._memory.sessions["updates_since_decay"] = HALF - 1
    fleet.set_policy("only", fleet.policies["only"].replace(posterior={"decay_every": 7}))
    reward(fleet, ids, 1.0)
    assert fleet._memory.sessions["updates_since_decay"][0] == 0


@pytest.mark.parametrize(("gain", "end"), [(1.0, 2**24), (0.5, 2**23), (0.125, 2**21)])
def test_a_private_posterior_stops_growing(gain, end):
    fleet, ids = learner(private=True)
    fleet._memory.sessions["alpha"][0] = end - 2
    reward(fleet, ids, gain, 40)
    assert fleet.private_posterior(ids[0])["alpha"][0] == end
    check_sane(fleet.step(ids, RoundBatch()))


@pytest.mark.parametrize(("gain", "end"), [(1.0, 2**53), (0.5, 2**52)])
def test_a_pool_stops_growing(gain, end):
    fleet, ids = learner(private=False)
    fleet._memory.pools["alpha"][0] = end - 2
    reward(fleet, ids, gain, 12)
    assert fleet.posterior()["alpha"][0] == end


def test_a_pool_is_exact_to_two_million():
    fleet, ids = learner(private=False)
    fleet._memory.pools["alpha"][0] = 2.0**21 - 1
    reward(fleet, ids, 0.3)
    assert fleet.posterior()["alpha"][0] - (2.0**21 - 1) == round(0.3 * 2**31) / 2**31


@pytest.mark.parametrize("before", [0, 1, 3])
def test_updates_of_a_pool_stop(before):
    fleet, ids = learner(private=False)
    fleet._memory.pools["updates"] = np.uint64(LONG - before)
    reward(fleet, ids, 1.0, 6)
    assert fleet.posterior()["updates"].tolist() == [LONG] + [LONG - before] * 4


@pytest.mark.parametrize("before", [0, 1, 3])
def test_sessions_closed_stop_being_counted(before):
    # A count that began anew would ask for a decay 10^17 times.
    fleet = Fleet(pools={"only": Posterior(decay_every=50)})
    fleet._memory.pools["closed"] = np.uint64(LONG - before)
    fleet.close(fleet.open(10))
    assert fleet._memory.pools["closed"].tolist() == [LONG]
    assert np.all(fleet.posterior()["alpha"] == 2.0)


def test_the_largest_posteriors_are_drawn_from():
    fleet = Fleet(policies={"only": tying_policy(range(5))})
    ids = fleet.open(200)
    for alpha, beta in ((2.0**53, 2.0**53), (2.0**53, 1e-3), (1e300, 1e300)):
        fleet._memory.pools["alpha"], fleet._memory.pools["beta"] = alpha, beta
        decisions = fleet.step(ids, RoundBatch())
        assert np.all((decisions.draws >= 0) & (decisions.draws <= 1))
        check_sane(decisions)


def test_draws_stand_still_when_rounds_do():
    # As the page says: the round is part of what a draw is a function of.
    fleet = Fleet(policies={"only": tying_policy(range(5), posterior={"decay_every": 0})})
    ids = fleet.open(1)
    fleet._memory.sessions["round"] = WORD - 2
    found = []
    for _ in range(4):
        # And nothing is learned meanwhile.
        fleet._memory.pools["alpha"] = fleet._memory.pools["beta"] = 2.0
        found.append(tuple(fleet.step(ids, RoundBatch()).draws[0]))
    assert len({*found[:2]}) == 2
    assert found[1] == found[2] == found[3]
