"""Journals that nobody's crash left: of other versions, or made up with right checksums."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from cli_runs import call
from durable_runs import copied, facts, recovered

from cellium_fast import JournalError, Round, ToolCall, _journal, _journal_reader, entries
from cellium_fast.directory import Directory
from cellium_fast.entries import Kind

ROUND = Round([ToolCall("search", {"q": "x"}, "found")], "text", 7)
ID, IDS = np.zeros(1, np.int64), np.arange(2)
LIMITS = {"context_limit": np.zeros(1, np.int64), "round_limit": np.zeros(1, np.uint32)}
OPENED = {"count": 1, "policy": 0, "pool": 0, "private": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session with a tool not used yet, and two by number: two entries."""
    path = tmp_path_factory.mktemp("durable") / "fleet"
    with recovered(path) as fleet:
        fleet.session("a", tools=["search", "read"])
        fleet.open(2)
    return path


def appended(directory: Path, entry: tuple[int, list[Any]]) -> int:
    """Append an entry that nobody checked; returns where it begins."""
    path = Directory(directory).journal(0)
    read = _journal_reader.Entries(path)
    for _ in read:
        pass
    journal = _journal.Journal(path, 0, read.number, read.end, "never", 1.0)
    journal.append(entry)
    journal.close()
    return read.end


def body(text: bytes, *rest: bytes) -> list[bytes]:
    return [len(text).to_bytes(8, "little") + text, *rest]


def described(name: str, dtype: object, count: object) -> list[bytes]:
    return body(json.dumps([{}, {name: [dtype, count]}]).encode(), bytes(8))


def a_round(tmp_path: Path, session: int, used: set[str]) -> tuple[int, list[Any]]:
    """The entry of a round, with tools that are used for the first time."""
    with recovered(tmp_path / "round") as fleet:
        handle = fleet.session("a", tools=sorted(used))
        handle.step(Round([ToolCall(name) for name in sorted(used)]))
    read = _journal_reader.Entries(Directory(tmp_path / "round").journal(0))
    for kind, packed in read:
        if kind == Kind.ROUND:
            return kind, [struct.pack("<q", session) + bytes(packed)[8:]]
    raise AssertionError


