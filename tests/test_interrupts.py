"""Interrupts at random moments: every call of a fleet takes effect as a whole or not at all."""

import ctypes
import gc
import random
import signal
import threading
import time

import numpy as np
import pytest
import rules_of_users

from cellium_fast import Fleet, Policy, Round, RoundBatch, ToolCall, _spans, pipeline

SIZE = 12_000
POLICIES = [
    Policy(), Policy(tool_limits={"poll": 5}), Policy.preset("cellium"),
    Policy(user_rules=(rules_of_users.raises,)),    # may fail: a step is tried, then taken
]

needs_timers = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="no timer signals on this system"
)


@pytest.fixture(autouse=True)
def no_callbacks():
    """What others call at each garbage collection would take an interrupt and lose it."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)


class Interrupt(Exception):
    pass


class Alarms:
    """Interrupts the main thread once, at a random moment of what runs within it."""

    def __init__(self, random_state: random.Random) -> None:
        self.random = random_state
        self.hits = 0

    def __enter__(self):
        self.before = signal.signal(signal.SIGALRM, self.interrupt)
        return self

    def __exit__(self, *problem):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)

    def interrupt(self, *_):
        raise Interrupt

    def call(self, function, *arguments, within: float, **keywords) -> bool:
        """Whether the call ended by itself."""
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + within * self.random.random())
            function(*arguments, **keywords)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            self.hits += 1
            return False
        return True


def rounds_of(turn: int, size: int) -> RoundBatch:
    state = np.random.default_rng(turn)
    return RoundBatch(
        call_offsets=np.arange(size + 1),
        call_tool=state.integers(1, 4, size).astype(np.uint64),
        call_signature=state.integers(1, 6, size).astype(np.uint64),
        context_tokens=state.integers(0, 1000, size),
        tools={turn * 4 + 1: f"tool {turn}"},
    )


def state_of(fleet: Fleet) -> tuple[object, ...]:
    """All that a call changes."""
    memory = fleet._memory
    return (
        memory.sessions[: memory.used].tobytes(), memory.pools.tobytes(),
        memory.policies.tobytes(), memory.used, memory.opened, memory.open_count,
        memory.free[: memory.free_count].tolist(), fleet._increments.tobytes(),
        [None if one is None else one.tobytes() for one in memory.choices_made()],
        fleet._policies, [setting.policy for setting in fleet._settings],
        list(fleet._names._tools.items()), fleet._names.forgotten,
        {
            key: (
                handle.id, handle._unused, handle._setting.policy, handle._setting.used_tools,
                repr(handle._decision), handle._decision.draws,
            )
            for key, handle in fleet._handles.items()
        },
    )


def check_slots(fleet: Fleet) -> None:
    """Every slot used so far is of an open session or free, and none is both."""
    memory = fleet._memory
    flags = memory.sessions["flags"]
    free = memory.free[: memory.free_count].tolist()
    assert sorted(free) == np.flatnonzero(flags[: memory.used] == 0).tolist()
    assert not flags[memory.used :].any()
    assert len(fleet) == memory.used - len(free) == len(fleet.ids)
    assert len(memory.watched) == 0 or np.flatnonzero(memory.watched).tolist() == sorted(
        key & 0xFFFFFFFF for key in fleet._handles
    )


class Twin:
    """A fleet that is interrupted, and one that makes exactly the calls that took effect."""

    def __init__(self, threads: int) -> None:
        self.pair = [
            Fleet(seed=5, threads=threads, policies={"first": POLICIES[0], "second": POLICIES[1]})
            for _ in range(2)
        ]
        for fleet in self.pair:
            fleet.open(SIZE)
            fleet.session("agent", tools=["a", "b", "c", "d"])
        self.took_effect = 0

    def call(self, alarms: Alarms, act, *, within: float) -> None:
        """Interrupt a call; if anything has changed, all has, as the other fleet says."""
        interrupted, other = self.pair
        before = state_of(interrupted)
        ended = alarms.call(act, interrupted, within=within)
        after = state_of(interrupted)
        if ended or after != before:
            act(other)
            if not ended:
                self.took_effect += 1
        assert state_of(other) == after
        check_slots(interrupted)


def act_of(kind: str, turn: int, ids: list[int], handle: int):
    """A call with arguments that are the same for both fleets."""
    if kind == "step":
        return lambda fleet: fleet.step(ids, rounds_of(turn, len(ids)))
    if kind == "open":
        policy = "auto" if turn % 4 < 2 else None
        return lambda fleet: fleet.open(1 + turn % 3000, private=bool(turn % 2), policy=policy)
    if kind == "session":
        return lambda fleet: fleet.session(f"agent {turn}", tools=["a"])
    if kind == "close":
        gone = ids[1 :: 1 + turn % 7][:2000]
        return lambda fleet: fleet.close(gone, success=True)
    if kind == "round":
        call = ToolCall("abcd"[turn % 4], {"x": turn % 3}, error=f"failed {turn % 2 * 'x'}")
        return lambda fleet: fleet.attach(handle).step(Round([call]))
    if kind == "user_message":
        return lambda fleet: fleet.user_message(ids)
    if kind == "use_policy":
        return lambda fleet: fleet.use_policy(ids, ("first", "second")[turn % 2])
    assert kind == "set_policy"
    return lambda fleet: fleet.set_policy("first", POLICIES[turn % len(POLICIES)])


# How long each call takes, about, so that interrupts come at all of its moments.
WITHIN = {
    "step": 6e-3, "open": 3e-4, "session": 3e-4, "close": 5e-4, "round": 1e-4,
    "user_message": 1e-3, "use_policy": 1e-3, "set_policy": 5e-4,
}


def interrupt_calls(threads: int, turns: int, state: random.Random) -> tuple[int, int]:
    """Interrupted calls, and those among them that took effect."""
    twin = Twin(threads)
    with Alarms(state) as alarms:
        for turn in range(turns):
            ids = twin.pair[0].ids[: SIZE + 1].tolist()
            handle = next(iter(twin.pair[0]._handles))
            kind = state.choice(list(WITHIN))
            if handle in ids:
                ids.remove(handle)      # stays open
            if kind == "close" and len(ids) < SIZE:
                kind = "open"
            twin.call(alarms, act_of(kind, turn, ids, handle), within=WITHIN[kind])
    return alarms.hits, twin.took_effect


@needs_timers
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_interrupted_call_takes_effect_as_a_whole_or_not_at_all(threads, rng):
    hits, took_effect = interrupt_calls(threads, 250, rng)
    assert hits > 40
    assert 0 < took_effect < hits


@pytest.mark.long
@needs_timers
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_interrupted_calls_take_effect_as_a_whole_or_not_at_all(threads, rng):
    hits, took_effect = interrupt_calls(threads, 20_000, rng)
    assert hits > 4000
    assert 0 < took_effect < hits


@needs_timers
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_sessions_of_an_interrupted_batch_have_the_same_round(threads, rng):
    fleet = Fleet(threads=threads)
    ids = fleet.open(20_000)
    rounds = RoundBatch(context_tokens=np.zeros(20_000, np.int64))
    rounds_before = 0
    took_effect = 0
    with Alarms(rng) as alarms:
        for _ in range(150):
            ended = alarms.call(fleet.step, ids, rounds, within=5e-3)
            if not ended:
                left = fleet._memory.sessions.tobytes()
                time.sleep(0.001)
                assert fleet._memory.sessions.tobytes() == left, "no thread goes on writing"
            counts = np.unique(fleet._memory.sessions["round"][:20_000])
            assert len(counts) == 1
            assert counts[0] - rounds_before in ((1,) if ended else (0, 1))
            took_effect += int(not ended and counts[0] > rounds_before)
            rounds_before = counts[0]
    assert alarms.hits > 20
    assert took_effect > 5


# --- exceptions set from another thread ----------------------------------------------------------
class Killed(BaseException):
    pass


def kill(ident: int) -> None:
    """Raise an exception in the thread of this ident, as soon as it runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Killed))


