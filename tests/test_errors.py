"""Bad input: one exception of a small hierarchy that names the argument, and nothing changes."""

import math

import numpy as np
import pytest

from cellium_fast import (
    CelliumError,
    Fleet,
    InputError,
    Policy,
    PolicyError,
    Posterior,
    Round,
    RoundBatch,
    Session,
    SessionError,
    ToolCall,
    UnknownNameError,
    UserCodeError,
)

U64, I64 = np.uint64, np.int64
FAILED = Round([ToolCall("a", {"q": 1}, "x", error=True)], text="t", context_tokens=10)


@pytest.fixture
def fleet() -> Fleet:
    """Two pools, two policies; ids 0..2 open and in the middle of things, 3 closed."""
    fleet = Fleet(
        seed=7, policies={"p": Policy(), "q": Policy.preset("cellium")}, pools=["main", "side"]
    )
    fleet.open(2, context_limit=1_000)
    fleet.open(1, policy="q", pool="side", round_limit=50)
    fleet.open(1)
    for _ in range(6):
        fleet.step([0, 1, 2, 3], [FAILED] * 4)
    fleet.close([3], success=True)
    return fleet


def state(fleet: Fleet) -> tuple[object, ...]:
    """All that a call could change."""
    pools = {name: {key: value.tolist() for key, value in fleet.posterior(name).items()}
             for name in fleet.pools}
    return (
        len(fleet), repr(fleet), fleet._memory.opened, fleet._memory.used, fleet._memory.free_count,
        fleet._memory.sessions.tobytes(), fleet._memory.pools.tobytes(),
        fleet._memory.policies.tobytes(),
        fleet._increments.tobytes(), pools,
    )


def refuses(fleet, kind, words, call, *arguments, **keywords) -> None:
    """The call is refused with a message that holds the words, and changes nothing."""
    before = state(fleet)
    with pytest.raises(kind) as caught:
        call(*arguments, **keywords)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert state(fleet) == before
    fleet.step([0, 1, 2], [FAILED] * 3)     # and the fleet works on


# --- the hierarchy --------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "base"), [
    (InputError, ValueError), (PolicyError, InputError), (SessionError, InputError),
    (UnknownNameError, LookupError), (InputError, CelliumError), (UnknownNameError, CelliumError),
    (UserCodeError, CelliumError),
])
def test_the_hierarchy(kind, base):
    assert issubclass(kind, base)


# --- Fleet(...) -----------------------------------------------------------------------------------
WHOLE = [-1, 1.5, 2.0, True, "1", None, math.nan, np.float64(1)]


@pytest.mark.parametrize("value", [*WHOLE, 2**64, np.True_])
def test_seeds_that_are_refused(value):
    with pytest.raises(InputError, match="seed: wanted a whole number in ") as caught:
        Fleet(seed=value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [*(one for one in WHOLE if one is not None), 0, 1025])
def test_threads_that_are_refused(value):
    with pytest.raises(InputError, match="threads: wanted a whole number in ") as caught:
        Fleet(threads=value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("value", "kind", "word"), [
    ({}, InputError, "{}"),
    ([], InputError, "[]"),
    ("cellium", InputError, "'cellium'"),
    (Policy(), InputError, "Policy("),
    ([Policy()], InputError, "[Policy("),
    ({"a": 5}, InputError, "'a': 5"),
    ({"a": None}, InputError, "'a': None"),
    ({1: Policy()}, InputError, "1: Policy("),
    ({"a": "celium"}, UnknownNameError, "'celium'"),
])
def test_policies_that_are_refused(value, kind, word):
    with pytest.raises(kind, match=r"policies|preset") as caught:
        Fleet(policies=value)
    assert word in str(caught.value)


@pytest.mark.parametrize(("value", "word"), [
    ([], "[]"), ({}, "{}"), ("ab", "'ab'"), (["a", "a"], "'a'"), ([1], "1"), ([None], "None"),
    ({"a": 5}, "'a': 5"), ({"a": {"alpha": 2}}, "'a': {"), ({1: Posterior()}, "1: Posterior"),
    (5, "5"), ([["a"]], "['a']"),
])
def test_pools_that_are_refused(value, word):
    with pytest.raises(InputError, match="pools") as caught:
        Fleet(pools=value)
    assert word in str(caught.value)


def test_a_long_number_is_refused_in_our_words():
    with pytest.raises(InputError, match="seed"):
        Fleet(seed=10**5_000)
    with pytest.raises(InputError, match="signature"):
        RoundBatch.from_rounds([Round([ToolCall("a", signature=10**5_000)])])


