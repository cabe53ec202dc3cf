"""Ingest: what calls, texts and numbers become, and that nothing an agent returns breaks it."""

import dataclasses
import json
import math
import types
from collections import OrderedDict, UserDict, defaultdict, deque
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellium_fast import Fleet, InputError, Round, RoundBatch, ToolCall
from cellium_fast._ingest import hash_signature, hash_text, hash_tool

ROOT = Path(__file__).parent.parent
ERROR, EMPTY = 1, 2


def packed(call: ToolCall) -> RoundBatch:
    return RoundBatch.from_rounds([Round([call])])


def signature(arguments: object, tool: str = "t", **fields: object) -> int:
    return int(packed(ToolCall(tool, arguments, **fields)).call_signature[0])


def result(value: object, error: object = None) -> int:
    return int(packed(ToolCall("t", result=value, error=error)).call_result[0])


def flags(value: object, error: object = None) -> int:
    return int(packed(ToolCall("t", result=value, error=error)).call_flags[0])


def size(value: object, error: object = None) -> int:
    return int(packed(ToolCall("t", result=value, error=error)).call_size[0])


class Text(str):
    """A str whose own words lie."""

    def __str__(self) -> str:
        return "lie"

    def __repr__(self) -> str:
        return "lie"


# --- arguments -----------------------------------------------------------------------------------
SAME = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": {"x": 1, "y": [1, {"p": 1, "q": 2}]}}, {"a": {"y": [1, {"q": 2, "p": 1}], "x": 1}}),
    ({"a": 1, "b": [1, 2]}, '{"b": [1, 2], "a": 1}'),
    ({"a": 1, "b": [1, 2]}, ' {\n\t"a" : 1,\r\n "b":[ 1,2 ] } '),
    ('{"a":1,"b":2}', '{ "b" : 2 , "a" : 1 }'),
    ([1, 2], (1, 2)),
    ({"é": "ü"}, '{"\\u00e9": "\\u00fc"}'),
    (None, "null"),
    (True, "true"),
    (7, "7"),
    (0.5, "5e-1"),
    ([], " [ ] "),
    ({}, "{}"),
    (2**64, str(2**64)),
    ({"n": 10**30}, f'{{"n": {10**30}}}'),
    (-(2**70), str(-(2**70))),
    ("\ud800", "\ud800"),
    (["\ud800"], '["\\ud800"]'),
    (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
    (defaultdict(list, a=[1]), {"a": [1]}),
    (types.MappingProxyType({"b": 1, "a": 2}), {"a": 2, "b": 1}),
    (UserDict(b=1, a=2), {"a": 2, "b": 1}),
    (Text("ls -l"), "ls -l"),
    ({"k": Text("v")}, {"k": "v"}),
    (Text('{"a":1,"b":2}'), {"b": 2, "a": 1}),
    ({1, 2, 3}, {3, 2, 1}),
    ({"s": {"x", "y", "z"}}, {"s": {"z", "y", "x"}}),
    (b"ab", bytearray(b"ab")),
    (math.nan, float("nan")),
    ({"b": math.nan, "a": {1}}, {"a": {1}, "b": math.nan}),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_equal_arguments_have_equal_signatures(left, right):
    assert signature(left) == signature(right)


DIFFERENT = [
    ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
    ({"a": 1}, {"a": "1"}),
    ([1, 2], [2, 1]),
    ([[1], 2], [1, [2]]),
    ({"a": None}, {}),
    (True, 1),
    (False, 0),
    (None, ""),
    ("", " "),
    ("ls -l", "ls  -l"),
    ("ls -l", "ls -l "),
    ("{not json}", "{ not json}"),
    ('{"a": 1', '{"a":1'),
    ("A", "a"),
    (2**64, 2**64 + 1),
    (2**63, 2**63 + 1),
    (10**30, 10**30 + 1),
    (-(2**64), -(2**64) - 1),
    (str(2**64), str(2**64 + 1)),
    ('{"n": 123456789012345678901}', '{"n": 123456789012345678902}'),
    ({"n": 2**64}, {"n": 2.0**64}),
    (0.1, 0.1 + 2**-55 * 2),
    (b"ab", b"ba"),
    (b"ab", "ab"),
    ({1}, [1]),
    ({1}, {2}),
    ({1, 2}, {(1, 2)}),
    (object(), None),
    (len, max),
    ("\ud800", "\ud801"),
    (["\ud800"], ["\ud801"]),
    ({"\ud800": 1}, {"\ud801": 1}),
]


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_arguments_have_different_signatures(left, right):
    assert signature(left) != signature(right)


@pytest.mark.parametrize(("left", "right"), [
    (math.nan, None),
    (math.inf, None),
    (math.nan, math.inf),
    (math.inf, -math.inf),
    ({"x": math.nan}, {"x": None}),
    ([1.0, math.inf], [1.0, -math.inf]),
])
def test_numbers_that_json_lacks_are_told_apart(left, right):
    assert signature(left) != signature(right)


def test_the_tool_is_part_of_the_signature():
    assert signature({"a": 1}, "read") != signature({"a": 1}, "write")
    assert signature("b", "a") != signature("", "ab")


def test_the_signature_is_the_documented_hash():
    assert signature({"b": 1, "a": 2}, "x") == hash_signature("x", '{"a": 2, "b": 1}')
    assert int(packed(ToolCall("x")).call_tool[0]) == hash_tool("x")


LONG = "x" * 1_000_000


@pytest.mark.parametrize(("left", "right"), [
    (LONG + "a", LONG + "b"),
    ({"text": LONG + "a"}, {"text": LONG + "b"}),
    (f'{{"text": "{LONG}a"}}', f'{{"text": "{LONG}b"}}'),
    ([0] * 200_000 + [1], [0] * 200_000 + [2]),
    (b"x" * 1_000_000 + b"a", b"x" * 1_000_000 + b"b"),
    (set(range(50_000)), {*range(49_999), -1}),
])
def test_arguments_count_in_full_length(left, right):
    assert signature(left) != signature(right)
    assert result(left) != result(right)


def test_long_arrays_count_in_full_length():
    left, right = np.zeros(5_000), np.zeros(5_000)
    right[2_500] = 1.0
    assert signature(left) != signature(right)


def test_values_nested_deep_count_in_full_depth():
    left, right = [1], [2]
    for _ in range(300):
        left, right = [left], [right]
    assert signature(left) != signature(right)


@pytest.mark.parametrize("depth", [100, 300, 900])
def test_nested_json_text_equals_the_value_it_holds(depth):
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    assert signature("[" * depth + "]" * depth) == signature(value)


@settings(max_examples=150, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4),
    max_leaves=12,
).filter(lambda value: not isinstance(value, str)))
def test_a_json_value_equals_its_text(value):
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert signature(text) == signature(value)


