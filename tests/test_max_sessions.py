"""Fleets with room for so many sessions: who was used longest ago goes, and memory stays flat."""

import random

import numpy as np
import pytest

from cellium_fast import Fleet, InputError, Round, RoundBatch, SessionError, ToolCall


class Model:
    """The same in plain Python: open ids, the one used longest ago first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.ids: list[int] = []
        self.evicted = 0

    def open(self, ids: list[int]) -> None:
        over = max(len(self.ids) + len(ids) - self.most, 0)
        self.evicted += over
        self.ids = self.ids[over:] + ids

    def use(self, ids: list[int], opened: list[int]) -> None:
        # Those of one call are in the order of their opening.
        self.ids = [one for one in self.ids if one not in set(ids)]
        self.ids += sorted(ids, key=opened.index)

    def close(self, ids: list[int]) -> None:
        self.ids = [one for one in self.ids if one not in set(ids)]


def play(most: int, turns: int, seed: int) -> Fleet:
    state = random.Random(seed)
    fleet, model = Fleet(max_sessions=most), Model(most)
    opened: list[int] = []
    for _ in range(turns):
        kind = state.choice(["open", "session", "session", "step", "step", "round", "close"])
        some = state.sample(model.ids, state.randint(0, min(len(model.ids), 5)))
        if kind == "open":
            new = fleet.open(state.randint(0, most)).tolist()
            model.open(new)
            opened += new
        elif kind == "session":
            new = fleet.session("x").id
            model.open([new])
            opened.append(new)
        elif kind == "step":
            fleet.step(np.array(some, np.int64), RoundBatch())
            model.use(some, opened)
        elif kind == "round" and model.ids:
            one = state.choice(model.ids)
            fleet.attach(one).step(Round())
            model.use([one], opened)
        elif kind == "close":
            fleet.close(np.array(some, np.int64))
            model.close(some)
        assert sorted(fleet.ids.tolist()) == sorted(model.ids)
        assert fleet.ids.tolist() == sorted(model.ids, key=opened.index)
        assert fleet.evicted == model.evicted
        assert len(fleet) == len(model.ids) <= most
        assert set(fleet._handles) <= set(model.ids)
    return fleet


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_sessions_used_longest_ago_go_as_in_plain_python(most):
    seed = random.randrange(2**32)
    print("seed", seed)
    fleet = play(most, 300, seed)
    assert fleet.evicted > 20
    assert fleet._memory.used <= most


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_sessions_used_longest_ago_go_as_in_plain_python_at_length(seed):
    play(1 + seed**2, 20_000, seed)


def test_a_handle_of_a_session_that_had_to_go_says_why():
    fleet = Fleet(max_sessions=2)
    first, second = fleet.session("first"), fleet.session("second")
    first.step(Round())
    third = fleet.session("third")
    with pytest.raises(SessionError, match=r"has room for 2 sessions.*used longest ago"):
        second.step(Round())
    with pytest.raises(SessionError, match="used longest ago"):
        _ = second.done
    with pytest.raises(SessionError, match="is closed"):
        second.close()
    assert first.step(Round()).features.round == 2
    third.close()
    with pytest.raises(SessionError, match="is closed; open a new one"):
        third.step(Round())
    assert (len(fleet), fleet.evicted, fleet.max_sessions) == (1, 1, 2)
    with fleet.session("fourth"), fleet.session("fifth") as fifth:
        fleet.open(2)
    assert fifth.name == "fifth"


def test_who_has_to_go_learns_what_is_pending_as_by_a_close():
    failed = Round([ToolCall("a", error="no")])
    limited, closing = Fleet(seed=1, max_sessions=3), Fleet(seed=1)
    for fleet in (limited, closing):
        ids = fleet.open(3)
        for _ in range(3):
            fleet.step(ids, [failed] * 3)
    limited.open(2)
    closing.close(ids[:2])
    closing.open(2)
    for name, values in limited.posterior().items():
        assert values.tolist() == closing.posterior()[name].tolist()
    assert limited._memory.pools["closed"].tolist() == [2]


def test_more_than_there_is_room_for_are_refused():
    fleet = Fleet(max_sessions=5)
    ids = fleet.open(5)
    with pytest.raises(InputError, match=r"count: .*6"):
        fleet.open(6)
    assert fleet.ids.tolist() == ids.tolist()
    again = fleet.open(5)
    assert fleet.ids.tolist() == again.tolist()
    assert fleet.evicted == 5
    for wrong in (0, -1, 1.5, True, 2**31):
        with pytest.raises(InputError, match="max_sessions"):
            Fleet(max_sessions=wrong)


def test_to_open_one_at_the_limit_looks_at_few(monkeypatch):
    fleet = Fleet(max_sessions=1000)
    fleet.open(1000)
    sorted_so_often = []
    lexsort = np.lexsort
    monkeypatch.setattr(np, "lexsort", lambda keys: sorted_so_often.append(1) or lexsort(keys))
    for _ in range(3000):
        fleet.open(1)
    assert len(sorted_so_often) == 3
    assert fleet.evicted == 3000


# --- handles -------------------------------------------------------------------------------------
def test_the_fleet_keeps_handles_until_their_sessions_close():
    fleet = Fleet()
    first = fleet.session("agent", tools=["a", "b"])
    first.step(Round([ToolCall("a")]))
    number, decision = first.id, first.decision
    del first
    again = fleet.attach("agent")
    assert again is fleet.attach(number)
    assert again.decision is decision
    assert again.decision.setting.used_tools == {"a"}
    second = fleet.session("agent")
    assert fleet.attach("agent") is second, "the newest of that name"
    second.close()
    assert fleet.attach("agent") is again
    again.close()
    assert not fleet._handles
    for gone in ("agent", number):
        with pytest.raises(SessionError):
            fleet.attach(gone)
    for wrong in (None, 1.5, True, -1):
        with pytest.raises(InputError, match="session"):
            fleet.attach(wrong)


def test_a_handle_is_made_of_a_session_that_has_none():
    fleet = Fleet(policies={"a": "default", "b": "cellium"})
    ids = fleet.open(3, policy="b", context_limit=100)
    fleet.step(ids, [Round(context_tokens=50)] * 3)
    handle = fleet.attach(ids[1])
    assert (handle.id, handle.name) == (ids[1], "")
    assert str(handle.decision.action) == "continue"
    assert handle.decision.setting.policy == fleet.policies["b"]
    assert handle.decision.features.context_ratio == 0.5
    assert handle.step(Round()).features.round == 2
    assert fleet.step(ids, [Round()] * 3)[1].features == handle.decision.features
    fleet.use_policy(ids, "a")
    assert handle.step(Round()).setting.policy == fleet.policies["a"]


# --- memory --------------------------------------------------------------------------------------
def live_and_end(sessions: int, abandoned: int, size: int) -> None:
    """B78: sessions that end leave nothing; of abandoned ones there are only so many."""
    big = Round([ToolCall("read", {"path": "a"}, "x" * size)])
    ending = Fleet()
    for turn in range(sessions):
        with ending.session(f"session {turn}", tools=["read"]) as session:
            session.step(big)
            session.step(Round([ToolCall("write", {"path": turn % 5}, "y" * (turn % 300))]))
        if turn == 99:
            warm = footprint(ending)
    assert footprint(ending) == warm
    assert ending._memory.used == 1

    limited = Fleet(max_sessions=1000)
    for turn in range(abandoned):
        limited.session(f"session {turn}").step(big)
    assert len(limited) == 1000 == len(limited._handles)
    assert len(limited._memory.sessions) == 1024
    assert limited.evicted == abandoned - 1000


def footprint(fleet: Fleet) -> tuple[int, ...]:
    """What a fleet has allocated, in records and objects."""
    memory = fleet._memory
    return (
        memory.sessions.nbytes, memory.free.nbytes, memory.watched.nbytes, len(fleet._handles),
        len(fleet._names._tools), len(fleet._names._errors),
    )


def test_b78_sessions_that_end_leave_nothing_and_abandoned_ones_are_few():
    live_and_end(sessions=10_000, abandoned=5_000, size=10_000)


@pytest.mark.long
def test_b78_at_full_size():
    live_and_end(sessions=200_000, abandoned=50_000, size=1_000_000)
