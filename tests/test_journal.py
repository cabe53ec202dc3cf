"""The journal: entries as they were appended come back, and nothing else does."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellium_fast import Round, ToolCall, _ingest, _journal, _journal_names, _journal_reader
from cellium_fast.errors import ForkedError, JournalError

ROUND = Round([ToolCall("search", {"q": "x"}, "found"), ToolCall("read", error="gone")], "text", 7)
TOOLS, ERRORS = {3: "search", 4: "r\ud800ad"}, {5: "gone"}


def begin(path: Path, first: int = 0, fsync: str = "never", interval: float = 1.0) -> Any:
    if not path.exists():
        _journal.create(path, first)
    return _journal.Journal(path, first, first, _journal.HEADER_SIZE, fsync, interval)


def packer_of(round: Round) -> _ingest.Packer:
    packer = _ingest.Packer()
    packer.pack(round, 0)
    return packer


def read(path: Path) -> tuple[list[tuple[int, bytes]], Any]:
    entries = _journal_reader.Entries(path)
    return [(kind, bytes(body)) for kind, body in entries], entries


def fill(path: Path, first: int = 0) -> list[int]:
    """A journal of every form of entry; returns where each ends."""
    journal = begin(path, first)
    packer = packer_of(ROUND)
    ends = []
    for append in (
        lambda: journal.append((2, [b"abc", np.arange(3, dtype=np.int8), b""])),
        lambda: journal.append_round(9, packer.address, TOOLS, ERRORS, {"search"}),
        lambda: journal.append((3, [])),
        lambda: journal.append_round(10, packer.address, {}, {}, None),
    ):
        append()
        ends.append(journal.end)
    journal.close()
    return ends


# --- what was appended comes back -----------------------------------------------------------------
def test_entries_come_back_as_they_were_appended(tmp_path):
    path = tmp_path / "a"
    ends = fill(path, first=41)
    found, entries = read(path)
    assert [kind for kind, _ in found] == [2, 1, 3, 1]
    assert found[0][1] == b"abc\0\0\0\0\0" + b"\0\1\2\0\0\0\0\0"
    assert found[2][1] == b""
    assert (entries.first, entries.number, entries.problem, entries.later) == (41, 45, None, False)
    assert entries.end == entries.size == ends[-1] == path.stat().st_size


@pytest.mark.parametrize("sizes", [[1, 70_001, 8], [65_536], [65_535, 2], [2_000_000, 3, 0, 7]])
def test_large_entries_come_back(tmp_path, sizes):
    path = tmp_path / "a"
    parts = [np.random.default_rng(size).bytes(size) for size in sizes]
    journal = begin(path)
    for _ in range(2):
        journal.append((2, parts))
    found, entries = read(path)
    body = b"".join(part + bytes(-len(part) % 8) for part in parts)
    assert found == [(2, body)] * 2
    assert entries.problem is None and entries.end == journal.end


def test_rounds_come_back_as_they_were_packed(tmp_path):
    path = tmp_path / "a"
    fill(path)
    entries, seen = _journal_reader.Entries(path), []

    def take(session: int, round: Any) -> None:
        again = begin(tmp_path / f"again-{session}")
        tools, errors = (round.new_tools, round.new_errors) if round.taught else ({}, {})
        again.append_round(session, round.address, tools, errors, round.used)
        seen.append((session, tools, errors, round.used, read(again.path)[0]))

    assert entries.replay_rounds(take, 5) == 0      # what comes first is none
    next(entries)
    assert entries.replay_rounds(take, 5) == 1
    next(entries)
    assert entries.replay_rounds(take, 5) == 1
    bodies = read(path)[0]
    assert seen == [
        (9, TOOLS, ERRORS, frozenset({"search"}), [bodies[1]]),
        (10, {}, {}, None, [bodies[3]]),
    ]


@pytest.mark.parametrize("calls", [0, 1, 10_000])
def test_rounds_of_any_number_of_calls(tmp_path, calls):
    packer = packer_of(Round([ToolCall("t", number, number) for number in range(calls)]))
    journal = begin(tmp_path / "a")
    journal.append_round(1, packer.address, {}, {}, None)
    entries, again = _journal_reader.Entries(journal.path), begin(tmp_path / "b")
    assert entries.replay_rounds(
        lambda session, round: again.append_round(session, round.address, {}, {}, None), 9
    ) == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_names_come_back_in_their_order():
    tools = {number: f"t{number}" for number in (3, 1, 2**64 - 1, 0)}
    errors = {7: "", 6: "\ud800 and 保存"}
    found = _journal_names.unpack_names(_journal_names.pack_names(tools, errors, ["a", "b"]))
    assert found == (tools, errors, {"a", "b"})
    assert list(found[0].items()) == list(tools.items())
    assert list(found[1].items()) == list(errors.items())


def test_names_that_end_too_soon_are_refused():
    packed = _journal_names.pack_names({1: "abc"}, {2: "de"}, ["f"])
    for size in range(len(packed)):
        with pytest.raises(ValueError, match="they end too soon"):
            _journal_names.unpack_names(packed[:size])


def test_a_second_file_of_the_name_is_refused(tmp_path):
    fill(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    with pytest.raises(FileExistsError):
        _journal.create(tmp_path / "a", 0)
    assert (tmp_path / "a").read_bytes() == before


def test_rotation_goes_on_with_the_numbers(tmp_path):
    journal = begin(tmp_path / "a")
    journal.append((2, [b"1"]))
    journal.append((2, [b"2"]))
    _journal.create(tmp_path / "b", 2)
    journal.rotate(tmp_path / "b")
    journal.append((2, [b"3"]))
    assert read(tmp_path / "a")[1].number == 2
    found, entries = read(tmp_path / "b")
    assert (entries.first, entries.number, found) == (2, 3, [(2, b"3" + bytes(7))])
    assert (journal.path, journal.first, journal.number) == (tmp_path / "b", 2, 3)


# --- files that are cut off or altered ------------------------------------------------------------
def test_a_journal_cut_anywhere_gives_the_entries_before(tmp_path):
    path, cut = tmp_path / "a", tmp_path / "cut"
    ends = fill(path)
    whole, found = path.read_bytes(), read(path)[0]
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        some, entries = read(cut)
        complete = sum(end <= size for end in ends)
        assert some == found[:complete]
        assert not entries.later
        if size < _journal.HEADER_SIZE:
            assert entries.problem == "it ends within its header" and entries.first == -1
        elif size in (_journal.HEADER_SIZE, *ends):
            assert entries.problem is None and entries.end == size
        else:
            assert "ends within" in entries.problem
            assert entries.end == ([_journal.HEADER_SIZE, *ends])[complete]


@pytest.mark.parametrize("how", [lambda byte: byte ^ 1, lambda byte: byte ^ 0x80, lambda byte: 0])
def test_every_byte_that_is_altered_is_found(tmp_path, how):
    path, altered = tmp_path / "a", tmp_path / "altered"
    ends = fill(path)
    whole, found = path.read_bytes(), read(path)[0]
    for place, byte in enumerate(whole):
        if how(byte) == byte:
            continue
        altered.write_bytes(whole[:place] + bytes([how(byte)]) + whole[place + 1 :])
        some, entries = read(altered)
        assert entries.problem is not None, place
        complete = sum(end <= place for end in ends)
        assert some == found[:complete]
        if place < _journal.HEADER_SIZE:
            assert entries.first == -1
        else:
            # With a good entry behind it, it is no torn end.
            assert entries.later == (complete < len(ends) - 1), place


def test_an_entry_left_out_or_repeated_is_found(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    ends = [_journal.HEADER_SIZE, *fill(path)]
    whole = path.read_bytes()
    other.write_bytes(whole[: ends[1]] + whole[ends[2] :])
    some, entries = read(other)
    assert (len(some), entries.later) == (1, True)
    assert entries.problem == "entry 2 should be here, and it is 3"
    other.write_bytes(whole[: ends[2]] + whole[ends[1] :])
    some, entries = read(other)
    assert (len(some), entries.problem) == (2, "entry 3 should be here, and it is 2")


def test_what_is_no_journal_says_what_it_is(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"something else" * 10)
    assert read(path)[1].problem == "it does not begin as a journal does"
    fill(tmp_path / "b")
    header = bytearray((tmp_path / "b").read_bytes())
    header[8] = 2
    path.write_bytes(header)
    assert read(path)[1].problem == "its header was altered"


def test_rounds_with_a_right_checksum_and_a_wrong_content_are_refused(tmp_path):
    """Kernels trust what they get: what `append` is told to be a round is looked at."""
    fill(tmp_path / "a")
    bodies, good = [], bytearray(read(tmp_path / "a")[0][3][1])
    progress, calls, success, event, given = 40, 48, 56, 57, 58
    for place, value in (
        (progress, b"\0\0\0\x40"), (progress, b"\0\0\0\xbf"), (progress + 4, b"\0\0\x80\x7f"),
        (success, b"\2"), (success, b"\xfe"), (event, b"\3"), (calls, b"\1"), (calls, b"\3"),
        (calls + 3, b"\xff"), (given, b"\0"), (given, b"\xf0"), (calls + 4, b"\x09"),
    ):
        bodies.append(bytearray(good))
        bodies[-1][place : place + len(value)] = value
    bodies += [good[:-8], good + bytes(8), good[:56], b""]
    flags = len(good) - 8       # of two calls, then padding
    for value in (4, 9, 16):
        bodies.append(bytearray(good))
        bodies[-1][flags] = value
    for number, body in enumerate(bodies):
        journal = begin(tmp_path / f"bad-{number}")
        journal.append((_journal.KIND_ROUND, [body]))
        with pytest.raises(ValueError, match=r"a round|names"):
            _journal_reader.Entries(journal.path).replay_rounds(lambda session, round: None, 1)
    journal = begin(tmp_path / "good")
    journal.append((_journal.KIND_ROUND, [good]))
    assert _journal_reader.Entries(journal.path).replay_rounds(lambda session, round: None, 1) == 1


# --- a disk that refuses -------------------------------------------------------------------------
def limited(code: str, folder: Path, size: int = 4_000) -> str:
    """What a process prints whose files may have so many bytes."""
    start = f"""
        import resource, signal, sys
        import numpy as np
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_journal import *
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)], cwd=folder,
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("length", [180, 3_000, 100_000])
def test_a_full_disk_leaves_the_entries_before(tmp_path, length):
    out = limited(f"""
        journal = begin(Path("a"))
        appended = 0
        for _ in range(50):
            try:
                journal.append((2, [bytes({length})]))
            except JournalError as error:
                assert error.path == Path("a") and "nothing was changed" in str(error), error
                assert Path("a").stat().st_size == journal.end
                break
            appended += 1
        journal.append((3, [b"small"]))         # for which there is room
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, resource.RLIM_INFINITY))
        journal.append((2, [bytes({length})]))      # as there is for this again
        print(appended, journal.number)
    """, tmp_path)
    appended, number = map(int, out.split())
    found, entries = read(tmp_path / "a")
    assert appended == (4_000 - _journal.HEADER_SIZE) // (length + 32 + -length % 8)
    assert [kind for kind, _ in found] == [2] * appended + [3, 2]
    assert entries.problem is None and entries.number == number == appended + 2


