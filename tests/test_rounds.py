"""`RoundBatch`: what it packs, which arrays it takes, and that columns say what objects say."""

import numpy as np
import pytest

from cellium_fast import Decisions, Fleet, InputError, Policy, Round, RoundBatch, ToolCall
from cellium_fast._ingest import hash_signature, hash_text, hash_tool

U64 = np.uint64
CALL_COLUMNS = ("call_tool", "call_signature", "call_result", "call_flags", "call_size")
ROUND_COLUMNS = (
    "text", "context_tokens", "context_limit", "progress", "reward", "success", "event",
)

ROUNDS = [
    Round(
        [ToolCall("ls", {"path": "."}, "a b"), ToolCall("rm", "x", error="no such file")],
        text=" Hello ", context_tokens=900, context_limit=1_000, progress=0.5, reward=0.25,
        success=True,
    ),
    Round(),
    Round([ToolCall("ls", {"path": "."}, "")], success=False),
]


def random_rounds(chance: np.random.Generator, count: int) -> list[Round]:
    """Rounds in which agents repeat themselves, fail, and fill their context."""
    rounds = []
    for _ in range(count):
        calls = [
            ToolCall(
                f"tool{chance.integers(3)}", {"q": int(chance.integers(3))},
                ["", "found", "nothing"][chance.integers(3)], error=bool(chance.random() < 0.4),
            )
            for _ in range(chance.integers(0, 4))
        ]
        rounds.append(Round(
            calls,
            text=f"text {chance.integers(3)}" if chance.random() < 0.7 else None,
            context_tokens=int(chance.integers(100_000)) if chance.random() < 0.7 else None,
            progress=float(chance.random()) if chance.random() < 0.2 else None,
            reward=float(chance.random()) if chance.random() < 0.2 else None,
            success=bool(chance.random() < 0.5) if chance.random() < 0.3 else None,
        ))
    return rounds


def numbers(decisions: Decisions) -> dict[str, bytes]:
    """Every column's bytes; those of the features field by field, without what pads them."""
    columns = decisions.columns()
    features = columns.pop("features")
    columns |= {name: features[name] for name in features.dtype.names}
    return {name: column.tobytes() for name, column in columns.items()}


def same(left: Decisions, right: Decisions) -> bool:
    return numbers(left) == numbers(right)


# --- packing --------------------------------------------------------------------------------------
def test_columns_of_objects():
    batch = RoundBatch.from_rounds(ROUNDS)
    ls = hash_signature("ls", {"path": "."})
    assert batch.call_offsets.tolist() == [0, 2, 2, 3]
    assert batch.call_tool.tolist() == [hash_tool("ls"), hash_tool("rm"), hash_tool("ls")]
    assert batch.call_signature.tolist() == [ls, hash_signature("rm", "x"), ls]
    assert batch.call_flags.tolist() == [0, 1, 2]
    assert batch.call_size.tolist() == [3, 12, 0]
    assert batch.text.tolist() == [hash_text("Hello"), 0, 0]
    assert batch.context_tokens.tolist() == [900, -1, -1]
    assert batch.context_limit.tolist() == [1_000, -1, -1]
    assert batch.progress.tolist()[0] == 0.5
    assert batch.reward.tolist()[0] == 0.25
    assert np.isnan(batch.progress[1:]).all()
    assert np.isnan(batch.reward[1:]).all()
    assert batch.success.tolist() == [1, -1, 0]
    assert batch.event is None


def test_names_and_errors_go_with_the_columns():
    batch = RoundBatch.from_rounds(ROUNDS)
    assert batch.tools == {hash_tool("ls"): "ls", hash_tool("rm"): "rm"}
    assert batch.errors == {int(batch.call_result[1]): "no such file"}


def test_no_rounds():
    batch = RoundBatch.from_rounds([])
    assert (batch.size, batch.call_offsets.tolist()) == (0, [0])
    assert len(Fleet().step([], batch)) == 0
    assert len(Fleet().step([], [])) == 0


