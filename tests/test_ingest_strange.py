"""What JSON cannot express, and objects that misbehave: taken, told apart, never raised on."""

import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
import threading
import types
from collections import UserDict, deque
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ingest import ROOT, flags, packed, result, signature

from cellium_fast import Fleet, Round, ToolCall
from cellium_fast._ingest import hash_text


# --- what JSON cannot express ---------------------------------------------------------------------
class Plain:
    """An object with the default repr, which shows its address."""

    def __init__(self, **values):
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@dataclasses.dataclass
class Data:
    value: object = 1


class BrokenRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


class BrokenLength:
    def __len__(self):
        raise RuntimeError("no length")


class BrokenDict:
    @property
    def __dict__(self):
        raise RuntimeError("no attributes")


class BrokenMapping(UserDict):
    def __getitem__(self, key):
        raise RuntimeError("no items")


class BrokenTruth:
    def __bool__(self):
        raise RuntimeError("no truth")


def cycle_of_lists():
    value: list = [1]
    value.append({"again": value})
    return value


def cycle_of_objects():
    one = Plain()
    one.other = Plain(back=one)
    return one


def deep(depth):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def a_generator():
    yield 1


NOT_JSON = {
    "nan": lambda: math.nan,
    "infinity": lambda: [math.inf, -math.inf],
    "complex": lambda: 1j,
    "big int": lambda: 2**80,
    "bytes": lambda: b"\x00\xff",
    "memoryview": lambda: memoryview(b"abcdef")[::2],
    "set": lambda: {"a", 1, (2, 3), None, frozenset({"x"})},
    "set of texts": lambda: {f"text {place}" for place in range(50)},
    "dict with other keys": lambda: {1: "a", None: "b", (1, 2): "c", 2.5: "d"},
    "dict of sets": lambda: {"k": {f"{place}" for place in range(20)}},
    "object": object,
    "plain object": lambda: Plain(a=1, b={"x", "y"}),
    "object in a list": lambda: [Plain(a=Plain())],
    "slotted object": lambda: Slotted(1),
    "dataclass": lambda: Data({"x", "y", "z"}),
    "broken repr": BrokenRepr,
    "exception": lambda: ValueError("x"),
    "function": lambda: cycle_of_lists,
    "lambda": lambda: lambda: 1,
    "bound method": lambda: Plain().__init__,
    "partial": lambda: functools.partial(deep, Plain()),
    "generator": a_generator,
    "class": lambda: Plain,
    "module": lambda: types,
    "lock": threading.Lock,
    "decimal": lambda: Decimal("1.50"),
    "path": lambda: Path("folder/x"),
    "array": lambda: np.arange(5),
    "numpy scalar": lambda: np.float32(0.5),
    "list cycle": cycle_of_lists,
    "object cycle": cycle_of_objects,
    "deep": lambda: deep(10_000),
    "deep text": lambda: "[" * 10_000 + "]" * 10_000,
    "lone surrogate": lambda: {"\ud800": ["\udfff", "\ud83d"]},
    "10 MB": lambda: "x" * 10_000_000,
    "10 MB value": lambda: {"x": "y" * 10_000_000},
    "10 MB of bytes": lambda: b"z" * 10_000_000,
}


def hashes_of(name: str) -> list[int]:
    """Of one value as argument, result and error."""
    value = NOT_JSON[name]()
    call = ToolCall("t", value, value)
    masked = packed(dataclasses.replace(call, arguments=None, error=True))
    plain = packed(call)
    columns = [plain.call_signature, plain.call_result, plain.call_size, plain.call_flags,
               masked.call_result]
    return [int(column[0]) for column in columns]


SETS_WITHIN = {
    "namespace": lambda texts: types.SimpleNamespace(value=texts),
    "deque": lambda texts: deque([texts]),
    "exception": lambda texts: ValueError(texts),
    "partial": lambda texts: functools.partial(print, texts),
    "object array": lambda texts: np.array([texts, None], dtype=object),
}
NOT_JSON |= {
    f"set in a {name}": functools.partial(
        lambda make: make({f"text {place}" for place in range(20)}), make
    )
    for name, make in SETS_WITHIN.items()
}


@pytest.fixture(scope="module")
def processes() -> list[dict[str, list[int]]]:
    """What `hashes_of` says in two processes whose built-in hashes differ."""
    code = (
        "import json, test_ingest_strange as t\n"
        "print(json.dumps({name: t.hashes_of(name) for name in t.NOT_JSON}))"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        )
        for hash_seed in ("1", "2")
    ]
    return [json.loads(one.communicate(timeout=60)[0]) for one in running]


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_json_cannot_express_is_the_same_in_every_process(name, processes):
    first, second = processes
    assert first[name] == second[name]


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_json_cannot_express_is_taken_and_equal_when_made_again(name):
    make = NOT_JSON[name]
    first, second = make(), make()    # both alive: their addresses differ
    assert signature(first) == signature(second)
    assert result(first) == result(second)