def test_rounds_on_a_full_disk_leave_the_entries_before(tmp_path):
    out = limited("""
        journal = begin(Path("a"))
        packer = packer_of(ROUND)
        for appended in range(100):
            try:
                journal.append_round(1, packer.address, {}, {}, None)
            except JournalError:
                break
        print(appended, journal.number)
    """, tmp_path)
    appended, number = map(int, out.split())
    entries = read(tmp_path / "a")[1]
    assert 10 < appended == number == entries.number and entries.problem is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
def test_what_cannot_be_cut_off_is_the_end_of_the_journal():
    journal = _journal.Journal("/dev/full", 0, 0, 0, "never", 1.0)
    with pytest.raises(JournalError, match=r"No space left on device.*anew\. Nothing was changed"):
        journal.append((2, [b"abc"]))
    assert (journal.number, journal.end) == (0, 0)
    with pytest.raises(JournalError, match=r"nor what was written of it cut off .*open the dir"):
        journal.append((2, [b"abc"]))


def test_a_journal_that_is_closed_says_so(tmp_path):
    journal = begin(tmp_path / "a")
    journal.close()
    for call in (lambda: journal.append((2, [])), journal.sync,
                 lambda: journal.append_round(1, packer_of(ROUND).address, {}, {}, None)):
        with pytest.raises(JournalError, match="it is closed"):
            call()
    journal.close()


