"""Texts read character by character: masked errors, and arguments in their canonical form."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from cellium_fast._ingest import hash_signature, mask_volatile
from cellium_fast.stable_text import canonical_arguments

# What is masked, as one expression; the package reads it off character by character.
VOLATILE = re.compile(
    r"0x[0-9a-f]+"
    r"|(?<![0-9a-z])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-z])"
    r"|(?<![0-9a-z])(?=[a-f]*\d)[0-9a-f]{7,}(?![0-9a-z])"
    r"|\d+",
    re.IGNORECASE,
)
UUID = "550e8400-e29b-41d4-a716-446655440000"


def masked(text: str) -> str:
    return " ".join(VOLATILE.sub("#", text).split())


# --- masks ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [
    "", " ", "a", "0", "0x", "0xg", "0x1F", "00x1f", "a0x1f", "0x1fg", "1234567", "abcdef1",
    "abcdefa", "abcdefag1", "g1234567", "1234567g", "(1234567a)", "abcdefa\u0663", "abcdefa\u0663b",
    UUID, UUID.upper(), f"x{UUID}", f"{UUID}x", f"{UUID}-1", f"{UUID}0", UUID[:-1], UUID[1:],
    UUID.replace("-", "--"), f"({UUID})", f"{UUID} {UUID}", "12345678-1234", "12345678-",
    "\u0661\u0662", "\u00b2", "\u2160", " a \t\n b ", "a\x00b", "\ud800", "\x1c1\x1d", "\U0001d7d8",
])
def test_a_text_is_masked_as_its_expression_says(text):
    assert mask_volatile(text) == masked(text)


def test_each_character_is_masked_as_the_expression_says():
    for code in [*range(0x3000), *range(0x3000, 0x110000, 101), 0x10FFFF]:
        char = chr(code)
        for text in (f"{char}1234567a", f"1234567a{char}", f"abcdefa{char}", f"{UUID}{char}",
                     f"a{char}b", f"0x{char}", f"0{char}1"):
            assert mask_volatile(text) == masked(text), hex(code)


CHARACTERS = "0123456789abcdefABCDEFgxX-_ \n\u0663\u017f\u0131\u212a\u00e9\U0001d7d8"


@settings(max_examples=500, deadline=None)
@given(st.lists(
    st.text(CHARACTERS, max_size=9) | st.uuids().map(str) | st.integers(0, 2**40).map(hex),
    max_size=6,
))
def test_any_text_is_masked_as_the_expression_says(parts):
    text = "".join(parts)
    assert mask_volatile(text) == masked(text)


# --- the canonical form ---------------------------------------------------------------------------
def signature(tool: str, arguments: Any) -> int:
    return xxh3_64_intdigest(tool.encode() + b"\0" + canonical_arguments(arguments))


ARGUMENTS = [
    {"a": None}, {"a": math.nan}, {"a": [None, math.inf]}, [None, {"b": [math.nan, None]}],
    {"null": 1}, "null", "nul", "true", " true ", "trueish", "false\n", "false\u2003", "find .",
    "not null", "n", "t", "-1", "- 1", "1 2", '"x"', '"x" y', "[ -f x ]", "{ ls; }", "{", "[]",
    {None: 1}, {"a": (None, 1)}, {"a": (math.nan,)}, "1" * 18, "1" * 19, "1" * 20, "x" * 40,
    f'{{"id": {"9" * 18}}}', f'{{"id": {"9" * 19}}}', f'{{"id": {"9" * 30}}}',
    f'{{"id": {"9" * 30}, "a": 1}}', f'["{"9" * 40}"]', f'[{", ".join(["9" * 17] * 9)}]',
    "\u0661" * 30, f'["{chr(0x661) * 30}"]', '["\\ud800"]', '{"\\u0061": 1}', "[\\u0061]", "",
    "NaN", "[NaN]", "[1e999]", '{"a": 1, "a": 2}', '{"b": {"d": 1, "c": null}, "a": [null]}',
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=repr)
def test_a_signature_is_the_hash_of_the_canonical_form(arguments):
    assert hash_signature("tool", arguments) == signature("tool", arguments)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3)
    | st.tuples(part) | st.dictionaries(st.none() | st.integers(0, 3), part, max_size=2),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
@example([0.0, -0.0])
def test_any_value_and_its_text_are_hashed_in_their_canonical_form(value):
    for arguments in (value, json.dumps(value), repr(value)):
        assert hash_signature("t", arguments) == signature("t", arguments)
