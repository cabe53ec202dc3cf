"""Any calls in any order: the fleet decides as the reference does, and a refused call is no call.

A machine of hypothesis makes calls at random on a fleet, on reference sessions (`conftest.Pair`)
and on a second fleet that is asked in other ways (columns wanted, arrays to fill, threads); in
between it makes calls that have to be refused, and looks whether a byte changed. The long form
(``-m long``) is the same with more and longer runs.
"""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import rules_of_users
from conftest import (
    COLUMNS,
    TOOLS,
    Agent,
    MetByChance,
    Pair,
    call,
    pack,
    random_policy,
    same_bits,
)
from hypothesis import HealthCheck, Phase, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from reference_choice import Choices
from test_ingest_strange import NEVER_RAISE, NOT_JSON

from cellium_fast import (
    CelliumError,
    Decisions,
    Fleet,
    HardConstraintRenderer,
    Policy,
    Posterior,
    Round,
    RoundBatch,
    ToolCall,
    UnknownNameError,
)
from cellium_fast._rules import RULES
from cellium_fast.decision import COLUMNS as COLUMN_TYPES

SEEDS = st.integers(0, 2**32 - 1)
FEW = st.integers(0, 4)
LEARNING = {"n_step": 3, "gamma": 0.9, "credit": "forward"}
COUNTED: Counter[str] = Counter()       # calls made, by rule, for the report of the long form


# --- all that a fleet is -------------------------------------------------------------------------
def digest(fleet: Fleet) -> dict[str, Any]:
    """Everything in a fleet that a later call can depend on."""
    memory, names = fleet._memory, fleet.names
    return {
        "sessions": memory.sessions[: memory.used].tobytes(),
        "policies": (list(fleet.policies.items()), memory.policies.tobytes()),
        "pools": (list(fleet.pools.items()), memory.pools.tobytes()),
        "slots": (memory.used, memory.free[: memory.free_count].tolist()),
        "opened": (memory.opened, memory.open_count, len(fleet)),
        "watched": np.flatnonzero(memory.watched).tolist(),
        "increments": fleet._increments.tobytes(),
        "choices": [None if one is None else one.tobytes() for one in memory.choices_made()],
        "names": (list(names._tools.items()), list(names._errors.items()), names.forgotten),
        "settings": [setting.policy for setting in fleet._settings],
        "handles": {
            one: (
                handle.name, handle._unused, handle._setting.policy, handle._setting.tools,
                handle._setting.used_tools, repr(handle.decision),
            )
            for one, handle in fleet._handles.items()
        },
    }