def test_any_sequence_of_rounds_and_calls():
    calls = (ToolCall("a"), ToolCall("b"))
    left, right = RoundBatch.from_rounds([Round(calls)]), RoundBatch.from_rounds((Round([*calls]),))
    assert left.call_tool.tolist() == right.call_tool.tolist()


def test_packing_leaves_the_objects_alone():
    arguments = {"b": [1, {"z": 1, "a": 2}], "a": 1}
    call = ToolCall("t", arguments, {"out": [1]}, id="c1")
    RoundBatch.from_rounds([Round([call], text=" x ")])
    assert list(arguments) == ["b", "a"]
    assert call == ToolCall("t", {"b": [1, {"z": 1, "a": 2}], "a": 1}, {"out": [1]}, id="c1")


def test_an_id_of_a_call_does_not_matter():
    left = RoundBatch.from_rounds([Round([ToolCall("a", id="1")])])
    right = RoundBatch.from_rounds([Round([ToolCall("a", id="2")])])
    assert all((getattr(left, name) == getattr(right, name)).all() for name in CALL_COLUMNS)


@pytest.mark.parametrize("name", ["call_tool", "call_signature"])
def test_hashes_are_never_the_sign_for_none(name):
    assert (getattr(RoundBatch.from_rounds(ROUNDS), name) != 0).all()


# --- size, repr, defaults -------------------------------------------------------------------------
@pytest.mark.parametrize(("columns", "size"), [
    ({}, 0),
    ({"call_offsets": np.array([0])}, 0),
    ({"call_offsets": np.array([0, 1, 1])}, 2),
    ({"text": np.zeros(4, U64)}, 4),
    ({"event": np.zeros(5, np.uint8)}, 5),
    ({"progress": [0.5, 0.5]}, 2),
])
def test_size(columns, size):
    assert RoundBatch(**columns).size == size


def test_repr_names_what_is_given():
    batch = RoundBatch(text=np.zeros(4, U64), success=np.zeros(4, np.int8))
    assert repr(batch) == "<RoundBatch of 4: text, success>"


def test_batches_do_not_share_their_tables():
    RoundBatch().tools[1] = "x"
    assert RoundBatch().tools == {}


@pytest.mark.parametrize("name", ROUND_COLUMNS)
def test_a_column_left_out_is_one_that_tells_nothing(name):
    nothing = {
        "text": np.zeros(3, U64), "context_tokens": np.full(3, -1), "context_limit": np.full(3, -1),
        "progress": np.full(3, np.nan, np.float32), "reward": np.full(3, np.nan, np.float32),
        "success": np.full(3, -1, np.int8), "event": np.zeros(3, np.uint8),
    }
    decided = []
    for column in (None, nothing[name]):
        batch = RoundBatch.from_rounds(ROUNDS)
        setattr(batch, name, column)
        fleet = Fleet()
        decided.append(fleet.step(fleet.open(3, context_limit=1_000), batch))
    assert same(*decided)


@pytest.mark.parametrize("name", ["call_result", "call_flags"])
def test_a_call_column_left_out_is_zero(name):
    decided = []
    for column in (None, np.zeros(3, getattr(RoundBatch.from_rounds(ROUNDS), name).dtype)):
        batch = RoundBatch.from_rounds(ROUNDS)
        setattr(batch, name, column)
        fleet = Fleet()
        decided.append(fleet.step(fleet.open(3, context_limit=1_000), batch))
    assert same(*decided)


def test_sizes_left_out_are_zero_but_make_no_result_slight():
    decided = []
    for sizes in (None, np.zeros(3, np.uint32)):
        batch = RoundBatch.from_rounds(ROUNDS)
        batch.call_size = sizes
        fleet = Fleet()
        decided.append(fleet.step(fleet.open(3, context_limit=1_000), batch))
    left_out, zero = map(numbers, decided)
    assert {name for name in zero if left_out[name] != zero[name]} == {"slight"}
    # The first round has an error among its results, the second none.
    assert decided[0].features["slight"].tolist() == [0, 0, 0]
    assert decided[1].features["slight"].tolist() == [0, 0, 1]