# --- the caller's own signature -------------------------------------------------------------------
@pytest.mark.parametrize("given_hash", [0, 1, 5, 2**64 - 1, np.uint64(5), np.int32(5)])
def test_an_integer_signature_is_the_hash_itself(given_hash):
    assert signature({"a": 1}, signature=given_hash) == int(given_hash)
    assert signature("other", "tool", signature=given_hash) == int(given_hash)


@pytest.mark.parametrize("own", ["mine", "", 1.5, True, ("a", 1), {"k": {1, 2}}, b"x"])
def test_any_other_signature_is_hashed_instead_of_tool_and_arguments(own):
    assert signature({"a": 1}, signature=own) == signature("b", "other", signature=own)
    assert signature({"a": 1}, signature=own) != signature({"a": 1})


def test_own_signatures_are_told_apart():
    own = ["a", "b", "", 1.5, True, False, b"a", ("a", "b")]
    assert len({signature(None, signature=one) for one in own}) == len(own)


@pytest.mark.parametrize("wrong", [-1, 2**64, -(2**70)])
def test_an_integer_signature_out_of_range_is_refused(wrong):
    with pytest.raises(InputError, match=f"signature: .*got {wrong}"):
        signature(None, signature=wrong)


# --- results --------------------------------------------------------------------------------------
def test_a_text_result_is_taken_as_it_is():
    texts = ["a", "a ", " a", "A", "a\n", '{"a":1}', '{"a": 1}', "1", "01"]
    assert len({result(text) for text in texts}) == len(texts)
    assert [size(text) for text in texts] == [len(text) for text in texts]


def test_a_value_result_is_taken_as_canonical_json():
    assert result({"b": 1, "a": 2}) == result({"a": 2, "b": 1}) == result('{"a":2,"b":1}')
    assert size({"b": 1, "a": 2}) == len('{"a":2,"b":1}')


@pytest.mark.parametrize(("value", "length"), [
    (None, 0), ("", 0), ("äöü", 3), ("\U0001f600", 1), ("\ud800", 1), ([1, 2], 5),
    ("a" * 10**6, 10**6),
])
def test_size_is_the_length_in_characters(value, length):
    assert size(value) == length