# --- rounds as objects ---------------------------------------------------------------------------
def letters(number: int) -> str:
    """A number in letters: digits in errors are folded."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def in_words(described: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    """A described round that objects can say, and the objects.

    Sizes follow from the texts, shapes from the signatures, and no word says more than the flags.
    """
    plain, calls = [], []
    for one in described["calls"]:
        # Nothing returned by a tool that changes things would be an acknowledgement.
        error, looks = one["error"], TOOLS[one["tool"]] in ("search", "read")
        empty = one["empty"] and looks and not error
        result, text = 0, ""
        if not empty:
            result = 1_000 * one["result"] + 100 * error + (one["size"] or 0) % 40 + 1
            text = f"{'broken' if error else 'answer'} {letters(result)}" + "." * (result % 100)
        signature, tool = one["signature"], one["tool"]
        plain.append(call(signature, tool, result, error, empty, len(text), shape=signature))
        calls.append(ToolCall(TOOLS[tool], {"n": 1}, text, error=error, signature=signature))
    told = {name: value for name, value in described.items() if name not in ("calls", "event")}
    round = Round(calls, **{k: v for k, v in told.items() if k not in ("text", "sketch")})
    if told.get("text"):
        told["sketch"], round.text = 0, f"text {letters(told['text'])}"
    return {**told, "calls": plain}, round


# --- calls that have to be refused ---------------------------------------------------------------
class Boom(Exception):
    """What the attributes of hostile objects raise."""


class Exploding(Round):
    @property
    def context_tokens(self) -> int:
        raise Boom

    @context_tokens.setter
    def context_tokens(self, value: object) -> None:
        pass


class Hostile(ToolCall):
    @property
    def result(self) -> str:
        raise Boom

    @result.setter
    def result(self, value: object) -> None:
        pass


class NoArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise Boom


ODD: dict[str, Any] = {
    "none": None, "text": "x", "bytes": b"x", "float": 1.5, "nan": math.nan, "true": True,
    "negative": -1, "huge": 2**64, "larger": 10**5000, "complex": 1j, "list": [[1], [1, 2]],
    "object": object(), "type": int, "nested": [[[[1]]]], "mapping": {1: 2}, "set": {1},
    "floats": np.array([0.5]), "objects": np.array([None, "a"], object), "array": NoArray(),
    "masked": np.ma.masked_array([1], [True]), "dates": np.array(["2020-01-01"], "M8[D]"),
    "unsigned": np.array([2**64 - 1], np.uint64), "matrix": np.zeros((2, 2), np.int64),
    "surrogate": "\ud800",
}  # fmt: skip


def hostile_calls(fleet: Fleet, ids: list[int], closed: list[int], rng: random.Random) -> Any:
    """Calls by name that must raise; what they are made of comes from `ODD` and near misses."""
    odd = ODD[rng.choice(list(ODD))]
    number = odd if not isinstance(odd, int) or isinstance(odd, bool) else -abs(odd) - 1
    some = ids or fleet.open(1).tolist()        # an open of one more is a call like any other
    good, one = np.array(some, np.int64), some[0]
    size = len(some)
    rounds = [Round() for _ in some]
    wrong_ids: list[Any] = [
        [*some, 2**62 + 5], [*some, -1], [*some, one], good.astype(np.float64), good[None],
        good.astype(np.uint64), [*some, 2**64], [*some, None], [*some, True], "x", None, 5,
        [*some, *closed[:1], *(closed[:1] or [-5])], NoArray(),
    ]  # fmt: skip
    bad_ids = rng.choice(wrong_ids)
    spoiled = [*rounds]
    spoiled[rng.randrange(size)] = rng.choice([
        Exploding(), Round([Hostile("a")]), Round([ToolCall(5)]), Round([5]), Round(5), 5, None,
        Round(text=5), Round(progress=2.0), Round(reward=-0.5), Round(success="yes"),
        Round(context_tokens=2**64), Round(context_limit="x"), Round(progress="x"),
    ])  # fmt: skip
    column = rng.choice([
        {"progress": np.full(size, 1.5, np.float32)}, {"reward": np.full(size, -1, np.float32)},
        {"success": np.full(size, 2, np.int8)}, {"event": np.full(size, 3, np.uint8)},
        {"text": np.zeros(size + 1, np.uint64)}, {"text": np.zeros(size, np.int32)},
        {"context_tokens": np.zeros((size, 1), np.int64)}, {"context_limit": "x"},
        {"call_offsets": np.zeros(size, np.int64)}, {"call_offsets": np.arange(size + 1)},
        {"call_offsets": np.arange(size + 1)[::-1].copy()}, {"call_tool": np.ones(3, np.uint64)},
        {"tools": {"a": 1}}, {"errors": {1: 2}}, {"tools": 5}, {"tools": {2**64: "x"}},
    ])  # fmt: skip
    narrow = Decisions(size + 1, np.zeros(size + 1, np.uint16), fleet._settings)
    few = Decisions(size, np.zeros(size, np.uint16), fleet._settings, ["reward"])
    anything_but_names = [x for x in ODD.values() if not isinstance(x, str) and x is not None]
    thing = rng.choice(anything_but_names)
    return {
        "open, count": lambda: fleet.open(number),
        "open, context_limit": lambda: fleet.open(2, context_limit=rng.choice(
            [-1, 2**63, 1.5, "x", [1], [1, -1], [1.5, 2], [math.nan, 1], True, [None, 1]])),
        "open, round_limit": lambda: fleet.open(2, round_limit=rng.choice(
            [0, -1, 2**32, 1.5, "x", [1], [0, 1], [math.nan, 1], {}, [[1], [1, 2]]])),
        "open, policy": lambda: fleet.open(1, policy=rng.choice(["none", thing])),
        "open, pool": lambda: fleet.open(1, pool=rng.choice(["none", thing])),
        "open, private": lambda: fleet.open(1, private=rng.choice([None, 1, "x"])),
        "session, name": lambda: fleet.session(thing),
        "session, tools": lambda: fleet.session(tools=rng.choice(["x", 5, [5], None])),
        "session, limits": lambda: fleet.session(context_limit=rng.choice([[1], -1, "x"])),
        "session, policy": lambda: fleet.session(policy=rng.choice(["none", thing])),
        "step, ids": lambda: fleet.step(bad_ids, rounds),
        "step, fewer rounds": lambda: fleet.step(some, rounds[1:]),
        "step, spoiled rounds": lambda: fleet.step(some, spoiled),
        "step, no rounds": lambda: fleet.step(some, rng.choice([None, 5, {1}, iter(rounds)])),
        "step, column": lambda: fleet.step(some, RoundBatch(**column)),
        "step, want": lambda: fleet.step(some, rounds, want=rng.choice([["x"], "action", 5, [5]])),
        "step, out": lambda: fleet.step(some, rounds, out=rng.choice([narrow, thing, "x"])),
        "step, out and want": lambda: fleet.step(some, rounds, out=few, want=["draws"]),
        "close, ids": lambda: fleet.close(bad_ids),
        "close, success": lambda: fleet.close(some, rng.choice(
            ["x", 2, -2, 0.5, [True] * (size + 1), [None] * size, [[1]], NoArray()])),
        "user_message": lambda: fleet.user_message(bad_ids),
        "compacted": lambda: fleet.compacted(bad_ids),
        "done": lambda: fleet.done(bad_ids),
        "use_policy, ids": lambda: fleet.use_policy(bad_ids, "default"),
        "use_policy, name": lambda: fleet.use_policy(some, rng.choice(["none", thing, None])),
        "set_policy, name": lambda: fleet.set_policy(rng.choice(["none", thing, None]), Policy()),
        "set_policy, policy": lambda: fleet.set_policy("default", rng.choice(["none", thing])),
        "posterior": lambda: fleet.posterior(rng.choice(["none", thing])),
        "private_posterior": lambda: fleet.private_posterior(rng.choice(
            [-1, 2**62, None, "x", 1.5, True, [one], *closed[:1]])),
        "a handle of nothing": lambda: type(fleet.session)(fleet, 5),
    }


def refused_or_raised(make: Any) -> bool:
    """Whether a call was refused in the package's words, or ended by the exception of an object."""
    try:
        make()
    except (CelliumError, TypeError, Boom, AttributeError):
        return True
    return False


