"""What the tests of the compiled core share: seeds, and one description of rounds and policies.

A round is described as `reference.py` takes it, a dict; `pack` makes the columns of the same
rounds. A policy is described as the package takes it; `reference_policy` says the same to the
reference. `Pair` takes a fleet and reference sessions through the same calls and compares them.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import reference
from cli_runs import chat_run, write
from random_agents import TOOLS, Agent, call, random_policy
from trace_files import Files

from cellium_fast import Fleet, Policy, RoundBatch, _ingest
from cellium_fast.decision import rules_in
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS

__all__ = ["TOOLS", "Agent", "call", "random_policy"]

TOOL_HASHES = [_ingest.hash_tool(name) for name in TOOLS]
COLUMNS = (
    "action", "candidates", "rules", "tiebreak", "reward", "features", "draws", "bias",
    "advice_age", "user_rules", "propensity",
)  # fmt: skip


# --- Seeds ---------------------------------------------------------------------------------------
class Seeded(random.Random):
    """A generator that says how to run the test again as it was."""

    def __init__(self, seed):
        super().__init__(seed)
        self.first_seed = seed
        self.arrays = np.random.default_rng(seed)

    def __repr__(self):
        return f"Seeded({self.first_seed})  # run again with CELLIUM_SEED={self.first_seed}"


def fresh_rng():
    """A generator with the seed of this run."""
    seed = int(os.environ.get("CELLIUM_SEED", "20260"))
    print(f"random numbers: CELLIUM_SEED={seed}")     # captured, shown on failure
    return Seeded(seed)


@pytest.fixture
def rng():
    """A seeded generator; pytest shows it in the traceback and the print after a failure."""
    return fresh_rng()


# --- Policies ------------------------------------------------------------------------------------
def tying_policy(arms, **changes):
    """A policy under which every round is a tie of these actions, without bias."""
    off = {name: {"enabled": False} for name, _ in Policy().rules}
    off["progressing"] = {"actions": list(arms), "progress": None, "yields": False}
    bias = {name: 0.0 for name, _ in Policy().bias if not name.startswith("cold")}
    return Policy(rules=off, bias=bias, **changes)


RENAMED = {
    ("true_stagnation", "pause_from"): "spare_from",
    ("true_stagnation", "pause_to"): "spare_until",
    ("slow_progress", "trend"): "trend_below",
}


def reference_rule(name, rule):
    """One rule of a package policy as the reference has it."""
    same = {"on": rule.enabled, "mask": [int(action) for action in rule.actions]}
    for parameter, value in rule:
        if parameter == "yields":
            same["unless"] = LOOPS if value else []
        elif parameter not in ("enabled", "actions"):
            same[RENAMED.get((name, parameter), parameter)] = value
    return same


LOOPS = ["prolonged_stagnation", "tool_cycle", "tool_repetition"]
LIMITS = {"poll": 60, "exempt": 255}


def reference_decay(posterior):
    """The decay of a package posterior as the reference has it."""
    return {
        "factor": posterior.decay,
        "every": posterior.decay_every or math.inf,
        "target": posterior.decay_target,
    }


def reference_policy(policy):
    """What a package policy says, in the reference's words."""
    bias, feedback = policy.bias, policy.feedback
    return reference.policy(
        "cellium",
        empty_is_unproductive=policy.empty_is_unproductive,
        stale_is_unproductive=policy.stale_is_unproductive,
        compare_results=policy.match_results,
        run_at_newest=policy.newest_run_only,
        failures_in_row=policy.count_failures,
        see_through_volatile=policy.see_through_volatile,
        count_cycles=policy.count_cycles,
        frequent_tools=[TOOLS.index(tool) for tool in policy.frequent_tools],
        slight_result=policy.slight_result,
        slight_error=policy.slight_error,
        near_duplicate=policy.near_duplicate,
        tool_limits={
            TOOLS.index(tool): LIMITS.get(limit, limit)
            for tool, limit in policy.tool_limits
        },
        zero_tokens_unknown=policy.zero_tokens_unknown,
        compress_cooldown=policy.compress_cooldown,
        compress_tries=policy.compress_tries,
        loop_detection=policy.loop_detection,
        repeat_interval=policy.repeat_interval,
        ema_alpha=policy.ema_alpha,
        rules={name: reference_rule(name, rule) for name, rule in policy.rules},
        tie_break=policy.tie_break,
        bias={
            "redirect_repetition": bias.redirect_repetition,
            "redirect_stuck": bias.redirect_stuck,
            "retry_stuck": bias.retry_stuck,
            "retry_trend": bias.retry_slow,
            "compress_saturation": bias.compress_saturation,
            "compress_stuck": bias.compress_stuck,
            "continue_progress": bias.continue_progress,
            "continue_unstuck": bias.continue_unstuck,
            "cold_updates": bias.cold_start_updates,
            "cold_factor": bias.cold_start_factor,
        },
        reward={
            "round_cost": feedback.round_cost,
            "context_cost": feedback.saturation_cost,
            "context_free": feedback.saturation_from,
            "failure": feedback.failure_reward,
        },
        n_step=policy.n_step,
        gamma=policy.gamma,
        credit={"forward": "n_step", "newest": "newest"}[policy.credit],
        update=policy.update,
        learn_from=policy.learn_from,
        user_rules=[
            {"function": one.function, "mask": [int(action) for action in one.actions],
             "forces": one.forces} for one in policy.user_rules
        ],
        user_reward=policy.user_reward and policy.user_reward.function,
        user_bias={int(one.action): one.function for one in policy.user_bias},
        prior=(policy.posterior.alpha, policy.posterior.beta),
        decay=reference_decay(policy.posterior),
    )