@pytest.mark.parametrize(("left", "right"), [
    ("pid 4711 died", "pid 815 died"),
    ("at 2024-05-01 12:30:01", "at 1999-12-31 01:02:59"),
    ("object at 0x7ffe12ab", "object at 0xdeadBEEF"),
    ("id 550e8400-e29b-41d4-a716-446655440000", "id 6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    ("commit 9f86d081884c7d65", "commit 2c26b46b68ffc68f"),
    ("no  such\n\tfile ", " no such file"),
    ("line 3, column 14", "line 15, column 926"),
    ("took 0.5 s", "took 12.25 s"),
    ({"error": "pid 1"}, {"error": "pid 22"}),
    ("request req_9f8e7d6c5b4a failed", "request req_1a2b3c4d5e6f failed"),
])
def test_an_error_is_the_same_for_another_number_id_or_white_space(left, right):
    assert result(left, True) == result(right, True)
    assert result(None, str(left)) == result(None, str(right))


@pytest.mark.parametrize(("left", "right"), [
    ("no such file", "no such folder"),
    ("file not found", "File not found"),
    ("timeout after 3 s", "timeout after 3 min"),
    ("accede", "facade"),
    ("effaced", "defaced"),
    ("error: a", "error: b"),
    ("", "x"),
])
def test_an_error_is_another_for_other_words(left, right):
    assert result(left, True) != result(right, True)


def test_only_errors_are_masked():
    assert result("pid 1") != result("pid 2")
    assert result("pid 1", False) != result("pid 2", False)
    assert result("a  b") != result("a b")
    assert size("pid   4711", True) == len("pid   4711")


def test_the_error_text_stands_in_for_a_missing_result():
    assert result(None, "no such file") == result("no such file", True)
    assert size(None, "no such file") == len("no such file")
    assert result("output", "no such file") == result("output", True)


# --- error and empty ------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "error", "expected"), [
    ("text", True, True), ("text", False, False), ("text", None, False), ("text", "", False),
    ("text", "boom", True), ("text", " ", True), (None, "boom", True), (None, None, False),
    ("Error: failed", None, False), ("Error: failed", False, False), ("error", None, False),
    ({"error": "x"}, None, True), ({"error": ""}, None, False), ({"error": None}, None, False),
    ({"error": 0}, None, False), ({"error": 1}, None, True), ({"error": {"code": 1}}, None, True),
    ({"error": []}, None, False), ({"error": np.arange(2)}, None, True),
    ({"status": "error"}, None, True), ({"status": "ok"}, None, False),
    ({"status": "Error"}, None, False), ({"status": 500}, None, False),
    ({"is_error": True}, None, True), ({"is_error": False}, None, False),
    ({"is_error": 1}, None, True), ({"is_error": None}, None, False),
    ({"success": False}, None, True), ({"success": True}, None, False),
    ({"success": None}, None, False), ({"success": "no"}, None, False),
    ({"error": "", "status": "ok", "is_error": False, "success": True}, None, False),
    ({"error": "x"}, False, False), ({"success": False}, False, False),
    ({"success": True}, True, True), ({"error": "x"}, "", False),
    ([{"error": "x"}], None, False), ('{"error": "x"}', None, False),
    (types.MappingProxyType({"error": "x"}), None, True), (UserDict(error="x"), None, True),
    ("text", np.True_, True), ("text", np.False_, False), ("text", Text("boom"), True),
    ("text", Text(""), False), ({"status": Text("error")}, None, True),
])
def test_which_calls_are_errors(value, error, expected):
    assert bool(flags(value, error) & ERROR) is expected


def test_a_numpy_false_is_a_success_that_is_false():
    assert flags({"success": np.False_}) == ERROR


@pytest.mark.parametrize("wrong", [1, 0, 1.5, b"boom", ["boom"], {"a": 1}])
def test_an_error_of_another_kind_is_refused(wrong):
    with pytest.raises(InputError, match=rf"error: wanted .*got {type(wrong).__name__}"):
        flags("text", wrong)


EMPTY_RESULTS = [
    None, "", " ", "\n\t ", "\u00a0\u2003", [], (), {}, set(), b"", Text(""), Text(" "), UserDict(),
    np.zeros(0), deque(),
    {"output": ""}, {"content": None}, {"result": []}, {"data": {}}, {"text": " \n"},
    {"output": "", "content": None, "result": [], "data": {}, "text": ""},
    {"output": "", "status": "ok", "exit_code": 0}, types.MappingProxyType({"text": ""}),
]
FILLED_RESULTS = [
    "x", ".", "null", "[]", 0, False, 0.0, True, [None], [[]], {"status": "ok"}, {"x": ""},
    {"x": None},
    {"output": "", "content": "x"}, {"output": 0}, {"output": False}, {"data": [""]}, b" x",
    object(), np.float64(0), np.zeros(1), np.array(3),
]


@pytest.mark.parametrize("value", EMPTY_RESULTS)
def test_empty_results(value):
    assert flags(value) == EMPTY
    assert flags(value, False) == EMPTY
    assert flags(value, True) == ERROR


@pytest.mark.parametrize("value", FILLED_RESULTS)
def test_results_that_are_not_empty(value):
    assert not flags(value) & (ERROR | EMPTY)


def test_an_inferred_error_is_not_empty():
    assert flags({"success": False, "output": ""}) == ERROR