# --- columns say what objects say -----------------------------------------------------------------
def test_columns_objects_and_single_steps_decide_alike():
    chance = np.random.default_rng(5)
    by_objects, by_columns, single = (Fleet(seed=3) for _ in range(3))
    ids = by_objects.open(6, context_limit=100_000, round_limit=60, private=True)
    by_columns.open(6, context_limit=100_000, round_limit=60, private=True)
    sessions = [
        single.session(context_limit=100_000, round_limit=60, private=True) for _ in range(6)
    ]
    tiebreaks = 0
    for _ in range(60):
        rounds = random_rounds(chance, 6)
        left = by_objects.step(ids, rounds)
        right = by_columns.step(ids, RoundBatch.from_rounds(rounds))
        assert same(left, right)
        tiebreaks += left.tiebreak.sum()
        for place, (session, round) in enumerate(zip(sessions, rounds, strict=True)):
            decision = session.step(round)
            assert decision.features == left[place].features
            assert (decision.action, decision.rules, decision.draws, decision.bias) == (
                left[place].action, left[place].rules, left[place].draws, left[place].bias
            )
            assert decision.reward == left[place].reward
    assert tiebreaks > 20
    assert by_objects._memory.sessions.tobytes() == by_columns._memory.sessions.tobytes()
    assert by_objects._memory.sessions.tobytes() == single._memory.sessions.tobytes()


def test_more_calls_in_a_round_than_the_window_keeps():
    calls = [ToolCall("t", place % 5, "r", error=place < 7) for place in range(30)]
    session = Fleet().session()
    at_once = session.step(Round(calls)).features
    one_by_one = Fleet().session()
    for call in calls:
        last = one_by_one.step(Round([call])).features
    assert at_once.error_rate == last.error_rate == 7 / 30
    assert at_once.recent_tools == last.recent_tools
    assert at_once.result_quality == last.result_quality


def test_the_order_of_a_batch_does_not_matter():
    rounds = random_rounds(np.random.default_rng(2), 8)
    order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
    left, right = Fleet(seed=1), Fleet(seed=1)
    ids = left.open(8)
    right.open(8)
    for _ in range(6):
        forward = left.step(ids, rounds)
        shuffled = right.step(ids[order], [rounds[place] for place in order])
        assert forward.action[order].tolist() == shuffled.action.tolist()
        assert forward.draws[order].tobytes() == shuffled.draws.tobytes()


@pytest.mark.parametrize("event", [0, 1, 2])
def test_events_are_the_calls_of_the_same_name(event):
    rounds = random_rounds(np.random.default_rng(4), 12)
    left, right = Fleet(seed=1), Fleet(seed=1)
    ids = left.open(1)
    right.open(1)
    for round in rounds:
        left.step(ids, [round])
        right.step(ids, [round])
    if event:
        {1: left.user_message, 2: left.compacted}[event](ids)
    first = left.step(ids, ROUNDS[:1])
    assert same(first, right.step(ids, RoundBatch.from_rounds(ROUNDS[:1], [event])))


def test_a_context_limit_counts_from_its_round_on():
    session = Fleet().session(context_limit=1_000)
    seen = [
        session.step(Round(context_tokens=tokens, context_limit=limit)).features.context_ratio
        for tokens, limit in [(500, None), (None, 2_000), (None, None), (None, 0), (None, 500)]
    ]
    assert seen == [0.5, 0.25, 0.25, 0.0, 1.0]
    assert not Fleet().session().step(Round(context_tokens=5)).features.context_known