class Worker(threading.Thread):
    """Works on its own sessions of a fleet; `kill` raises an exception in it, wherever it is."""

    def __init__(self, fleet: Fleet, size: int) -> None:
        super().__init__(daemon=True)
        self.fleet, self.ids = fleet, fleet.open(size)
        self.over = threading.Event()
        self.ready = False
        self.sent = self.hits = 0

    def kill(self) -> None:
        if self.ready:
            self.ready = False
            self.sent += 1
            kill(self.ident)

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.ready = True
                self.work()
            except Killed:
                self.hits += 1

    def work(self) -> None:
        handle = self.fleet.attach(int(self.ids[0]))
        others = self.ids[1:]
        rounds = RoundBatch(context_tokens=np.zeros(len(others), np.int64))
        while not self.over.is_set():
            self.fleet.step(others, rounds)
            handle.step(Round([ToolCall("a", "x")]))
            self.fleet.user_message(others)
            self.fleet.close(self.fleet.open(3))


@pytest.mark.parametrize("threads", [1, 3])
def test_exceptions_set_from_another_thread_leave_a_whole_fleet(threads, rng):
    fleet = Fleet(threads=threads)
    workers = [Worker(fleet, 10_000) for _ in range(3)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60
    while sum(worker.hits for worker in workers) < 60 and time.monotonic() < deadline:
        rng.choice(workers).kill()
        time.sleep(0.02 * rng.random())
    while any(worker.hits < worker.sent for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.001)
    for worker in workers:
        worker.over.set()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive(), "no turn is lost"
        counts = np.unique(fleet._memory.sessions["round"][worker.ids[1:]])
        assert len(counts) == 1, "a batch is stepped as a whole or not at all"
        assert counts[0] > 0
        assert worker.hits == worker.sent, "no exception is lost"
    assert sum(worker.hits for worker in workers) >= 60
    assert len(fleet.step(workers[0].ids, RoundBatch())) == 10_000
    check_slots(fleet)


def test_an_exception_set_for_a_thread_that_helps_ends_the_call():
    wait, helpers = threading.Lock(), set()

    def kill_helper() -> None:
        while not helpers:
            time.sleep(0.001)
        kill(*helpers)
        wait.release()

    wait.acquire()
    with pytest.raises(Killed):     # though its span runs no Python code
        _spans.run_spans([kill_helper, wait.acquire], helpers)
    assert not helpers


# --- stages --------------------------------------------------------------------------------------
def test_a_stage_that_fails_leaves_no_session_between_two_stages(monkeypatch):
    fleet, plain = Fleet(threads=2), Fleet(threads=2)
    ids = fleet.open(20_000)
    plain.open(20_000)
    rounds = RoundBatch(context_tokens=np.arange(20_000))

    def fail(batch, start, stop):
        if start == 10_000 or stop == 20_000:
            raise ValueError(stop)

    monkeypatch.setattr(pipeline, "STAGES", (fail, *pipeline.STAGES))
    with pytest.raises(ValueError, match="0"):
        fleet.step(ids, rounds)
    monkeypatch.undo()
    plain.step(ids, rounds)
    assert state_of(fleet) == state_of(plain)


def test_a_journal_that_fails_means_that_nothing_changed():
    class Full:
        def __getattr__(self, name):
            return lambda *arguments: name

        def append(self, entry):
            raise OSError(entry)

        def append_round(self, session_id, address, tools, errors, used):
            raise OSError("round")

    fleet = Fleet()
    session = fleet.session("agent", tools=["a"])
    ids = fleet.open(3)
    fleet._journal = fleet._stepper.journal = Full()
    before = state_of(fleet)
    one = Round([ToolCall("a", error="new")])
    calls = {
        "entry_of_open": lambda: fleet.open(100), "entry_of_close": lambda: fleet.close(ids),
        "entry_of_step": lambda: fleet.step(ids, [one] * 3), "round": lambda: session.step(one),
        "entry_of_user_message": lambda: fleet.user_message(ids),
        "entry_of_compacted": lambda: fleet.compacted(ids),
        "entry_of_set_policy": lambda: fleet.set_policy("default", "cellium"),
        "entry_of_use_policy": lambda: fleet.use_policy(ids, "default"),
        "entry_of_attach": lambda: fleet.attach(int(ids[0])),
    }
    for entry, call in calls.items():
        with pytest.raises(OSError, match=entry):
            call()
        assert state_of(fleet) == before, entry
    for opening in (fleet.session, lambda: fleet.open(5, policy="auto")):
        with pytest.raises(OSError, match="entry_of_open"):
            opening()
    assert state_of(fleet) == before