# --- text -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [None, "", " ", "\n\t\r ", "\u2003", Text(" ")])
def test_blank_text_is_none(text):
    assert RoundBatch.from_rounds([Round(text=text)]).text[0] == 0


@pytest.mark.parametrize("text", ["hello", " hello", "hello\n", "\t hello \n", Text("hello ")])
def test_outer_white_space_of_a_text_does_not_matter(text):
    assert RoundBatch.from_rounds([Round(text=text)]).text[0] == hash_text("hello") != 0


@pytest.mark.parametrize("text", ["Hello", "hello.", "hel lo", "hello\x00", "\ud800", "0"])
def test_other_texts_have_other_hashes(text):
    assert hash_text(text) not in (0, hash_text("hello"))


# --- str subclasses -------------------------------------------------------------------------------
def test_a_str_subclass_is_the_text_it_holds():
    plain = ToolCall("tool", "arguments", "result", "error", signature="own")
    lying = ToolCall(*map(Text, ("tool", "arguments", "result", "error")), signature=Text("own"))
    for given_as in ({}, {"signature": None}):
        left = packed(dataclasses.replace(plain, **given_as))
        right = packed(dataclasses.replace(lying, **given_as))
        for name in ("call_tool", "call_signature", "call_result", "call_flags", "call_size"):
            assert getattr(left, name) == getattr(right, name), name
        assert left.tools == right.tools
        assert left.errors == right.errors


def test_a_str_subclass_with_methods_of_its_own_is_the_text_it_holds():
    class Broken(str):
        def encode(self, *_):
            return b"lie"

        def lstrip(self, *_):
            return "lie"

    assert signature(Broken("ls -l")) == signature("ls -l")
    assert signature(Broken('{"a": 1}')) == signature({"a": 1})


# --- numbers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "expected"), [
    (None, -1), (math.nan, -1), (-1, -1), (-0.5, -1), (-math.inf, -1), (0, 0), (5, 5), (5.9, 5),
    (2**62, 2**62), (2**62 + 1, 2**62 + 1), (np.int64(7), 7), (np.uint64(7), 7),
    (np.float32(7.5), 7), (np.float64("nan"), -1), (np.int32(-3), -1), (Decimal(9), 9),
])
def test_context_tokens(value, expected):
    assert RoundBatch.from_rounds([Round(context_tokens=value)]).context_tokens[0] == expected


@pytest.mark.parametrize(("value", "expected"), [
    (None, -1), (math.nan, -1), (0, 0), (-5, -1), (np.int64(-5), -1), (np.float64(-5), -1),
    (np.int64(0), 0), (100_000, 100_000), (np.int64(100_000), 100_000),
])
def test_context_limit(value, expected):
    assert RoundBatch.from_rounds([Round(context_limit=value)]).context_limit[0] == expected


@pytest.mark.parametrize("name", ["progress", "reward"])
@pytest.mark.parametrize(
    "value", [0, 1, 0.0, 1.0, 0.7, np.float32(0.7), np.float64(0.25), np.int8(1)]
)
def test_fractions(name, value):
    batch = RoundBatch.from_rounds([Round(**{name: value})])
    assert getattr(batch, name)[0] == np.float32(value)


def test_numbers_left_out_are_not_given():
    batch = RoundBatch.from_rounds([Round()])
    assert np.isnan(batch.progress[0])
    assert np.isnan(batch.reward[0])
    assert batch.success[0] == -1


@pytest.mark.parametrize(("value", "expected"), [
    (True, 1), (False, 0), (None, -1), (np.True_, 1), (np.False_, 0),
])
def test_success(value, expected):
    assert RoundBatch.from_rounds([Round(success=value)]).success[0] == expected


@pytest.mark.parametrize("kind", [float, np.float32, np.float64])
def test_a_given_progress_of_seven_tenths_meets_the_threshold(kind):
    fleet = Fleet()
    ids, session = fleet.open(2), fleet.session()
    # At a trend that no longer rises, so that progress alone decides.
    for _ in range(30):
        scalar = session.step(Round(progress=kind(0.7)))
        objects = fleet.step(ids[:1], [Round(progress=kind(0.7))])[0]
        columns = fleet.step(ids[1:], RoundBatch(progress=np.array([0.7], np.float32)))[0]
    for decision in (scalar, objects, columns):
        assert decision.features.progress_trend < 0.03
        assert decision.features.progress_score == 0.7
        assert decision.features.making_progress


def test_a_given_progress_just_below_does_not_meet_it():
    session = Fleet().session()
    for _ in range(30):
        decision = session.step(Round(progress=0.699999))
    assert decision.features.progress_trend < 0.03
    assert not decision.features.making_progress
    assert session.step(Round(progress=0.7)).features.making_progress