# --- open and session -----------------------------------------------------------------------------
OPEN = [
    ("context_limit", -1, ["-1"]), ("context_limit", 1.5, ["1.5"]),
    ("context_limit", math.nan, ["nan"]), ("context_limit", True, ["True"]),
    ("context_limit", "1k", ["1k"]), ("context_limit", 2**63, [str(2**63)]),
    ("round_limit", 0, ["0"]), ("round_limit", -1, ["-1"]), ("round_limit", 1.5, ["1.5"]),
    ("round_limit", 10.0, ["10.0"]), ("round_limit", math.nan, ["nan"]),
    ("round_limit", -math.inf, ["-inf"]), ("round_limit", True, ["True"]),
    ("round_limit", 2**32, [str(2**32)]), ("round_limit", "9", ["'9'"]),
]
OPEN_MANY = [
    ("context_limit", [1], ["(2,)", "(1,)"]), ("context_limit", [1, 2, 3], ["(3,)"]),
    ("context_limit", [[1, 2]], ["(1, 2)"]), ("context_limit", [1.0, 2.0], ["float64"]),
    ("context_limit", [1, None], ["object"]), ("context_limit", [1, -1], ["[1]", "-1"]),
    ("context_limit", np.array([1, 2**63], U64), ["[1]", str(2**63)]),
    ("round_limit", [0, 5], ["[0]", "got 0"]), ("round_limit", [5, -3], ["[1]", "-3"]),
    ("round_limit", [5, 2**32], ["[1]", str(2**32)]), ("round_limit", [5, math.nan], ["float64"]),
    ("round_limit", [True, True], ["bool"]), ("context_limit", [[1], [2, 3]], []),
    ("private", "no", ["'no'"]), ("private", 2, ["2"]),
]


@pytest.mark.parametrize(("name", "value", "words"), OPEN + OPEN_MANY)
def test_open_refuses(fleet, name, value, words):
    refuses(fleet, InputError, [name, *words], fleet.open, 2, **{name: value})


@pytest.mark.parametrize("value", [*WHOLE, 2**31])
def test_open_refuses_a_count(fleet, value):
    refuses(fleet, InputError, ["count", repr(value)], fleet.open, value)


@pytest.mark.parametrize(("name", "value", "words"), [
    *OPEN,
    ("context_limit", [1], ["[1]"]), ("round_limit", np.array([5]), ["5"]),
    ("name", 5, ["5"]), ("name", None, ["None"]), ("name", b"x", ["b'x'"]),
    ("tools", "search", ["'search'"]), ("tools", ["a", 1], ["1"]), ("tools", [None], ["None"]),
    ("tools", 5, ["5"]), ("tools", None, ["None"]),
    ("context_limit", [[1], [2, 3]], ["[[1], [2, 3]]"]), ("private", "no", ["'no'"]),
])
def test_session_refuses(fleet, name, value, words):
    refuses(fleet, InputError, [name, *words], fleet.session, **{name: value})


@pytest.mark.parametrize("name", ["policy", "pool"])
@pytest.mark.parametrize("value", ["nope", "", 5, ["p"]])
def test_unknown_names_are_refused(fleet, name, value):
    known = {"policy": "'p', 'q'", "pool": "'main', 'side'"}[name]
    for call, arguments in ((fleet.open, (2,)), (fleet.session, ())):
        refuses(fleet, UnknownNameError, [name, repr(value), known], call, *arguments,
                **{name: value})


def test_a_posterior_of_an_unknown_pool(fleet):
    refuses(fleet, UnknownNameError, ["pool", "'nope'"], fleet.posterior, "nope")


def test_a_policy_that_cannot_be_replaced(fleet):
    refuses(fleet, UnknownNameError, ["policy", "'x'", "'p', 'q'"], fleet.set_policy, "x", Policy())
    refuses(fleet, UnknownNameError, ["policy", "None"], fleet.set_policy, None, Policy())
    for bad in (None, 5, {"n_step": 2}, Policy):
        refuses(fleet, InputError, ["policy: wanted a Policy or a preset's name"],
                fleet.set_policy, "p", bad)
    refuses(fleet, UnknownNameError, ["preset", "'celium'"], fleet.set_policy, "p", "celium")
    wrong = Policy.model_construct(**{**dict(Policy()), "n_step": 99})
    refuses(fleet, PolicyError, ["n_step"], fleet.set_policy, "p", wrong)


