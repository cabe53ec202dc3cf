"""Objects and callers that misbehave: no crash, no state of another session touched."""

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from cellium_fast import (
    Fleet,
    InputError,
    Policy,
    Posterior,
    ReentryError,
    Round,
    RoundBatch,
    ToolCall,
    _spans,
    pipeline,
)
from cellium_fast._rules import RULES
from cellium_fast.action import Action
from cellium_fast.decision import Cause, cause_of
from cellium_fast.errors import PolicyError
from cellium_fast.stable_text import canonical


class Meddling(Mapping):
    """A result that does something as soon as it is looked at."""

    def __init__(self, act) -> None:
        self.act = act

    def __len__(self) -> int:
        self.act()
        return 1

    def __iter__(self):
        return iter(["output"])

    def __getitem__(self, key):
        return {"output": "text"}[key]

    def __reduce_ex__(self, protocol):
        self.act()
        return str, ("x",)


class Lying(Sequence):
    """Calls that say any length and give one call."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place):
        if place > 0:
            raise IndexError
        return ToolCall("a")


# --- sequences -----------------------------------------------------------------------------------
def test_calls_that_vanish_while_they_are_packed():
    fleet = Fleet()
    calls = [ToolCall(f"tool {place}") for place in range(50)]
    calls[0].result = Meddling(calls.clear)
    decision = fleet.session().step(Round(calls))
    assert decision.features.round == 1


def test_rounds_that_vanish_while_they_are_packed():
    rounds = [Round([ToolCall("a", place)]) for place in range(50)]
    rounds[0].calls[0].result = Meddling(rounds.clear)
    assert RoundBatch.from_rounds(rounds).size == 50


@pytest.mark.parametrize("length", [0, 5, 2**40, 2**62])
def test_a_length_that_lies(length):
    fleet = Fleet()
    session = fleet.session()
    session.step(Round(Lying(length)))
    batch = RoundBatch.from_rounds([Round(Lying(length))] * 4)
    assert batch.call_offsets.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("calls", [range(10**11), range(2**61), range(2**61 + 1)])
def test_endless_calls_are_refused_at_the_first_that_is_none(calls):
    session = Fleet().session()
    session.step(Round([ToolCall("a")]))
    with pytest.raises(InputError, match=r"calls\[0\]: wanted a ToolCall, got int"):
        session.step(Round(calls))
    assert session.step(Round([ToolCall("a")])).features.round == 2


def test_calls_changed_by_another_thread():
    shared = [ToolCall(f"tool {place}", {"x": place}) for place in range(40)]
    session = Fleet().session()
    over = threading.Event()

    def change():
        while not over.is_set():
            shared.clear()
            shared.extend(ToolCall(f"tool {place}", {"x": place}) for place in range(40))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            session.step(Round(shared))
    finally:
        over.set()
        thread.join()
    assert session.decision.features.round == 300


def test_calls_that_can_be_read_once():
    class Once(Lying):
        def __iter__(self):
            self.length -= 1
            if self.length < 0:
                raise ValueError("read once")
            return iter([ToolCall("a")])

    session = Fleet().session(tools=["a", "b"])
    assert session.step(Round(Once(1))).setting.used_tools == {"a"}


def test_classes_made_of_rounds_and_calls_are_read_by_name():
    class Shouting(ToolCall):
        @property
        def result(self):
            return "loud"

        @result.setter
        def result(self, value):
            pass

    class Late(Round):
        @property
        def text(self):
            return "late"

        @text.setter
        def text(self, value):
            pass

    batch = RoundBatch.from_rounds([Late([Shouting("a", result="quiet")])])
    same = RoundBatch.from_rounds([Round([ToolCall("a", result="loud")], text="late")])
    assert (batch.call_result, batch.text) == (same.call_result, same.text)


def test_an_attribute_that_was_deleted():
    call, round = ToolCall("a"), Round()
    del call.result, round.text
    session = Fleet().session()
    for broken in (Round([call]), round):
        with pytest.raises(AttributeError):
            session.step(broken)
    assert session.step(Round()).features.round == 1


# --- calling back --------------------------------------------------------------------------------
def test_a_value_that_steps_its_own_session():
    fleet = Fleet()
    session = fleet.session()
    inner = Round([ToolCall("inner", place) for place in range(30)])
    outer = Round([ToolCall("outer", result=Meddling(lambda: session.step(inner)))])
    session.step(outer)
    plain = Fleet().session()
    calls = int(fleet._memory.sessions["calls"][0])
    assert calls % 30 == 1, "the outer call counts as itself"
    assert plain.step(Round([ToolCall("outer", result={"output": "text"})])).features.round == 1


def test_a_value_that_closes_its_own_session():
    fleet = Fleet()
    session = fleet.session()
    acts = iter([session.close])
    with pytest.raises(InputError, match="is closed"):
        session.step(Round([ToolCall("a", result=Meddling(lambda: next(acts, int)()))]))
    assert len(fleet) == 0


def test_an_outcome_that_closes_the_session_it_is_of():
    fleet = Fleet()
    ids = fleet.open(1)

    class Closing:
        def __array__(self, dtype=None, copy=None):
            fleet.close(ids)
            return np.array([True])

    with pytest.raises(InputError, match="is closed"):
        fleet.close(ids, Closing())
    again = fleet.open(2)
    assert len(set((again & 0xFFFFFFFF).tolist())) == 2, "no slot is given twice"


def test_packing_holds_no_lock():
    fleet = Fleet()
    slow, other = fleet.session(), fleet.session()
    entered, release = threading.Event(), threading.Event()

    def wait():
        entered.set()
        release.wait(10)

    round = Round([ToolCall("a", result=Meddling(wait))])
    thread = threading.Thread(target=slow.step, args=(round,))
    thread.start()
    assert entered.wait(10)
    assert other.step(Round()).features.round == 1     # while the value above still waits
    release.set()
    thread.join()
    assert slow.decision.features.round == 1


# --- memory --------------------------------------------------------------------------------------
def test_offsets_that_change_after_the_check():
    count = 20_000
    fleet = Fleet(threads=2)
    ids = fleet.open(count)
    offsets = np.arange(count + 1)
    ones = np.ones(count, np.uint64)
    batch = RoundBatch(offsets, ones, ones)
    columns = batch.checked(count)
    assert not np.shares_memory(columns["call_offsets"], offsets)
    assert len(fleet.step(ids, batch)) == count


def test_columns_cannot_be_replaced_to_move_the_end():
    fleet = Fleet()
    decisions = fleet.step(fleet.open(2), [Round(), Round()])
    with pytest.raises(AttributeError):
        decisions.action = np.zeros(10_000_000, np.uint8)
    with pytest.raises(IndexError, match="there are 2 decisions, got 5000000"):
        decisions[5_000_000]


@pytest.mark.parametrize("problem", [RuntimeError("can't start new thread"), MemoryError()])
def test_without_threads_to_start_a_batch_is_stepped_all_the_same(monkeypatch, problem):
    def none_left(*_):
        raise problem

    alone, helped = Fleet(seed=1, threads=1), Fleet(seed=1, threads=3)
    ids = alone.open(20_000)
    helped.open(20_000)
    rounds = RoundBatch(context_tokens=np.arange(20_000))
    monkeypatch.setattr(_spans, "start_new_thread", none_left)
    for _ in range(2):
        assert alone.step(ids, rounds).action.tobytes() == helped.step(ids, rounds).action.tobytes()
    assert set(helped._memory.sessions["round"][:20_000].tolist()) == {2}


def test_the_first_failure_of_a_span_is_raised_when_all_have_ended():
    ended = []

    def fail(place):
        time.sleep(0.02 * place)
        ended.append(place)
        raise ValueError(place)

    with pytest.raises(ValueError, match="0"):
        _spans.run_spans([partial(fail, place) for place in range(4)], helpers := set())
    assert sorted(ended) == [0, 1, 2, 3]
    assert not helpers
    _spans.run_spans([partial(ended.append, 4)] * 3, helpers)
    assert ended[4:] == [4, 4, 4]


class Owner:
    """Closes its session when it is collected, as users' own classes may."""

    def __init__(self, fleet, refused):
        self.fleet, self.refused = fleet, refused
        self.session = fleet.session()
        self.circle = self      # so that only the collector ends it

    def __del__(self):
        try:
            self.session.close()
        except ReentryError:
            self.refused.append(threading.get_ident())