def test_a_forked_process_may_not_append(tmp_path):
    journal = begin(tmp_path / "a")
    journal.append((2, []))
    journal.detach()
    with pytest.raises(ForkedError, match="this process was forked"):
        journal.append((2, []))


# --- when it is on disk --------------------------------------------------------------------------
def test_fsync_as_promised(tmp_path):
    counts = {}
    for fsync, interval in (("step", 1.0), ("interval", 0.0), ("interval", 1e6), ("never", 0.0)):
        journal = begin(tmp_path / f"{fsync}-{interval}", fsync=fsync, interval=interval)
        for _ in range(3):
            journal.append((2, []))
        journal.append_round(1, packer_of(ROUND).address, {}, {}, None)
        during = journal.syncs
        journal.close()
        counts[fsync, interval] = during, journal.syncs - during
    assert counts == {
        ("step", 1.0): (4, 0), ("interval", 0.0): (4, 0), ("interval", 1e6): (0, 1),
        ("never", 0.0): (0, 0),
    }


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/null takes everything and no fsync")
def test_the_system_is_asked_and_a_refusal_is_the_end():
    """/dev/null takes what is written and refuses fsync: so it was asked."""
    never = _journal.Journal("/dev/null", 0, 0, 0, "never", 0.0)
    never.append((2, []))
    for fsync, interval in (("step", 1.0), ("interval", 0.0)):
        journal = _journal.Journal("/dev/null", 0, 0, 0, fsync, interval)
        for _ in range(2):
            with pytest.raises(JournalError, match="the disk did not take all entries"):
                journal.append((2, []))
        assert (journal.number, journal.syncs) == (0, 1)


def test_an_interrupt_does_not_end_what_is_written(tmp_path):
    """Signals come by the hundred while entries are written; Python sees them afterwards."""
    seen = []
    previous = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        journal = begin(tmp_path / "a", fsync="step")
        for number in range(200):
            journal.append((2, [bytes(number * 1_000)]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    found, entries = read(tmp_path / "a")
    assert seen and len(found) == 200 and entries.problem is None


def test_a_journal_that_is_full_says_so_once(tmp_path):
    class Turn:
        then = None

    turn, journal = Turn(), begin(tmp_path / "a")
    journal.set_bounds(turn, "compact", 100, None)
    journal.append((2, []))
    assert turn.then is None
    journal.append((2, [bytes(40)]))
    assert turn.then == "compact"
    journal.renew_bounds()
    turn.then = None
    journal.append((2, []))
    assert turn.then is None
    journal.set_bounds(turn, "compact", None, 0.0)
    journal.append((2, []))
    assert turn.then == "compact"


assert resource     # for the processes of `limited`