def test_a_policy_that_cannot_be_used(fleet):
    refuses(fleet, UnknownNameError, ["policy", "'x'", "'p', 'q'"], fleet.use_policy, [0], "x")
    refuses(fleet, UnknownNameError, ["policy", "None"], fleet.use_policy, [0], None)
    refuses(fleet, SessionError, ["ids[1]", "closed"], fleet.use_policy, [0, 3], "q")
    refuses(fleet, SessionError, ["ids[1]", "twice"], fleet.use_policy, [0, 0], "q")
    refuses(fleet, InputError, ["ids"], fleet.use_policy, ["0"], "q")
    refuses(fleet, InputError, ["ids"], fleet.use_policy, 0, "q")


@pytest.mark.parametrize("value", ["x", None, 1.5, 2**70, -1, 3, 99, [0]])
def test_a_private_posterior_of_what_is_no_session(fleet, value):
    refuses(fleet, InputError, ["session"], fleet.private_posterior, value)


def test_a_private_posterior_of_a_session_that_has_none(fleet):
    refuses(fleet, SessionError, ["session", "0", "private"], fleet.private_posterior, 0)


# --- ids ------------------------------------------------------------------------------------------
IDS = [
    ([0, 99], SessionError, ["ids[1]", "99"]),
    ([-1], SessionError, ["ids[0]", "-1"]),
    ([0, 1, 0], SessionError, ["ids[2]", "session 0", "twice"]),
    ([0, 1, 2, 3], SessionError, ["ids[3]", "session 3", "closed"]),
    ([3 + (1 << 32)], SessionError, ["ids[0]", str(3 + (1 << 32))]),
    ([1 << 32], SessionError, ["ids[0]", str(1 << 32)]),
    ([2**63 - 1], SessionError, ["ids[0]", str(2**63 - 1)]),
    ([2**63], InputError, ["ids", "int64", str(2**63)]),
    ([0.0], InputError, ["ids", "int64", "0.0"]),
    (["0"], InputError, ["ids", "'0'"]),
    ([None], InputError, ["ids", "None"]),
    ([True], InputError, ["ids", "True"]),
    ("0", InputError, ["ids", "'0'"]),
    (None, InputError, ["ids", "None"]),
    (0, InputError, ["ids", "()"]),
    ([[0]], InputError, ["ids", "(1, 1)"]),
    ([[0], [1, 2]], InputError, ["ids"]),
    (np.array([0], np.int32), InputError, ["ids", "int64", "int32"]),
    (np.array([0], U64), InputError, ["ids", "int64", "uint64"]),
    (np.array([0.0]), InputError, ["ids", "int64", "float64"]),
    (np.array([[0]]), InputError, ["ids", "(1, 1)"]),
]


@pytest.mark.parametrize(("ids", "kind", "words"), IDS)
@pytest.mark.parametrize("call", ["close", "user_message", "compacted", "done", "step"])
def test_ids_that_are_refused(fleet, call, ids, kind, words):
    arguments = [ids]
    if call == "step":
        arguments.append([FAILED] * (len(ids) if hasattr(ids, "__len__") else 1))
    refuses(fleet, kind, words, getattr(fleet, call), *arguments)


def test_a_closed_id_stays_closed_when_its_slot_is_used_again(fleet):
    new = int(fleet.open(1)[0])
    assert new & 0xFFFFFFFF == 3
    refuses(fleet, SessionError, ["session 3 is closed"], fleet.step, [3], [FAILED])
    refuses(fleet, SessionError, ["session 3 is closed"], fleet.close, [3])
    fleet.step([new], [FAILED])


def test_doubles_are_found_in_every_call(fleet):
    for _ in range(3):
        refuses(fleet, SessionError, ["ids[3]", "twice"], fleet.done, [0, 1, 2, 1])
        refuses(fleet, SessionError, ["ids[2]", "twice"], fleet.done, [0, 1, 1, 2**40])
        refuses(fleet, SessionError, ["ids[1]", "closed"], fleet.done, [0, 3, 2, 1, 2])
        assert len(fleet.done([2, 0, 1])) == 3


# --- close ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "words"), [
    (2, ["[0]", "2"]), (-2, ["-2"]), ([1, 0, 2], ["[2]", "2"]), ([1, 0], ["(3,)", "(2,)"]),
    ([[1, 0, 1]], ["(1, 3)"]), (1.0, ["float64"]), (math.nan, ["float64"]), ("yes", ["<U3"]),
    ([1, None, 0], ["object"]), ([[1], [1, 2]], []),
])
def test_outcomes_that_are_refused(fleet, value, words):
    refuses(fleet, InputError, ["success", *words], fleet.close, [0, 1, 2], value)
    assert len(fleet) == 3