# --- Rounds --------------------------------------------------------------------------------------
def numbers(rounds, name, missing, dtype):
    """One column of numbers, `missing` where a round does not tell."""
    values = (given.get(name) for given in rounds)
    return np.array([missing if value is None else value for value in values], dtype)


def call_column(calls, name, dtype):
    """A column of the calls; None, which is left out, if none of them has it."""
    values = [one.get(name) for one in calls]
    if not calls or values.count(None) == len(values):
        return None
    assert None not in values, f"{name} of some calls only"
    return np.array(values, dtype)


def flags_of(one):
    """The flags of a call: 1 error, 2 empty, 4 transient, 8 acknowledged."""
    names = ("error", "empty", "transient", "acknowledged")
    return sum(bool(one.get(name)) << bit for bit, name in enumerate(names))


def pack(rounds):
    """The columns of described rounds."""
    calls = [one for given in rounds for one in given.get("calls") or []]
    counts = [len(given.get("calls") or []) for given in rounds]
    shapes = [{"shape": one.get("shape", one["signature"])} for one in calls]
    sketched = any(given.get("sketch") is not None for given in rounds)
    return RoundBatch(
        call_offsets=np.cumsum([0, *counts], dtype=np.int64),
        call_tool=np.array([TOOL_HASHES[one["tool"]] for one in calls], np.uint64),
        call_signature=np.array([one["signature"] for one in calls], np.uint64),
        call_shape=call_column(shapes, "shape", np.uint64),
        call_result=call_column(calls, "result", np.uint64),
        call_flags=np.array([flags_of(one) for one in calls], np.uint8),
        call_size=call_column(calls, "size", np.uint32),
        text=numbers(rounds, "text", 0, np.uint64),
        text_sketch=numbers(rounds, "sketch", 0, np.uint64) if sketched else None,
        context_tokens=numbers(rounds, "context_tokens", -1, np.int64),
        context_limit=numbers(rounds, "context_limit", -1, np.int64),
        progress=numbers(rounds, "progress", np.nan, np.float32),
        reward=numbers(rounds, "reward", np.nan, np.float32),
        success=numbers(rounds, "success", -1, np.int8),
        event=numbers(rounds, "event", 0, np.uint8),
    )


def take(batch, order):
    """The same rounds in another order."""
    order = np.asarray(order)
    starts, stops = batch.call_offsets[:-1][order], batch.call_offsets[1:][order]
    lengths = stops - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    calls = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    columns = {"call_offsets": offsets}
    for names, places in ((CALL_COLUMNS, calls), (ROUND_COLUMNS, order)):
        given = {name: getattr(batch, name) for name in names}
        columns.update((name, one[places]) for name, one in given.items() if one is not None)
    return RoundBatch(**columns)


def same_bits(left, right):
    """Whether two columns are equal, a NaN being equal to a NaN."""
    if left.dtype.names:
        return all(same_bits(left[name], right[name]) for name in left.dtype.names)
    return np.array_equal(left, right, equal_nan=left.dtype.kind == "f")


def watch(rounds, policy="default", **limits):
    """The features after each round of one session, as dicts."""
    fleet = Fleet(policies={"only": policy})
    ids = fleet.open(1, **limits)
    return [named(fleet.step(ids, pack([given])).features[0]) for given in rounds]


def named(record):
    """A record as a dict of plain Python values."""
    return {name: record[name].tolist() for name in record.dtype.names}


# --- The fleet and the reference side by side ----------------------------------------------------
def mask(codes):
    """The mask of some action codes."""
    return sum(1 << code for code in codes)