@pytest.mark.parametrize(("preset", "after_zero"), [("default", 0.1), ("cellium", 0.0)])
def test_tokens_not_told_are_the_last_ones_told(preset, after_zero):
    session = Fleet(policies={"only": preset}).session(context_limit=1_000)
    told = [None, 100, None, float("nan"), -5, 0]
    seen = [session.step(Round(context_tokens=tokens)).features for tokens in told]
    assert [one.context_known for one in seen] == [False] + [True] * 5
    assert [one.context_saturation for one in seen] == [0.0, 0.1, 0.1, 0.1, 0.1, after_zero]


@pytest.mark.parametrize("given", [0.0, 0.3, 1.0, np.float32(0.3), np.float64(0.3)])
def test_a_given_reward_is_the_reward(given):
    decision = Fleet().session().step(Round([ToolCall("a", error=True)], reward=given))
    assert decision.reward == pytest.approx(float(given), abs=1e-7)


@pytest.mark.parametrize(("success", "last_error", "good"), [
    (None, False, True), (None, True, False), (True, True, True), (False, False, False),
    (np.True_, True, True), (np.False_, False, False),
])
def test_success_is_the_caller_s_word_or_that_the_last_call_is_no_error(success, last_error, good):
    calls = [ToolCall("a", error=not last_error), ToolCall("b", error=last_error)]
    session = Fleet(policies={"c": Policy.preset("cellium")}).session()
    assert session.step(Round(calls, success=success)).reward == (1.0 if good else 0.0)


# --- which arrays ---------------------------------------------------------------------------------
def other_form(form: str, column: np.ndarray) -> object:
    if form == "list":
        return column.tolist()
    if form == "strided":
        wide = np.empty((len(column), 2), column.dtype)
        wide[:, 0] = column
        return wide[:, 0]
    if form == "reversed":
        return column[::-1].copy()[::-1]
    column = column.copy()
    column.flags.writeable = False
    return column


@pytest.mark.parametrize("form", ["list", "strided", "reversed", "read-only"])
def test_arrays_of_any_layout_and_lists_are_taken(form):
    fleet, twin = Fleet(seed=1), Fleet(seed=1)
    ids = fleet.open(3, context_limit=1_000)
    twin.open(3, context_limit=1_000)
    batch = RoundBatch.from_rounds(ROUNDS, [0, 1, 2])
    changed = {
        name: other_form(form, getattr(batch, name))
        for name in ("call_offsets", *CALL_COLUMNS, *ROUND_COLUMNS)
    }
    left = fleet.step(ids, batch)
    right = twin.step(other_form(form, ids), RoundBatch(**changed))
    assert same(left, right)


def test_a_step_leaves_its_columns_alone():
    fleet = Fleet()
    ids = fleet.open(3)
    batch = RoundBatch.from_rounds(ROUNDS, [0, 1, 2])
    names = ("call_offsets", *CALL_COLUMNS, *ROUND_COLUMNS)
    before = {name: getattr(batch, name).tobytes() for name in names}
    fleet.step(ids, batch)
    assert {name: getattr(batch, name).tobytes() for name in names} == before
    assert ids.tolist() == [0, 1, 2]


def test_decisions_are_the_caller_s_own():
    fleet = Fleet()
    ids = fleet.open(3)
    first = fleet.step(ids, ROUNDS)
    kept = numbers(first)
    fleet.step(ids, ROUNDS)
    assert numbers(first) == kept


@pytest.mark.parametrize("events", [[0, 1, 2], np.array([0, 1, 2], np.uint8), (0, 1, 2)])
def test_events_of_from_rounds(events):
    assert RoundBatch.from_rounds(ROUNDS, events).event.tolist() == [0, 1, 2]


def test_an_unknown_event_is_refused_at_the_step():
    fleet = Fleet()
    with pytest.raises(InputError, match=r"event\[2\]: wanted 0, 1 or 2, got 7"):
        fleet.step(fleet.open(3), RoundBatch.from_rounds(ROUNDS, [0, 0, 7]))