# --- step: rounds ---------------------------------------------------------------------------------
@pytest.mark.parametrize("rounds", [5, None, Round(), "abc", [None] * 3, [5] * 3, {"a": 1}])
def test_rounds_that_are_no_rounds(fleet, rounds):
    refuses(fleet, InputError, ["round"], fleet.step, [0, 1, 2], rounds)


def test_a_generator_of_rounds(fleet):
    refuses(fleet, InputError, ["round"], fleet.step, [0], (FAILED for _ in range(1)))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_another_number_of_rounds_than_ids(fleet, count):
    words = ["rounds: wanted 3, as many as ids", f"got {count}"]
    refuses(fleet, InputError, words, fleet.step, [0, 1, 2], [FAILED] * count)
    batch = RoundBatch(context_tokens=np.zeros(count, I64))
    words = ["context_tokens", "(3)", f"({count},)"]
    refuses(fleet, InputError, words, fleet.step, [0, 1, 2], batch)


BAD_ROUNDS = [
    (Round([ToolCall(5)]), ["tool", "5"]),
    (Round([ToolCall(None)]), ["tool", "None"]),
    (Round([ToolCall(b"a")]), ["tool", "b'a'"]),
    (Round([ToolCall("a"), ToolCall(["a"])]), ["tool", "['a']"]),
    (Round([ToolCall("a", error=5)]), ["error", "int"]),
    (Round([ToolCall("a", error=[])]), ["error", "list"]),
    (Round([ToolCall("a", signature=-1)]), ["signature", "-1"]),
    (Round([ToolCall("a", signature=2**64)]), ["signature", str(2**64)]),
    (Round([1]), ["calls", "int"]),
    (Round([None]), ["calls", "NoneType"]),
    (Round(["search"]), ["calls", "str"]),
    (Round([("a", "b")]), ["calls", "tuple"]),
    (Round(5), ["calls", "int"]),
    (Round(None), ["calls", "NoneType"]),
    (Round("search"), ["calls", "str"]),
    (Round(b"search"), ["calls", "bytes"]),
    (Round(ToolCall("a")), ["calls", "ToolCall"]),
    (Round({ToolCall: 1}), ["calls", "dict"]),
    (Round(iter([])), ["calls", "list_iterator"]),
    (Round(text=5), ["text", "int"]),
    (Round(text=b"x"), ["text", "bytes"]),
    (Round(text=["x"]), ["text", "list"]),
    (Round(context_tokens="5"), ["context_tokens", "'5'"]),
    (Round(context_tokens=math.inf), ["context_tokens", "inf"]),
    (Round(context_tokens=2**63), ["context_tokens", str(2**63)]),
    (Round(context_tokens=10**400), ["context_tokens", "1000"]),
    (Round(context_tokens=[1]), ["context_tokens", "[1]"]),
    (Round(context_tokens=1j), ["context_tokens", "1j"]),
    (Round(context_limit="5"), ["context_limit", "'5'"]),
    (Round(context_limit=2**63), ["context_limit", str(2**63)]),
    (Round(context_limit=[1]), ["context_limit", "[1]"]),
    (Round(progress=-0.1), ["progress", "-0.1"]),
    (Round(progress=1.01), ["progress", "1.01"]),
    (Round(progress=math.nan), ["progress", "nan"]),
    (Round(progress=math.inf), ["progress", "inf"]),
    (Round(progress="1"), ["progress", "'1'"]),
    (Round(progress=[0.5]), ["progress", "[0.5]"]),
    (Round(reward=-1), ["reward", "-1"]),
    (Round(reward=2), ["reward", "2"]),
    (Round(reward=math.nan), ["reward", "nan"]),
    (Round(reward=10**400), ["reward", "1000"]),
    (Round(success=1), ["success", "1"]),
    (Round(success=0.0), ["success", "0.0"]),
    (Round(success="yes"), ["success", "'yes'"]),
    (5, ["round", "int"]),
    (None, ["round", "NoneType"]),
    (ToolCall("a"), ["round", "ToolCall"]),
    ([Round()], ["round", "list"]),
]