def near_a_threshold(features, policy):
    """Whether R^2, kept from a history in single precision, could fall on either side."""
    limits = (0.6, policy["rules"]["true_stagnation"]["confidence"])
    return any(abs(features["trend_confidence"] - limit) < 1e-5 for limit in limits)


class MetByChance(AssertionError):
    """A pooled session met a threshold that single precision decides: another seed, please."""


class Pair:
    """A fleet and reference sessions that get the same calls; every step is compared."""

    def __init__(self, policies, pools=None, **options):
        self.fleet = Fleet(policies=policies, pools=pools, **options)
        self.policies = {name: reference_policy(given) for name, given in policies.items()}
        self.sessions = {}
        self.pools = {}
        for name, given in self.fleet.pools.items():
            prior = (given.alpha, given.beta)
            self.pools[name] = reference.new_posterior(prior, decay=reference_decay(given))
        self.rules, self.actions, self.information = Counter(), Counter(), Counter()
        self.compared, self.dropped = 0, 0

    def open(self, count, *, policy=None, pool=None, private=False, **limits):
        """Opens sessions in both; returns their ids."""
        ids = self.fleet.open(count, policy=policy, pool=pool, private=private, **limits)
        return self.follow(ids, policy=policy, pool=pool, private=private, **limits)

    def follow(self, ids, *, policy=None, pool=None, private=False, **limits):
        """Opens in the reference what was opened in the fleet; returns the ids."""
        own = self.reference_of(policy)
        shared = self.pools[pool or next(iter(self.pools))]
        for one in ids.tolist():
            self.sessions[one] = reference.open_session(
                own, limits.get("context_limit"), limits.get("round_limit"),
                None if private else shared,
            )  # fmt: skip
        return ids.tolist()

    def reference_of(self, policy=None):
        """A policy by name, as a reference session has it."""
        own = self.policies[policy or next(iter(self.policies))]
        if own["tie_break"] == "greedy":
            # The package's means stand in for draws; they are compared with the reference's.
            own = {**own, "tie_break": "thompson", "greedy": True}
        return own

    def step(self, ids, rounds, given=None, **options):
        """Steps both and compares; returns the package's decisions.

        `given` are the same rounds, if the fleet shall have them in another form than columns.
        """
        given = pack(rounds) if given is None else given
        decisions = self.fleet.step(np.array(ids, np.int64), given, **options)
        self.step_references(ids, rounds, decisions)
        return decisions

    def step_references(self, ids, rounds, decisions):
        """Steps the reference sessions of a call and compares what the fleet decided."""
        for place, (one, given) in enumerate(zip(ids, rounds, strict=True)):
            if one in self.sessions:
                self.step_reference(one, given, decisions, place)
        for pool in self.pools.values():
            reference.end_call(pool)

    def step_reference(self, one, given, decisions, place):
        """Steps one reference session with the package's draws and compares the decisions."""
        session, draws = self.sessions[one], decisions.draws[place]
        decision = reference.step(session, given, lambda arm: draws[arm])
        if near_a_threshold(decision["features"], session["policy"]) and (
            decisions.features["plateau"][place] != decision["features"]["plateau"]
            or decisions.rules[place] != decision["rules"]
        ):
            if not session["posterior"]["private"]:
                raise MetByChance("another seed")
            del self.sessions[one]
            self.dropped += 1
            return
        context = f"session {one}, round {session['round']}: {given}"
        compare_features(decisions.features[place], decision["features"], context)
        fired = [name for bit, name in enumerate(reference.RULES) if decision["rules"] >> bit & 1]
        assert rules_in(int(decisions.rules[place])) == tuple(fired), context
        own = sum(1 << bit for bit in decision["user_rules"])
        assert decisions.user_rules[place] == own, context
        assert decisions.candidates[place] == mask(decision["candidates"]), context
        assert decisions.action[place] == decision["action"], context
        assert decisions.tiebreak[place] == decision["tiebreak"], context
        assert decisions.advice_age[place] == decision["advice_age"], context
        assert abs(float(decisions.reward[place]) - decision["reward"]) < 1e-7, context
        compared = set(np.flatnonzero(~np.isnan(draws)).tolist())
        assert compared == set(decision["draws"]), context
        for arm, expected in decision["bias"].items():
            assert decisions.bias[place, arm] == pytest.approx(expected, abs=1e-9), context
        if session["policy"].get("greedy"):
            alpha, beta = session["posterior"]["alpha"], session["posterior"]["beta"]
            for arm in decision["draws"]:
                mean = alpha[arm] / (alpha[arm] + beta[arm])
                assert draws[arm] == pytest.approx(mean, abs=1e-5), context
        self.actions[decision["action"]] += 1
        self.rules.update(fired)
        self.information[decision["features"]["information"]] += 1
        self.compared += 1

    def user_message(self, ids):
        """A user message between two rounds."""
        self.fleet.user_message(ids)
        for one in ids:
            if one in self.sessions:
                reference.forget(self.sessions[one])

    def use_policy(self, ids, name):
        """Sessions go on under another policy."""
        self.fleet.use_policy(ids, name)
        for one in ids:
            if one in self.sessions:
                session, own = self.sessions[one], self.reference_of(name)
                session["policy"] = own
                if session["posterior"]["private"]:
                    session["posterior"].update(decay=own["decay"], prior=own["prior"])

    def set_policy(self, name, policy, ids):
        """A policy becomes another; `ids` are of the sessions under it."""
        self.fleet.set_policy(name, policy)
        self.policies[name] = reference_policy(policy)
        self.use_policy(ids, name)

    def close(self, ids, successes=None):
        """Closes sessions in both; `successes` holds True, False or None each."""
        successes = successes or [None] * len(ids)
        outcomes = [-1 if told is None else int(told) for told in successes]
        self.fleet.close(ids, np.array(outcomes, np.int8))
        known = [place for place, one in enumerate(ids) if one in self.sessions]
        closing = [self.sessions.pop(ids[place]) for place in known]
        reference.close_all(closing, [successes[place] for place in known])

    def compare_pools(self, tolerance=1e-9):
        """The pools' posteriors are equal; the tolerance is for rewards kept as float32."""
        for name, pool in self.pools.items():
            learned = self.fleet.posterior(name)
            assert learned["updates"].tolist() == pool["updates"], name
            for side in ("alpha", "beta"):
                np.testing.assert_allclose(learned[side], pool[side], rtol=0, atol=tolerance)

    def compare_private(self, tolerance=1e-5):
        """The private posteriors of the open sessions are equal."""
        for one, session in self.sessions.items():
            if session["posterior"]["private"]:
                learned = self.fleet.private_posterior(one)
                updates = [min(count, 255) for count in session["posterior"]["updates"]]
                assert learned["updates"].tolist() == updates
                for side in ("alpha", "beta"):
                    expected = session["posterior"][side]
                    np.testing.assert_allclose(learned[side], expected, rtol=tolerance)