# --- the machine ---------------------------------------------------------------------------------
class Calls(RuleBasedStateMachine):
    """Calls at random on a pair of fleet and reference, and on a second fleet asked differently."""

    @initialize(seed=SEEDS, key=st.integers(0, 2**64 - 1), threads=st.integers(1, 3))
    def make(self, seed: int, key: int, threads: int) -> None:
        rng = random.Random(seed)
        # What sessions keep of rounds seen under an earlier policy, and of decisions not yet
        # rewarded, is not the reference's: these stay as they are.
        self.kept = {
            **LEARNING, "see_through_volatile": rng.random() < 0.5,
            "tool_limits": rng.choice([{}, {"read": 2, "ask": "poll"}]),
        }  # fmt: skip
        self.policies = {
            "default": Policy(**self.kept),
            "cellium": Policy.preset("cellium"),
            "varied": random_policy(rng, "default", **self.kept, **rules_of_users.of_users(rng)),
            "greedy": random_policy(rng, "cellium", tie_break="greedy", **self.kept),
        }
        pools = {"slow": Posterior(), "fast": Posterior(alpha=3.0, decay=0.7, decay_every=2)}
        self.pair = Pair(self.policies, pools, seed=key, threads=1)
        self.folder = TemporaryDirectory()
        self.opened = 0
        given = {"policies": self.policies, "pools": pools, "seed": key, "threads": threads}
        self.durable = rng.random() < 0.5
        self.other = (
            Fleet.open_durable(self.directory(), fsync="never", **given) if self.durable
            else Fleet(**given)
        )
        self.fleets = [self.pair.fleet, self.other]
        # A batch has sizes of all its calls or of none.
        self.kind = {"sizes": rng.random() < 0.7, "sketches": rng.random() < 0.7}
        self.known = Choices(key, self.policies)
        self.agents: dict[int, Agent] = {}
        self.under: dict[int, str] = {}
        self.worded: set[int] = set()       # sessions whose rounds are objects
        self.closed: list[int] = []
        self.newest: tuple[Decisions, Decisions] | None = None

    def directory(self) -> Path:
        """The directory of the durable fleet."""
        return Path(self.folder.name, str(self.opened))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            if self.durable:
                self.other.shut()
            self.folder.cleanup()

    def some(self, rng: random.Random, most: int = 6) -> list[int]:
        """Some of the open sessions, in any order."""
        return rng.sample(sorted(self.agents), rng.randrange(min(len(self.agents), most) + 1))

    def note(
        self, ids: list[int], rng: random.Random, options: dict[str, Any], worded: bool
    ) -> None:
        """These were opened: the reference opens them too, and knows which policy is chosen."""
        uid = self.pair.fleet._memory.opened - len(ids)
        # Nothing is learned by opening: all are chosen from the same posteriors.
        chosen = options["policy"] == "auto"
        for place, one in enumerate(ids):
            assert one not in self.closed and one not in self.agents, "an id is never used again"
            name, pool = options["policy"], options["pool"]
            if chosen:
                name = self.known.choose(uid + place, pool)
                self.known.open(one, pool, name)
            self.pair.follow(np.array([one]), **{**options, "policy": name})
            self.agents[one] = Agent(rng, **self.kind)
            self.under[one] = name
        assert self.pair.fleet.policy_of(ids) == [self.under[one] for one in ids]
        COUNTED["chosen"] += len(ids) * chosen
        self.worded |= set(ids) if worded else set()

    # --- sessions come and go
    def options(self, rng: random.Random) -> dict[str, Any]:
        return {
            "policy": rng.choice([*self.policies, "auto", "auto"]),
            "pool": rng.choice(["slow", "fast"]),
            "private": rng.random() < 0.5, "context_limit": rng.choice([None, 20_000, 30_000]),
            "round_limit": rng.choice([None, 1, 8, 15]),
        }  # fmt: skip

    @rule(count=FEW, seed=SEEDS)
    def open(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        options = self.options(rng)
        ids, others = (fleet.open(count, **options).tolist() for fleet in self.fleets)
        assert others == ids
        self.note(ids, rng, options, worded=rng.random() < 0.5)

    @rule(seed=SEEDS, name=st.text(max_size=5))
    def session(self, seed: int, name: str) -> None:
        rng = random.Random(seed)
        options = self.options(rng)
        tools = rng.sample(TOOLS, 3)
        handle, _ = (fleet.session(name, tools=tools, **options) for fleet in self.fleets)
        self.note([handle.id], rng, options, worded=True)
        assert handle.policy == self.under[handle.id]
        assert (handle.name, handle.decision.features.round) == (name, 0)

    @rule(seed=SEEDS)
    def close(self, seed: int) -> None:
        rng = random.Random(seed)
        ids = self.some(rng, 3)
        told = [rng.choice([None, True, False]) for _ in ids]
        self.pair.close(ids, told)
        self.other.close(ids, np.array([-1 if one is None else one for one in told], np.int8))
        for one, success in zip(ids, told, strict=True):
            self.known.close(one, success)
            del self.agents[one], self.under[one]
        self.closed += ids

    @precondition(lambda self: self.agents)
    @rule(seed=SEEDS)
    def attach(self, seed: int) -> None:
        one = random.Random(seed).choice(sorted(self.agents))
        for fleet in self.fleets:
            handle = fleet.attach(one)
            assert handle.id == one
            assert fleet.attach(one) is handle

    # The first fleet goes on without a stop, and the two stay the same.
    @precondition(lambda self: not self.durable)
    @rule(threads=st.integers(1, 3))
    def save_and_go_on_with_what_is_loaded(self, threads: int) -> None:
        with TemporaryDirectory() as folder:
            self.other.save(f"{folder}/fleet")
            self.other = Fleet.load(f"{folder}/fleet", threads=threads)
        self.fleets[1] = self.other

    @precondition(lambda self: self.durable)
    @rule(threads=st.integers(1, 3))
    def go_on_with_what_a_crash_leaves(self, threads: int) -> None:
        before, stopped = self.directory(), self.other
        self.opened += 1
        shutil.copytree(before, self.directory())
        self.other = Fleet.open_durable(self.directory(), fsync="never", threads=threads)
        self.fleets[1] = self.other
        stopped.shut()
        COUNTED["recovered"] += 1

    @precondition(lambda self: self.durable)
    @rule()
    def compact(self) -> None:
        self.other.compact()

    # --- rounds
    @rule(seed=SEEDS, filled=st.booleans(), wanted=st.sets(st.sampled_from(COLUMNS)))
    def step(self, seed: int, filled: bool, wanted: set[str]) -> None:
        rng = random.Random(seed)
        ids = [one for one in self.some(rng) if one not in self.worded]
        rounds = [self.agents[one].round() for one in ids]
        given = pack(rounds)
        before = self.newest[0] if self.newest and len(self.newest[0]) == len(ids) else None
        decisions = self.stepped(ids, rounds, given, out=before if filled else None)
        self.newest = decisions, self.other.step(ids, given, want=wanted)
        self.compare_columns(*self.newest, wanted | {"action", "candidates"})

    @rule(seed=SEEDS)
    def step_objects(self, seed: int) -> None:
        rng = random.Random(seed)
        ids = [one for one in self.some(rng) if one in self.worded]
        rounds, objects = self.in_words(ids)
        decisions = self.stepped(ids, rounds, objects)
        self.compare_columns(decisions, self.other.step(ids, tuple(objects)), set(COLUMNS))
        for fleet in self.fleets:
            for place, one in enumerate(ids):
                if one in fleet._handles:
                    assert in_numbers(fleet._handles[one].decision) == in_numbers(decisions[place])

    @precondition(lambda self: self.worded & set(self.pair.fleet._handles))
    @rule(seed=SEEDS)
    def step_a_handle(self, seed: int) -> None:
        rng = random.Random(seed)
        one = rng.choice(sorted(self.worded & set(self.pair.fleet._handles)))
        rounds, objects = self.in_words([one])
        left, right = (fleet._handles[one].step(objects[0]) for fleet in self.fleets)
        assert in_numbers(left) == in_numbers(right)
        try:
            self.pair.step_references([one], rounds, as_columns(left))
        except MetByChance:
            reject()
        self.known.reward(one, left.reward)

    def in_words(self, ids: list[int]) -> tuple[list[dict[str, Any]], list[Round]]:
        both = [in_words(self.agents[one].round()) for one in ids]
        return [described for described, _ in both], [round for _, round in both]

    def stepped(self, ids: list[int], rounds: Any, given: Any, **options: Any) -> Decisions:
        try:
            decisions = self.pair.step(ids, rounds, given, **options)
        except MetByChance:
            reject()
        for one, reward in zip(ids, decisions.reward.tolist(), strict=True):
            self.known.reward(one, reward)
        return decisions

    def compare_columns(self, left: Decisions, right: Decisions, names: set[str]) -> None:
        assert set(right.columns()) == names
        for name in names:
            assert same_bits(getattr(left, name), getattr(right, name)), name

    # --- events and policies
    @rule(seed=SEEDS)
    def user_message(self, seed: int) -> None:
        ids = self.some(random.Random(seed), 3)
        self.pair.user_message(ids)
        self.other.user_message(ids)

    @rule(seed=SEEDS)
    def compacted(self, seed: int) -> None:
        ids = self.some(random.Random(seed), 3)
        before = digest(self.pair.fleet)
        for fleet in self.fleets:
            fleet.compacted(ids)
        assert digest(self.pair.fleet) == before

    @rule(seed=SEEDS)
    def set_policy(self, seed: int) -> None:
        rng = random.Random(seed)
        name, preset = rng.choice(["default", "varied"]), rng.choice(["default", "cellium"])
        policy = random_policy(rng, preset, **self.kept, **rules_of_users.of_users(rng))
        ids = [one for one, under in self.under.items() if under == name]
        self.pair.set_policy(name, policy, ids)
        self.other.set_policy(name, policy)

    @rule(seed=SEEDS)
    def use_policy(self, seed: int) -> None:
        rng = random.Random(seed)
        # Between policies that await as many rewards: another rule is a departure of its own.
        ids = [one for one in self.some(rng, 3) if self.under[one] != "cellium"]
        name = rng.choice(["default", "varied", "greedy"])
        self.pair.use_policy(ids, name)
        self.other.use_policy(ids, name)
        self.under |= dict.fromkeys(ids, name)
        for one in ids:
            self.known.use(one, name)

    # --- looking
    @rule(seed=SEEDS, fuse=st.booleans(), repeat=st.booleans())
    def put_into_words(self, seed: int, fuse: bool, repeat: bool) -> None:
        before = [digest(fleet) for fleet in self.fleets]
        if self.newest is not None:
            decisions = self.newest[0]
            renderer = HardConstraintRenderer(random.Random(seed).randrange(480, 601))
            texts = renderer.render_many(decisions, fuse, repeat)
            assert texts == [renderer.render(one, fuse, repeat) for one in decisions]
            for one in decisions:
                say_all(one)
        for handle in self.pair.fleet._handles.values():
            say_all(handle.decision)
            assert isinstance(repr(handle) + handle.prompt, str)
        assert [digest(fleet) for fleet in self.fleets] == before

    @rule()
    def look(self) -> None:
        self.pair.compare_pools(1e-4)
        self.pair.compare_private(1e-4)
        for pool in self.pair.fleet.pools:
            for name, found in self.pair.fleet.policy_choice(pool).items():
                assert (found.alpha, found.beta) == pytest.approx(
                    self.known.shapes(pool, name), abs=1e-5
                )
                assert found.opened == self.known.opened[pool, name]
                assert found.learned == self.known.learned[pool, name]
        ids = sorted(self.agents)
        done = self.pair.fleet.done(ids)
        for one, ended in zip(ids, done.tolist(), strict=True):
            if one in self.pair.sessions:
                assert ended == self.pair.sessions[one]["done"]

    # --- what is refused, and what is strange
    @rule(seed=SEEDS)
    def hostile(self, seed: int) -> None:
        rng = random.Random(seed)
        for fleet in self.fleets:
            ids = self.some(rng, 3) or sorted(self.agents)[:1]
            if not ids:
                return
            before = digest(fleet)
            for name, make in hostile_calls(fleet, ids, self.closed, rng).items():
                assert refused_or_raised(make), f"{name} was not refused, seed {seed}"
                after = digest(fleet)
                assert after == before, f"{name} changed something, seed {seed}"
                COUNTED["refused"] += 1

    @precondition(lambda self: self.fleets[0]._handles)
    @rule(seed=SEEDS, value=st.sampled_from(sorted({*NOT_JSON, *NEVER_RAISE} - {
        "10 MB", "10 MB value", "10 MB of bytes", "deep", "deep text",
    })))
    def strange(self, seed: int, value: str) -> None:
        """Strange values on a fleet of its own, beside: what they hash to is tested elsewhere."""
        rng = random.Random(seed)
        make = (NOT_JSON | NEVER_RAISE)[value]
        fleet = Fleet(seed=seed)
        with fleet.session(value, tools=["a"]) as session:
            for _ in range(3):
                signature = rng.choice([None, [make()]])
                call = ToolCall(rng.choice(["a", "\ud800", "\0", ""]), make(), make(),
                                rng.choice([None, True, "\udfff"]), None, signature)
                fleet.step([session.id], [Round([call] * rng.randrange(3), text="\ud800 \0")])
                say_all(session.step(Round([call])))
        assert len(fleet) == 0

    # --- always
    @invariant()
    def both_fleets_are_the_same(self) -> None:
        if not hasattr(self, "fleets"):
            return
        left, right = map(digest, self.fleets)
        for name in left:
            assert left[name] == right[name], name
        assert left["opened"][1:] == (len(self.agents), len(self.agents))
        assert self.other.ids.tolist() == list(self.agents), "in opening order"
        COUNTED["calls"] += 1


def say_all(decision: Any) -> None:
    """All that a decision says in words."""
    for text in (decision.explain(), decision.prompt, repr(decision), str(decision.cause)):
        assert isinstance(text, str)
    assert (decision.stop_cause is not None) == (decision.action == 4)
    known = {*RULES, *(one.name for one in rules_of_users.RULES)}
    assert decision.evidence is None or decision.evidence.rule in known


def in_numbers(decision: Any) -> tuple[Any, ...]:
    """All that a decision says in numbers."""
    return (decision.action, decision.candidates, decision.rules, decision.reward,
            decision.features, decision.draws, decision.bias, decision.advice_age,
            decision.user_rules)  # fmt: skip


def as_columns(decision: Any) -> Decisions:
    """One decision as the columns of a batch."""
    decisions = Decisions(1, np.zeros(1, np.uint16), [decision.setting])
    for name in COLUMN_TYPES:
        decisions.columns()[name][0] = getattr(decision._record, name)
    return decisions


LENGTHS = {"short": (40, 30), "long": (3_000, 60)}


@pytest.mark.parametrize("form", [
    "short", pytest.param("long", marks=pytest.mark.long),
])
def test_any_calls_in_any_order(form: str, rng: Any) -> None:
    examples, steps = LENGTHS[form]
    COUNTED.clear()
    seeded = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
        print_blob=True, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],    # what fails is shown as it is: to make it shorter takes minutes
    )
    run_state_machine_as_test(seed(rng.first_seed)(Calls), settings=seeded)
    print(dict(COUNTED))
    assert COUNTED["calls"] > 10 * examples
    assert COUNTED["refused"] > examples
    assert COUNTED["recovered"] > examples / 20
    assert COUNTED["chosen"] > examples / 10