@pytest.mark.parametrize(("bad", "words"), BAD_ROUNDS)
def test_one_bad_round_refuses_the_whole_batch(fleet, bad, words):
    refuses(fleet, InputError, ["rounds[1]", *words], fleet.step, [0, 1, 2], [FAILED, bad, FAILED])


@pytest.mark.parametrize(("bad", "words"), BAD_ROUNDS)
@pytest.mark.parametrize("tools", [(), ("a", "b")])
def test_a_session_refuses_a_bad_round_and_goes_on_as_if_it_had_not_come(fleet, tools, bad, words):
    session, twin = fleet.session(tools=tools, private=True), fleet.session(tools=tools)
    session.step(Round([ToolCall("b")]))
    twin.step(Round([ToolCall("b")]))
    before, prompt = session.decision, session.prompt
    refuses(fleet, InputError, words, session.step, bad)
    assert session.decision is before
    assert session.prompt == prompt
    after, expected = session.step(FAILED), twin.step(FAILED)
    assert after.features == expected.features
    assert after.setting == expected.setting


def test_a_refused_round_does_not_use_up_its_tools(fleet):
    session = fleet.session(tools=["a", "b"])
    with pytest.raises(InputError):
        session.step(Round([ToolCall("a")], progress=2))
    assert session.decision.setting.used_tools == frozenset()
    assert session.step(Round([ToolCall("a")])).setting.used_tools == {"a"}


def test_the_call_at_fault_is_named(fleet):
    bad = Round([ToolCall("a"), ToolCall(5)])
    refuses(fleet, InputError, ["calls[1]", "tool"], fleet.session().step, bad)
    refuses(fleet, InputError, ["rounds[0]", "calls[1]", "tool"], fleet.step, [0], [bad])


# --- step: columns --------------------------------------------------------------------------------
def columns(**changed: object) -> RoundBatch:
    """Three rounds with 2, 0 and 1 calls, all columns sound but those changed."""
    sound = {
        "call_offsets": np.array([0, 2, 2, 3]),
        "call_tool": np.array([1, 2, 3], U64),
        "call_signature": np.array([1, 2, 3], U64),
        "call_shape": np.array([1, 2, 3], U64),
        "call_result": np.array([1, 2, 3], U64),
        "call_flags": np.array([0, 1, 2], np.uint8),
        "call_size": np.array([1, 2, 3], np.uint32),
        "text": np.array([0, 1, 2], U64),
        "text_sketch": np.array([0, 1, 2], U64),
        "context_tokens": np.array([-1, 0, 5]),
        "context_limit": np.array([-1, 0, 500]),
        "progress": np.array([np.nan, 0, 1], np.float32),
        "reward": np.array([np.nan, 0, 1], np.float32),
        "success": np.array([-1, 0, 1], np.int8),
        "event": np.array([0, 1, 2], np.uint8),
    }
    return RoundBatch(**(sound | changed))


DTYPES = {
    "call_offsets": I64, "call_tool": U64, "call_signature": U64, "call_shape": U64,
    "call_result": U64, "call_flags": np.uint8, "call_size": np.uint32, "text": U64,
    "text_sketch": U64, "context_tokens": I64, "context_limit": I64, "progress": np.float32,
    "reward": np.float32, "success": np.int8, "event": np.uint8,
}


def test_the_columns_above_are_sound(fleet):
    assert len(fleet.step([0, 1, 2], columns())) == 3


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("dtype", [np.int16, np.float64, np.complex64, object, "U3", ">i8", ">u8"])
def test_a_column_of_another_dtype_is_refused(fleet, name, dtype):
    column = np.ones(len(getattr(columns(), name)), dtype)
    words = [name, str(np.dtype(DTYPES[name])), str(column.dtype)]
    refuses(fleet, InputError, words, fleet.step, [0, 1, 2], columns(**{name: column}))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (2,), (5,), (3, 1), (4, 1), ()])
def test_a_column_of_another_shape_is_refused(fleet, name, shape):
    column = np.zeros(shape, DTYPES[name])
    refuses(fleet, InputError, [name], fleet.step, [0, 1, 2], columns(**{name: column}))