# --- made up -------------------------------------------------------------------------------------
IMPOSSIBLE = {
    "closes none": entries.packed(Kind.CLOSE, {}, {"ids": ID + 99, "outcomes": np.zeros(1, "i1")}),
    "more than it has": (Kind.CLOSE, described("ids", "<i8", 9)),
    **{
        f"{count!r} ids": (Kind.CLOSE, described("ids", "<i8", count))
        for count in (2**63, 2**64, 10**30, -1, 1.5, True, "1", None)
    },
    **{
        f"dtype {dtype!r}": (Kind.CLOSE, described("ids", dtype, 1))
        for dtype in ("(", "O", "(2,3)i8", "M8[1", 5, None, ["<i8"], "V8", "?", ">i8", "i8,")
    },
    "deep": (Kind.CLOSE, body(b"[" * 100_000)),
    "no JSON": (Kind.CLOSE, body(b"\xff")),
    "no pair": (Kind.CLOSE, body(b"5")),
    "a large number": (Kind.CLOSE, body(b"9" * 5_000)),
    "nothing": (Kind.CLOSE, []),
    **{
        f"opens {count!r}": entries.packed(Kind.OPEN, {**OPENED, "count": count}, LIMITS)
        for count in (-1, 4097, 4 * 10**8, 2**31 - 1, 2**31, 2**63, 2**70, True, 1.0, "1", None)
    },
    **{
        f"{name} {row!r}": entries.packed(Kind.OPEN, {**OPENED, name: row}, LIMITS)
        for name in ("policy", "pool") for row in (-1, 1, 2**70, False, "default", None)
    },
    "private 1": entries.packed(Kind.OPEN, {**OPENED, "private": 1}, LIMITS),
    "a limit below 0": entries.packed(
        Kind.OPEN, OPENED, {**LIMITS, "context_limit": np.array([-5])}
    ),
    "different limits of too few": entries.packed(
        Kind.OPEN, {**OPENED, "count": 5_000}, {**LIMITS, "context_limit": np.array([1, 2])}
    ),
    "a name of two": entries.packed(
        Kind.OPEN, {**OPENED, "count": 2, "name": "a", "tools": []}, LIMITS
    ),
    **{
        f"chose {policies!r}": entries.packed(
            Kind.OPEN_CHOSEN, OPENED, {**LIMITS, "policies": policies}
        )
        for policies in (
            np.zeros(0, np.uint16), np.zeros(2, np.uint16), np.ones(1, np.uint16),
            np.zeros(1, np.uint32),
        )
    },
    "chose nothing": entries.packed(Kind.OPEN_CHOSEN, OPENED, LIMITS),
    "a column that is none": entries.packed(Kind.STEP, {}, {"ids": IDS, "column": IDS}),
    "names that are none": entries.packed(
        Kind.STEP, {}, {"ids": IDS, "names": np.full(12, 255, np.uint8)}
    ),
    "a policy that is none": entries.packed(Kind.SET_POLICY, {"name": "b", "policy": {}}, {}),
    **{
        f"under policy {row!r}": entries.packed(Kind.USE_POLICY, {"policy": row}, {"ids": IDS})
        for row in (-1, 1, 2**70, False)
    },
    **{
        f"attach {one!r}": entries.packed(Kind.ATTACH, {"id": one}, {})
        for one in ("a", 0, 99, True, 2**70)
    },
    **{
        f"pool {row!r} learned": entries.packed(
            Kind.SET_POOL, {"pool": row, "history": {"source": "0" * 32, "start": None}}, {}
        ) for row in (0, -1, 2**70)
    },
    "a short round": (Kind.ROUND, [bytes(8)]),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_nobody_can_have_made_is_damage(directory, tmp_path, what):
    bad = copied(directory, tmp_path / "bad")
    check_is_damage(bad, appended(bad, IMPOSSIBLE[what]))


@pytest.mark.parametrize(("session", "used"), [(0, {"other"}), (1, set()), (-1, set()), (9, set())])
def test_rounds_that_nobody_can_have_made_are_damage(directory, tmp_path, session, used):
    bad = copied(directory, tmp_path / "bad")
    check_is_damage(bad, appended(bad, a_round(tmp_path, session, used)))


def test_a_tool_is_used_for_the_first_time_once(directory, tmp_path):
    bad, entry = copied(directory, tmp_path / "bad"), a_round(tmp_path, 0, {"search"})
    appended(bad, entry)
    check_is_damage(bad, appended(bad, entry), good=3)


def check_is_damage(bad: Path, offset: int, good: int = 2) -> None:
    with pytest.raises(JournalError, match="says what no fleet can have been told") as caught:
        recovered(bad)
    assert caught.value.offset == offset and "--repair" in str(caught.value)
    result = call("recover", bad, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and not found["can_open"] and found["state"]["entries"] == good
    (journal,) = found["journals"]
    assert (journal["offset"], journal["entries"], journal["torn"]) == (offset, good, False)
    result = call("recover", bad, "--repair", "--json")
    assert result.exit_code == 1 and len(json.loads(result.stdout)["put_aside"]) == 1
    assert call("recover", bad).exit_code == 0
    with recovered(bad) as fleet:
        assert fleet.recovered.entries == good


def test_many_sessions_of_one_limit_come_back(tmp_path):
    for number, count in enumerate((0, 1, 2, 4_095, 4_096, 4_097, 8_193)):
        with recovered(tmp_path / str(number)) as fleet:
            fleet.open(count, context_limit=5)
            fleet.open(count, round_limit=range(1, count + 1))
            assert fleet._journal.end < 800 + 4 * count
            wanted = facts(fleet)
        with recovered(tmp_path / str(number)) as again:
            assert facts(again) == wanted


# --- of another version, or another machine ------------------------------------------------------
def header(**changed: int) -> bytes:
    fields = {"version": 1, "byte_order": 0x01020304, "number": 0} | changed
    start = struct.pack("<8sIIQ", b"CELLJRNL", *fields.values())
    return start + struct.pack("<Q", xxhash.xxh3_64_intdigest(start))


def check_is_refused(directory: Path, path: Path, match: str) -> None:
    before = {one.name: one.read_bytes() for one in directory.iterdir()}
    with pytest.raises(JournalError, match=match) as caught:
        recovered(directory)
    assert caught.value.path == path
    for options in ((), ("--repair",)):
        with pytest.raises(JournalError, match=match):      # which `main` prints
            call("recover", directory, *options)
        assert {one.name: one.read_bytes() for one in directory.iterdir()} == before


@pytest.mark.parametrize(("changed", "match"), [
    ({"version": 2}, "format version 2, and this package knows 1: use the package that wrote it"),
    ({"byte_order": 0x04030201}, "another byte order: open it there"),
])
@pytest.mark.parametrize("number", [2, 3])
def test_a_journal_for_others_to_read_is_left_to_them(tmp_path, changed, match, number):
    """Be it needed or not: what this package does not understand, it puts nowhere."""
    with recovered(tmp_path) as fleet:
        for _ in range(2):
            fleet.open(1)
        fleet.compact()
        fleet.open(1)
        fleet.compact()
        fleet.open(1)
    path = Directory(tmp_path).journal(number)
    path.write_bytes(header(**changed, number=number) + path.read_bytes()[_journal.HEADER_SIZE :])
    if number == 3:
        check_is_refused(tmp_path, path, match)
        return
    recovered(tmp_path).shut()      # which does not need it
    with pytest.raises(JournalError, match=match):
        call("recover", tmp_path, "--repair")
    assert path.exists()


def test_an_entry_of_an_unknown_kind_is_of_a_newer_version(directory, tmp_path):
    newer = copied(directory, tmp_path / "newer")
    offset = appended(newer, (77, [b"what it means is not known here"]))
    path = Directory(newer).journal(0)
    check_is_refused(newer, path, rf"at byte {offset}: entry 3 is of kind 77, which this package")


def test_entries_of_another_version_are_told(directory, tmp_path, caplog, monkeypatch):
    from cellium_fast import durable

    other = copied(directory, tmp_path / "other")
    monkeypatch.setattr(durable, "__version__", "99.0")
    with recovered(other) as fleet:
        (record,) = caplog.records
        assert "99.0 replayed the 2 entries since" in record.getMessage()
        fleet.compact()
    caplog.clear()
    recovered(other).shut()     # nothing was replayed
    assert not caplog.records


# --- busy ----------------------------------------------------------------------------------------
def test_looking_for_good_entries_behind_bad_ones_takes_time_in_proportion(tmp_path, monkeypatch):
    """A header in every place, each of an entry up to the end: counted by what is hashed."""
    hashed = 0
    size, digest = 256 * 1024, xxhash.xxh3_64_intdigest

    def counting(data: Any) -> int:
        nonlocal hashed
        hashed += len(data)
        return digest(data)

    monkeypatch.setattr(_journal_reader, "xxh3_64_intdigest", counting)
    path = tmp_path / "a"
    path.write_bytes(header() + bytes(32) + b"".join(
        struct.pack("<Q4sIQQ", 1, b"ENTR", 3, 2**40, left) for left in range(size - 32, -1, -32)
    ))
    read = _journal_reader.Entries(path)
    assert list(read) == [] and read.problem == "no entry begins here" and read.later
    assert size < hashed < 20 * size