def test_the_digest_sees_every_kind_of_change() -> None:
    fleet = Fleet(policies={"a": Policy(), "b": Policy()})
    session = fleet.session("x", tools=["search"])
    failed = Round([ToolCall("search", 1, "broken", error=True)])
    changes = [
        lambda: fleet.open(2), lambda: session.step(failed), lambda: fleet.close([1], [True]),
        lambda: session.step(Round([ToolCall("read")] * 3)), lambda: session.user_message(),
        lambda: fleet.set_policy("b", "cellium"), lambda: session.use_policy("b"),
        lambda: session.close(), lambda: fleet.open(1, policy="auto"),
    ]  # fmt: skip
    seen = [digest(fleet)]
    for change in changes:
        change()
        seen.append(digest(fleet))
        assert seen[-1] != seen[-2]
    changed = {name for before, after in pairwise(seen) for name in before
               if before[name] != after[name]}  # fmt: skip
    # Increments are of nothing between two calls.
    assert changed == set(seen[0]) - {"increments"}


def test_a_name_that_is_an_array_is_refused() -> None:
    fleet = Fleet()
    for name in (np.array(["a", "b"]), np.zeros(2), [[]], {}):
        for call_with in (
            lambda name: fleet.open(1, policy=name), lambda name: fleet.open(1, pool=name),
            lambda name: fleet.use_policy([], name), fleet.posterior,
        ):  # fmt: skip
            with pytest.raises(UnknownNameError):
                call_with(name)