@pytest.mark.parametrize(("name", "values", "words"), [
    ("call_offsets", [1, 2, 2, 3], ["[0]", "wanted 0", "got 1"]),
    ("call_offsets", [-1, 2, 2, 3], ["[0]", "got -1"]),
    ("call_offsets", [0, 2, 1, 3], ["[2]", "got 1"]),
    ("call_offsets", [0, 2, 2, 4], ["3", "4"]),
    ("call_offsets", [0, 2, 2, 2], ["3", "2"]),
    ("call_offsets", [0, 2**62, 2**62, 2**62], [str(2**62)]),
    ("call_flags", [0, 16, 0], ["[1]", "16", "1 (error)"]),
    ("call_flags", [0, 4, 0], ["[1]", "got 4", "4 (transient, only with 1)"]),
    ("call_flags", [0, 0, 9], ["[2]", "got 9", "8 (acknowledged, not with 1)"]),
    ("call_flags", [6, 5, 8], ["[0]", "got 6"]),
    ("call_flags", [0, 0, 255], ["[2]", "255"]),
    ("progress", [0, 1.5, 0], ["[1]", "1.5"]),
    ("progress", [0, 0, -0.5], ["[2]", "-0.5"]),
    ("progress", [np.inf, 0, 0], ["[0]", "inf"]),
    ("reward", [0, 1.5, 0], ["[1]", "1.5"]),
    ("reward", [-np.inf, 0, 0], ["[0]", "-inf"]),
    ("success", [0, 2, 0], ["[1]", "2"]),
    ("success", [-2, 0, 0], ["[0]", "-2"]),
    ("event", [0, 3, 0], ["[1]", "3"]),
])
def test_a_value_out_of_range_is_refused(fleet, name, values, words):
    column = np.array(values, DTYPES[name])
    words = [name if name != "call_offsets" else "call_", *words]
    refuses(fleet, InputError, words, fleet.step, [0, 1, 2], columns(**{name: column}))


def test_offsets_whose_differences_overflow_are_refused():
    batch = columns(call_offsets=np.array([0, 2**63 - 1, -(2**63), -1, 3]))
    batch = RoundBatch(batch.call_offsets, batch.call_tool, batch.call_signature)
    with pytest.raises(InputError, match="call_offsets"):
        batch.checked(4)    # not stepped: the kernels would read memory that is not theirs


@pytest.mark.parametrize("name", ["call_tool", "call_signature"])
def test_calls_need_tools_and_signatures(fleet, name):
    words = [name, "3 calls", "None"]
    refuses(fleet, InputError, words, fleet.step, [0, 1, 2], columns(**{name: None}))


def test_calls_need_offsets(fleet):
    words = ["call_tool", "wanted 0 calls", "got 3"]
    refuses(fleet, InputError, words, fleet.step, [0, 1, 2], columns(call_offsets=None))


@pytest.mark.parametrize(("name", "value"), [
    ("context_tokens", [1, 2, "x"]), ("context_tokens", [1, 2, 2.5]), ("context_tokens", 5),
    ("context_tokens", [1, 2, 2**63]), ("text", [1, 2, -1]), ("text", [1, 2, 2**64]),
    ("success", [1, 0, 200]), ("success", [1, 0, None]), ("progress", [0, 1, "x"]),
    ("call_offsets", "0123"), ("event", {0, 1, 2}),
])
def test_a_list_that_does_not_fit_its_column_is_refused(fleet, name, value):
    refuses(fleet, InputError, [name], fleet.step, [0, 1, 2], columns(**{name: value}))


@pytest.mark.parametrize(("events", "words"), [
    ([0, 300], ["events", "300"]), ([0], ["events", "(2)", "(1,)"]), ([0, -1], ["events", "-1"]),
    (["a", "b"], ["events", "'a'"]), (np.array([0, 1]), ["events", "uint8", "int64"]),
])
def test_events_that_are_refused(events, words):
    with pytest.raises(InputError) as caught:
        RoundBatch.from_rounds([Round(), Round()], events)
    assert all(word in str(caught.value) for word in words)


# --- sessions that are closed ---------------------------------------------------------------------
@pytest.mark.parametrize("call", [
    lambda session: session.step(Round()), lambda session: session.close(),
    lambda session: session.close(True), lambda session: session.user_message(),
    lambda session: session.compacted(), lambda session: session.done,
], ids=["step", "close", "close with outcome", "user_message", "compacted", "done"])
def test_a_closed_session_refuses(fleet, call):
    session: Session = fleet.session("mine")
    session.close()
    refuses(fleet, SessionError, [f"session {session.id} is closed"], call, session)


@pytest.mark.parametrize(("value", "words"), [(2, ["2"]), ("yes", ["U3"]), (0.5, ["float64"])])
def test_a_session_refuses_an_outcome_and_stays_open(fleet, value, words):
    session = fleet.session()
    refuses(fleet, InputError, ["success", *words], session.close, value)
    session.step(Round())