@pytest.mark.parametrize("threads", [1, 3])
def test_a_finalizer_within_a_step_is_refused_instead_of_waiting_for_ever(threads, monkeypatch):
    fleet = Fleet(threads=threads)
    ids = fleet.open(20_000)
    rounds = RoundBatch(context_tokens=np.zeros(20_000, np.int64))
    refused, spans = [], set()

    def collect(*chunk):
        spans.add(threading.get_ident())
        gc.collect()

    gc.freeze()     # what other tests left behind is not looked through for every chunk
    try:
        owners = [Owner(fleet, refused) for _ in range(3)]
        names = [owner.session.id for owner in owners]
        monkeypatch.setattr(pipeline, "STAGES", (*pipeline.STAGES, collect))
        del owners
        fleet.step(ids, rounds)
    finally:
        gc.unfreeze()
    assert len(refused) == 3
    assert set(refused) <= spans
    assert not fleet.done(names).any()      # the fleet works, and they are still open


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals on this system")
def test_a_signal_handler_within_a_step_is_refused():
    fleet = Fleet(threads=2)
    ids = fleet.open(20_000)
    rounds = RoundBatch(context_tokens=np.zeros(20_000, np.int64))
    before = signal.signal(signal.SIGALRM, lambda *_: fleet.open(100_000))
    refused = 0
    try:
        for turn in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + turn % 40))
                fleet.step(ids, rounds)
            except ReentryError as error:
                assert "cannot call the fleet" in str(error)
                refused += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if refused > 5:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert refused
    assert len(fleet.step(ids, rounds)) == 20_000