SAME_FEATURES = (
    "progress_score", "stuck_iterations", "progress_trend", "progress_trend_raw",
    "context_saturation", "context_ratio", "context_known", "repetition_score", "error_rate",
    "empty_rate", "result_quality", "cycle", "output_repeats", "plateau", "making_progress",
    "run_length", "failures_in_row", "round", *reference.opening_evidence(),
)  # fmt: skip


def compare_features(found, expected, context):
    """One row of features against the reference's."""
    for name in SAME_FEATURES:
        assert abs(float(found[name]) - float(expected[name])) < 1e-9, f"{name}: {context}"
    confidence = float(found["trend_confidence"]) - expected["trend_confidence"]
    assert abs(confidence) < 1e-5, f"trend_confidence: {context}"
    limit = expected["round_limit"]
    left = -1 if not limit else max(limit - expected["round"], 0)
    assert found["rounds_left"] == left, context


# --- One session by hand, on either side ---------------------------------------------------------
def by_reference(rounds, policy, **limits):
    """The reference's decisions on described rounds."""
    same = reference_policy(policy)
    session = reference.open_session(same, limits.get("context_limit"), limits.get("round_limit"))
    seen = []
    for given in rounds:
        decision = reference.step(session, given)
        names = [name for bit, name in enumerate(reference.RULES) if decision["rules"] >> bit & 1]
        seen.append({**decision, "rules": tuple(names)})
    return seen


def by_fleet(rounds, policy, **limits):
    """The fleet's decisions on the same rounds."""
    fleet = Fleet(policies={"only": policy})
    ids = fleet.open(1, **limits)
    seen = []
    for given in rounds:
        decisions = fleet.step(ids, pack([given]))
        found = int(decisions.candidates[0])
        seen.append({
            "action": int(decisions.action[0]),
            "candidates": [code for code in range(5) if found >> code & 1],
            "rules": rules_in(int(decisions.rules[0])),
            "features": named(decisions.features[0]),
            "advice_age": int(decisions.advice_age[0]),
        })
    return seen


@pytest.fixture(params=[by_reference, by_fleet], ids=["reference", "fleet"])
def decide(request):
    """What decides described rounds under a policy: the reference, then the fleet."""
    return request.param


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Three runs of 7, 2 and 1 rounds; the first repeats its answer: `cellium` terminates at 5."""
    return write(
        tmp_path / "made_up.jsonl",
        chat_run("loop", ["same"] * 7, success=False),
        chat_run("fine", ["one", "two"], success=True),
        chat_run("short", ["one"]),
    )