def test_objects_of_one_kind_are_told_apart_by_what_they_hold():
    assert signature(Plain(a=1)) != signature(Plain(a=2))
    assert signature(Data(b"1")) != signature(Data(b"2"))
    assert signature(Decimal("1.5")) != signature(Decimal("1.50"))


def test_slotted_objects_are_told_apart_by_what_they_hold():
    assert signature(Slotted(1)) != signature(Slotted(2))


def released_memory():
    view = memoryview(b"x")
    view.release()
    return view


NEVER_RAISE = {
    "int of 5,000 digits": lambda: 10**5000,
    "int of 5,000 digits within": lambda: {"n": [10**5000]},
    "text of 5,000 digits": lambda: "1" + "0" * 5000,
    "attributes that raise": BrokenDict,
    "mapping that raises": lambda: BrokenMapping(error=1, output=2),
    "length that raises": BrokenLength,
    "truth that raises": lambda: {"error": BrokenTruth()},
    "repr that raises": lambda: [BrokenRepr()],
    "released memory": released_memory,
    "infinite number in a text": lambda: "[1e400, 123456789012345678901]",
}


@pytest.mark.parametrize("name", NEVER_RAISE)
@pytest.mark.parametrize("place", ["arguments", "result", "signature"])
def test_no_argument_result_or_signature_raises(name, place):
    value = NEVER_RAISE[name]()
    if place == "signature" and isinstance(value, int):
        value = [value]
    packed(ToolCall("t", **{place: value}))


@pytest.mark.parametrize(
    "value", [cycle_of_lists(), deep(10_000), {"a": b"x"}, "\ud800", math.nan],
    ids=["cycle", "deep", "bytes", "surrogate", "nan"],
)
def test_a_session_steps_over_anything(value):
    session = Fleet().session(tools=["t"])
    for error in (None, True, False):
        decision = session.step(Round([ToolCall("t", value, value, error)], text="\ud800"))
        assert decision.features.run_length >= 1
        assert decision.explain()


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=30), st.text(max_size=30), st.booleans())
def test_any_text_is_taken(arguments, text, error):
    packed(ToolCall(text, arguments, text, error))
    packed(ToolCall(text, [arguments, b"x"], None, text))
    assert (hash_text(text) == 0) == (not text.strip())


# --- values inside values -------------------------------------------------------------------------
VALUES = {
    "path": lambda: (Path("a"), Path("b")),
    "decimal": lambda: (Decimal("1.5"), Decimal("1.25")),
    "date": lambda: (date(2020, 1, 1), date(2020, 1, 2)),
    "frozen dataclass": lambda: (Frozen(1), Frozen(2)),
    "tuple of paths": lambda: ((Path("a"), 1), (Path("b"), 1)),
}


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int


@pytest.mark.parametrize("name", VALUES)
def test_elements_of_sets_and_keys_are_told_by_value(name):
    left, right = VALUES[name]()
    assert signature({left}) != signature({right})
    assert signature({left: b"x"}) != signature({right: b"x"})
    assert signature({left, right}) == signature({right, left})
    assert signature({left: 1, right: 2}) == signature({right: 2, left: 1})


@pytest.mark.parametrize("make", [
    lambda: Path("a"), lambda: {"n": math.nan}, lambda: {"id": 2**70}, lambda: ["\ud800"],
    lambda: np.float32(0.5), lambda: (), lambda: (1, 2), lambda: [Path("x" * 2_000)],
])
def test_a_shared_object_reads_as_equal_ones(make):
    shared = make()
    for leaf in (b"x", 1):
        assert signature([shared, shared, leaf]) == signature([make(), make(), leaf])
        assert signature({"a": shared, "b": [shared, leaf]}) == signature(
            {"a": make(), "b": [make(), leaf]}
        )


def test_long_parts_are_told_apart_to_the_end():
    left = [b"x", ["y" * 5_000 + "1"]]
    right = [b"x", ["y" * 5_000 + "2"]]
    assert signature(left) != signature(right)


def test_an_error_text_whose_methods_fail():
    class Failing(str):
        def __len__(self):
            raise RuntimeError

    assert flags(None, Failing("boom")) == 1
    assert flags("text", Failing("")) == 0