def test_two_threads_with_a_fleet_each_do_not_meet():
    code = (
        "import sys, threading, time, cellium_fast as c\n"
        "sys.setswitchinterval(1e-5)\n"
        "end = time.monotonic() + 3\n"
        "def work():\n"
        "    fleet = c.Fleet(threads=1); ids = fleet.open(9)\n"
        "    while time.monotonic() < end:\n"
        "        fleet.step(ids, c.RoundBatch()); fleet.user_message(ids)\n"
        "        fleet.close(ids); ids = fleet.open(9)\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_fleet_steps_in_a_thread_that_outlives_the_main_one():
    code = (
        "import threading, numpy as np, cellium_fast as c\n"
        "f = c.Fleet(threads=2); ids = f.open(20_000)\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    print(f.step(ids, c.RoundBatch()))\n"
        "threading.Thread(target=late).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("<Decisions of 20000: continue 20000>\n", "")


# --- values --------------------------------------------------------------------------------------
class Node:
    def __init__(self) -> None:
        self.links: list[object] = []


def test_a_graph_takes_no_longer_than_its_objects():
    nodes = [Node() for _ in range(60)]
    for node in nodes:
        node.links = nodes
    left, right = [Node() for _ in range(30)], [Node() for _ in range(30)]
    for node in left:
        node.links = list(right)
    for node in right:
        node.links = list(left)
    shared: list[object] = [b"leaf"]
    for _ in range(60):
        shared = [shared, shared]
    nested: frozenset[object] = frozenset()
    for _ in range(60):
        nested = frozenset([(0, nested), (1, nested)])
    started = time.perf_counter()
    keyed = {1: nodes, (2,): shared}
    for value in ({"s": nested}, nodes, left, shared, keyed, [{3, 4}, nodes, nodes]):
        assert canonical(value) == canonical(value)
    assert time.perf_counter() - started < 5


class Unlucky(int):
    def bit_length(self):
        raise RuntimeError


class Proxy:
    @property
    def __class__(self):
        raise RuntimeError


class Odd(type):
    @property
    def __module__(cls):
        raise RuntimeError


class OfOdd(metaclass=Odd):
    pass


ODD_VALUES = {
    "number": lambda: Unlucky(5),
    "number in a list": lambda: [Unlucky(5), b""],
    "proxy": Proxy,
    "proxy in a list": lambda: [Proxy()],
    "class": lambda: OfOdd,
    "object": OfOdd,
    "object in a list": lambda: [OfOdd()],
    "object in a set": lambda: {OfOdd()},
    "proxy as status": lambda: {"status": Proxy(), "error": b""},
}


@pytest.mark.parametrize("name", ODD_VALUES)
def test_no_object_raises(name):
    value = ODD_VALUES[name]()
    batch = RoundBatch.from_rounds([Round([ToolCall("a", value, value)])])
    again = RoundBatch.from_rounds([Round([ToolCall("a", value, value)])])
    assert batch.call_signature == again.call_signature
    assert batch.call_result == again.call_result


# --- policies ------------------------------------------------------------------------------------
def test_a_copy_of_a_policy_is_checked():
    with pytest.raises(PolicyError, match="n_step"):
        Policy().model_copy(update={"n_step": 8})
    with pytest.raises(PolicyError, match="output_loop forces"):
        Policy().model_copy(update={"rules": {"output_loop": {"actions": ()}}})
    assert Policy().model_copy(update={"n_step": 2}).n_step == 2


def test_a_policy_made_without_checks_is_checked_by_the_fleet():
    broken = Policy.model_construct(**(dict(Policy()) | {"n_step": 8}))
    with pytest.raises(PolicyError, match="n_step"):
        Fleet(policies={"broken": broken})
    with pytest.raises(PolicyError, match="alpha"):
        Fleet(pools={"broken": Posterior.model_construct(**(dict(Posterior()) | {"alpha": -1.0}))})


def test_a_section_given_as_a_model_keeps_what_it_does_not_set():
    rules = Policy().rules.model_copy
    loop = type(Policy().rules.output_loop)(repeats=3)
    merged = Policy.preset("cellium", rules=type(Policy().rules)(output_loop=loop))
    assert merged.rules.output_loop.repeats == 3
    assert merged.rules.context_high.saturation == 0.5
    assert rules(update={"output_loop": {"repeats": 4}}).output_loop.repeats == 4


def test_the_cause_is_a_rule_that_could_give_the_action():
    policy = Policy(rules={
        "context_high": {"saturation": 0.2}, "tool_cycle": {"alone": False, "compress_from": 0.5},
    })
    fired = 1 << RULES.index("tool_cycle") | 1 << RULES.index("context_high")
    assert cause_of(Action.REDIRECT, fired, policy, 0.3) == Cause.LOOP
    assert cause_of(Action.COMPRESS, fired, policy, 0.3) == Cause.CONTEXT
    assert cause_of(Action.COMPRESS, fired, policy, 0.6) == Cause.LOOP


# --- names ---------------------------------------------------------------------------------------
def test_a_tool_still_in_use_keeps_its_name():
    fleet = Fleet()
    session = fleet.session()
    same = Round([ToolCall("search", {"q": 1}, "nothing")])
    session.step(same)
    many = fleet.session()
    many.step(Round([ToolCall(f"tool {place}") for place in range(10_500)]))
    for _ in range(5):
        decision = session.step(same)
    assert "search" in decision.explain()


def test_an_error_still_seen_keeps_its_text():
    fleet = Fleet()
    session = fleet.session()
    same = Round([ToolCall("search", {"q": 1}, error="no such index")])
    session.step(same)
    many = fleet.session()
    many.step(Round([
        ToolCall("a", error="x".join("abcdefghij"[int(digit)] for digit in str(place)) + "y")
        for place in range(10_500)
    ]))
    for _ in range(5):
        decision = session.step(same)
    assert "no such index" in decision.explain()


# --- small things --------------------------------------------------------------------------------
def test_empty_lists_are_as_good_as_empty_arrays():
    fleet = Fleet()
    assert fleet.open(0, context_limit=[], round_limit=[]).tolist() == []
    fleet.close([], success=[])
    assert len(fleet.step([], [])) == 0


@pytest.mark.parametrize("column", [[-2, 5], [-(2**63), 5]])
def test_a_negative_size_in_a_column_is_not_told(column):
    fleet = Fleet()
    ids = fleet.open(2, context_limit=100)
    fleet.step(ids, RoundBatch(context_tokens=np.array([50, 50])))
    decisions = fleet.step(ids, RoundBatch(context_tokens=np.array(column)))
    assert decisions.features["context_ratio"].tolist() == [0.5, 0.05]


def test_an_infinite_limit_is_an_unknown_one():
    session = Fleet().session(context_limit=100)
    assert session.step(Round(context_tokens=50)).features.context_known
    assert not session.step(Round(context_limit=float("inf"))).features.context_known


def test_masked_arrays_are_refused():
    fleet = Fleet()
    tokens = np.ma.masked_array(np.array([5, 6]), mask=[True, False])
    with pytest.raises(InputError, match="context_tokens: wanted an array without a mask"):
        fleet.step(fleet.open(2), RoundBatch(context_tokens=tokens))


@pytest.mark.parametrize("tables", [{"tools": {"x": "a"}}, {"tools": {-1: "a"}},
                                    {"errors": {1: 2}}, {"errors": [1]}])
def test_tables_of_names_are_checked(tables):
    fleet = Fleet()
    with pytest.raises(InputError, match=r"(tools|errors): wanted texts by hash"):
        fleet.step(fleet.open(1), RoundBatch(text=np.array([1], np.uint64), **tables))
