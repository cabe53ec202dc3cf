"""Durable fleets: what a crash leaves recovers to the state before it, whenever it comes."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable_runs import begin, calls, copied, count_calls_alone, facts, recovered
from lively_fleets import Run, Script

from cellium_fast import (
    DirectoryInUseError,
    Fleet,
    InputError,
    JournalError,
    Policy,
    Posterior,
    Round,
    RoundBatch,
    SessionError,
    SnapshotError,
    ToolCall,
    _journal,
    _journal_reader,
)
from cellium_fast import snapshot as snapshots
from cellium_fast.directory import Directory

ROUND = Round([ToolCall("search", {"q": "x"}, "found")], "text", 7)


@pytest.fixture(autouse=True)
def _entries_are_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    count_calls_alone(monkeypatch)


def names(directory: Path, kind: str = "") -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith(kind))


def only(directory: Path, pattern: str) -> Path:
    (path,) = directory.glob(pattern)
    return path


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs this, with tests to import."""
    where = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": where},
    )


# --- recovered = uninterrupted --------------------------------------------------------------------
@pytest.mark.parametrize("seed", [1, 2])
def test_after_every_call_the_directory_holds_the_state(tmp_path, seed):
    directory, cut = tmp_path / "fleet", tmp_path / "cut"
    fleet = begin(directory, seed)
    moments = [(fleet._journal.end, 0, facts(fleet))]
    for _ in calls(Run(fleet), Script(seed).steps[:14]):
        moments.append((fleet._journal.end, fleet._journal.number, facts(fleet)))
    assert len({number for _, number, _ in moments}) == len(moments) > 60
    fleet.shut()
    journal = directory / "journal-000000000000.log"
    whole = journal.read_bytes()
    assert len(whole) == moments[-1][0]
    copied(directory, cut)
    for end, number, wanted in moments:
        (cut / journal.name).write_bytes(whole[:end])
        with recovered(cut) as again:
            assert facts(again) == wanted, f"seed {seed}, entry {number}"
            assert (again.recovered.entries, again.recovered.bytes_cut) == (number, 0)


@pytest.mark.parametrize("seed", [3, 4])
def test_recovered_in_the_middle_goes_on_as_uninterrupted(tmp_path, seed):
    steps = Script(seed).steps
    one = begin(tmp_path / "one", seed)
    wanted = Run(one).play(steps)
    other = begin(tmp_path / "other", seed)
    first = Run(other)
    for place in (0, 7, 11, 25):
        nearest = {0: 7, 7: 11, 11: 25, 25: 40}[place]
        assert first.play(steps[place:nearest]) == wanted[place:nearest], f"seed {seed}, {place}"
        other.shut()
        other = recovered(tmp_path / "other")
        first = Run(other, first.ids)
    assert facts(other, sources=False) == facts(one, sources=False)


def test_compacting_anywhere_changes_nothing(tmp_path):
    seed, directory = 5, tmp_path / "fleet"
    plain = begin(tmp_path / "plain", seed)
    fleet = begin(directory, seed, compact_bytes=3_000)
    rng = random.Random(seed)
    steps = Script(seed).steps[:20]
    seen = set()
    for _, _ in zip(calls(Run(plain), steps), calls(Run(fleet), steps), strict=True):
        seen.update(names(directory, "snapshot"))
        if rng.random() < 0.3:
            with recovered(copied(directory, tmp_path / "copy")) as again:
                number = fleet._journal.number
                assert facts(again) == facts(fleet), f"seed {seed}, entry {number}"
                assert facts(again, sources=False) == facts(plain, sources=False), number
    assert len(seen) > 8
    assert len(names(directory, "snapshot")) == len(names(directory, "journal")) == 2


def test_names_that_are_forgotten_are_forgotten_again(tmp_path):
    fleet = begin(tmp_path / "fleet", 6)
    fleet._names._capacity = 5
    session = fleet.session("a", tools=["t3", "t7"])
    ids = fleet.open(2)
    for number in range(40):
        name = f"t{number % 9}"
        session.step(Round([ToolCall(name, error=f"problem {'abcdefgh'[number % 8]}")]))
        fleet.step(ids, [Round([ToolCall(f"t{(number * 5) % 13}")])] * 2)
    wanted = facts(fleet)
    assert wanted["forgotten"] > 30
    fleet.shut()
    journal = directory_journal(tmp_path / "fleet")
    again = Fleet._from_state(snapshots.read(tmp_path / "fleet/snapshot-000000000000.safetensors"))
    again._names._capacity = 5
    from cellium_fast import entries

    entries.replay(again, _journal_reader.Entries(journal))
    assert facts(again) == wanted


def directory_journal(directory: Path) -> Path:
    files = Directory(directory)
    return files.journal(files.journals()[-1])


def test_sessions_that_had_to_go_go_again(tmp_path):
    rng = random.Random(11)
    with recovered(tmp_path, max_sessions=5) as fleet:
        for number in range(60):
            if rng.random() < 0.5:
                fleet.open(rng.randrange(1, 4))
            else:
                fleet.session(f"s{number}")
            ids = rng.sample(fleet.ids.tolist(), min(2, len(fleet)))
            fleet.step(ids, RoundBatch(context_tokens=[number] * len(ids)))
            if rng.random() < 0.3:
                fleet.attach(rng.choice(fleet.ids.tolist())).step(ROUND)
            if rng.random() < 0.2:
                fleet.compact()
        assert fleet.evicted > 50
        wanted = facts(fleet)
    with recovered(tmp_path) as again:
        assert facts(again) == wanted
    with pytest.raises(InputError, match=r"max_sessions: .* has 5, got 6"):
        recovered(tmp_path, max_sessions=6)


def test_columns_of_every_kind_come_back(tmp_path):
    with begin(tmp_path / "fleet", 7) as fleet:
        ids = fleet.open(4, context_limit=[0, 5, 2**40, 7], round_limit=[np.inf, 3, 2, 1])
        offsets = np.array([0, 2, 2, 3, 4])
        rng = np.random.default_rng(7)
        hashes = {name: rng.integers(1, 2**63, 4, np.uint64) for name in
                  ("call_tool", "call_signature", "call_shape", "call_result")}
        batch = RoundBatch(
            call_offsets=offsets, **hashes, call_flags=np.array([1, 2, 8, 5], np.uint8),
            call_size=np.array([1, 2, 3, 2**32 - 1], np.uint32),
            text=rng.integers(0, 2**63, 4, np.uint64), text_sketch=np.arange(4, dtype=np.uint64),
            context_tokens=np.array([-1, 3, 4, 5]), context_limit=np.array([-1, 0, 9, 8]),
            progress=np.array([0.5, np.nan, 0, 1], np.float32),
            reward=np.array([np.nan, 0.25, 1, 0], np.float32),
            success=np.array([-1, 0, 1, 1], np.int8), event=np.array([0, 1, 2, 0], np.uint8),
            tools={7: "seven"}, errors={8: "eight"},
        )
        fleet.step(ids, batch)
        fleet.step(ids[:0], RoundBatch())
        fleet.step(ids[2:], RoundBatch())
        fleet.open(0)
        fleet.close(ids[1:3], [True, False])
        fleet.close([])
        fleet.close(ids[3:])
        wanted = facts(fleet)
    with recovered(tmp_path / "fleet") as again:
        assert facts(again) == wanted


def test_a_call_that_is_refused_leaves_no_entry(tmp_path):
    fleet = recovered(tmp_path / "fleet")
    session = fleet.session()
    number = fleet._journal.number
    for call in (
        lambda: fleet.open(-1), lambda: fleet.close([99]), lambda: fleet.step([99], RoundBatch()),
        lambda: fleet.user_message([99]), lambda: fleet.compacted([99]),
        lambda: fleet.set_policy("default", 3), lambda: fleet.use_policy([99], "default"),
        lambda: session.step(Round([ToolCall(3)])),
    ):
        with pytest.raises(InputError):
            call()
    assert fleet._journal.number == number


# --- crashes in the middle ------------------------------------------------------------------------
def filled(directory: Path, **settings: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A fleet of some entries, and its states after each."""
    fleet = recovered(directory, **settings)
    states = [facts(fleet)]
    session = fleet.session("a", tools=["search"])
    states.append(facts(fleet))
    for _ in range(3):
        session.step(ROUND)
        states.append(facts(fleet))
    return fleet, states


def test_a_torn_end_is_cut_off_kept_and_logged(tmp_path, caplog):
    directory, torn = tmp_path / "fleet", tmp_path / "torn"
    fleet, states = filled(directory)
    before = [_journal.HEADER_SIZE]
    journal = directory_journal(directory)
    entries = _journal_reader.Entries(journal)
    for _ in entries:
        before.append(entries.end)
    whole = journal.read_bytes()
    near = {end + by for end in before for by in (-1, 0, 1)}
    for size in sorted(near | set(range(_journal.HEADER_SIZE, len(whole), 29))):
        if not _journal.HEADER_SIZE <= size <= len(whole):
            continue
        copied(directory, torn)
        (torn / journal.name).write_bytes(whole[:size])
        caplog.clear()
        complete = sum(end <= size for end in before[1:])
        rest = size - before[complete]
        with recovered(torn) as again:
            assert facts(again) == states[complete]
            assert again.recovered.bytes_cut == rest
            aside = names(torn, f"{journal.name}.torn-")
            if rest:
                assert (torn / aside[0]).read_bytes() == whole[before[complete] : size]
                (record,) = caplog.records
                assert record.levelname == "WARNING" and aside[0] in record.getMessage()
            else:
                assert not aside and not caplog.records
            again.open(1)
        with recovered(torn) as again:
            assert len(again) == (complete > 0) + 1 and not again.recovered.bytes_cut
    fleet.shut()


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("size", [0, 5, 9, 31])
def test_a_last_journal_without_a_whole_header_is_begun_anew(tmp_path, size, zeros):
    """A machine that dies may also leave zeros, in place of what the disk did not get."""
    fleet, states = filled(tmp_path)
    fleet.compact()
    fleet.shut()
    journal = directory_journal(tmp_path)
    left = journal.read_bytes()[:size]
    journal.write_bytes(left.ljust(_journal.HEADER_SIZE, b"\0") if zeros else left)
    with recovered(tmp_path) as again:
        assert facts(again) == states[-1]
        again.open(1)
    with recovered(tmp_path) as again:
        assert len(again) == 2


def test_damage_before_good_entries_is_no_torn_end(tmp_path):
    fleet, _ = filled(tmp_path)
    fleet.shut()
    journal = directory_journal(tmp_path)
    entries = _journal_reader.Entries(journal)
    next(entries)
    data = bytearray(journal.read_bytes())
    data[entries.end + 40] ^= 1
    journal.write_bytes(data)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    with pytest.raises(JournalError, match="cellium-fast recover") as caught:
        recovered(tmp_path)
    assert caught.value.path == journal and caught.value.offset == entries.end
    assert f"at byte {entries.end}: an entry was altered" in str(caught.value)
    after = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    assert after == before


def test_a_journal_that_is_missing_is_named(tmp_path):
    fleet, _ = filled(tmp_path)
    fleet.compact()
    fleet.open(2)
    fleet.compact()
    fleet.open(1)
    fleet.shut()
    files = Directory(tmp_path)
    first, second = map(files.journal, files.journals())
    shutil.copytree(tmp_path, tmp_path / "copy")
    second.unlink()
    with pytest.raises(JournalError, match="there is no such file") as caught:
        recovered(tmp_path)
    assert caught.value.path == second
    shutil.copy(tmp_path / "copy" / second.name, second)
    first.unlink()      # of the generation before: not needed
    recovered(tmp_path).shut()
    newest = files.snapshot(files.snapshots()[-1])
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(JournalError, match="there is no such file, and there are later ones"):
        recovered(tmp_path)


@pytest.mark.parametrize("how", ["cut", "emptied", "altered", "foreign", "gone"])
def test_a_bad_snapshot_gives_way_to_the_one_before_and_both_journals(tmp_path, how, caplog):
    fleet, _ = filled(tmp_path)
    fleet.compact()
    fleet.open(2)
    wanted = facts(fleet)
    fleet.shut()
    files = Directory(tmp_path)
    path = files.snapshot(files.snapshots()[-1])
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({
            "cut": data[: len(data) // 2], "emptied": b"", "foreign": b"x" * len(data),
            "altered": data[:-1] + bytes([data[-1] ^ 1]),
        }[how])
    with recovered(tmp_path) as again:
        assert facts(again) == wanted
        assert again.recovered.snapshot == files.snapshot(0)
        assert again.recovered.entries == 5
        if how == "gone":
            assert not again.recovered.skipped
        else:
            ((skipped, why),) = again.recovered.skipped
            assert skipped == path and str(path) in why
            assert (tmp_path / f"{path.name}.bad-1").exists() and not path.exists()
            assert path.name in caplog.text
        again.compact()
        again.open(1)
        wanted = facts(again)
    with recovered(tmp_path) as again:
        assert facts(again) == wanted


def test_no_good_snapshot_is_an_error_and_nothing_is_begun_over_it(tmp_path):
    fleet, _ = filled(tmp_path)
    fleet.shut()
    path = only(tmp_path, "snapshot-*")
    path.write_bytes(b"")
    with pytest.raises(JournalError, match="no snapshot is good, and nothing was changed"):
        recovered(tmp_path)
    assert path.read_bytes() == b""
    path.unlink()
    with pytest.raises(JournalError, match="journals here, but no snapshot"):
        recovered(tmp_path)


def test_a_crash_before_the_first_snapshot_is_begun_anew(tmp_path):
    _journal.create(tmp_path / "journal-000000000000.log", 0)
    (tmp_path / "snapshot-000000000000.safetensors.tmp-1-2").write_bytes(b"half")
    with recovered(tmp_path, seed=3) as fleet:
        assert fleet.recovered.snapshot is None and fleet.seed == 3
    assert names(tmp_path) == [
        "journal-000000000000.log", "lock", "shut", "snapshot-000000000000.safetensors",
    ]


def watching(monkeypatch: pytest.MonkeyPatch, watch: Callable[[], None]) -> None:
    """Call `watch` before everything that the file system is asked for."""
    busy = False

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **settings: Any) -> Any:
            nonlocal busy
            if not busy:
                busy = True
                watch()
                busy = False
            return function(*arguments, **settings)
        return watched

    for name in ("open", "write", "fsync", "replace", "rename", "link", "unlink", "close"):
        monkeypatch.setattr(os, name, before(getattr(os, name)))


def test_a_crash_at_any_moment_of_a_compaction_loses_nothing(tmp_path, monkeypatch):
    directory = tmp_path / "fleet"
    fleet, _ = filled(directory)
    for _ in range(2):
        fleet.compact()
        fleet.open(1)
    wanted, moments = facts(fleet), []

    def copy() -> None:
        moments.append(copied(directory, tmp_path / f"moment-{len(moments)}"))

    with monkeypatch.context() as patched:
        watching(patched, copy)
        fleet.compact()
    copy()
    assert len(moments) > 15
    listings = {tuple(names(moment)) for moment in moments}
    assert len(listings) >= 6, listings     # it was watched in the middle of things
    for moment in moments:
        with recovered(moment) as again:
            assert facts(again) == wanted
            again.open(1)
            again.compact()
            assert not Directory(moment).temporary()
        with recovered(moment) as again:
            assert len(again) == len(fleet) + 1


def test_a_crash_at_any_moment_of_the_beginning_leaves_a_fleet_or_none(tmp_path, monkeypatch):
    directory, moments = tmp_path / "fleet", []

    def copy() -> None:
        if directory.exists():
            moments.append(copied(directory, tmp_path / f"moment-{len(moments)}"))

    with monkeypatch.context() as patched:
        watching(patched, copy)
        recovered(directory).shut()
    assert len(moments) > 8
    for moment in moments:
        with recovered(moment) as fleet:
            assert len(fleet) == 0
            fleet.open(2)
        with recovered(moment) as again:
            assert len(again) == 2


# --- compaction -----------------------------------------------------------------------------------
def test_by_size_by_time_and_not_at_all(tmp_path):
    for settings, compacted in (
        ({"compact_bytes": 500}, True), ({"compact_bytes": None}, False),
        ({"compact_bytes": None, "compact_seconds": 0.0}, True),
        ({"compact_bytes": None, "compact_seconds": 1e6}, False),
    ):
        directory = tmp_path / repr(settings)
        fleet = recovered(directory, **settings)
        session = fleet.session()
        for _ in range(10):
            session.step(ROUND)
        assert (names(directory, "snapshot") != ["snapshot-000000000000.safetensors"]) is compacted
        assert fleet._journal.number == 11
        fleet.shut()


def test_nothing_new_is_not_compacted(tmp_path):
    with recovered(tmp_path) as fleet:
        fleet.compact()
        assert names(tmp_path, "snapshot") == ["snapshot-000000000000.safetensors"]
        fleet.open(1)
        fleet.compact()
        before = names(tmp_path)
        fleet.compact()
        assert names(tmp_path) == before


def test_a_compaction_that_fails_fails_no_call_and_is_tried_again(tmp_path, monkeypatch, caplog):
    with recovered(tmp_path, compact_bytes=400) as fleet:
        session = fleet.session()

        def fail(path: Path, state: Any) -> None:
            raise SnapshotError(path, "unwritable", "no room")

        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "write", fail)
            for _ in range(10):
                session.step(ROUND)
            with pytest.raises(SnapshotError, match="no room"):
                fleet.compact()
        failures = [record for record in caplog.records if record.levelname == "ERROR"]
        assert 1 < len(failures) < 10 and "no room" in caplog.text     # with the traceback
        wanted = facts(fleet)
        with recovered(copied(tmp_path, tmp_path.with_name("copy"))) as again:
            assert facts(again) == wanted
        for _ in range(10):
            session.step(ROUND)
        assert names(tmp_path, "snapshot")[0] != "snapshot-000000000000.safetensors"
        wanted = facts(fleet)
    with recovered(tmp_path) as again:
        assert facts(again) == wanted


@pytest.mark.parametrize("again", [False, True])
def test_a_journal_begun_in_vain_is_in_nobodys_way(tmp_path, monkeypatch, again):
    """Not even if it cannot be removed: the next compaction does, and recovery passes it by."""
    fleet, _ = filled(tmp_path)

    def refuse(path: object) -> None:
        if isinstance(path, Directory) or os.path.exists(str(path)):
            raise OSError(5, "the disk is broken")
        raise FileNotFoundError

    with monkeypatch.context() as patched, pytest.raises(JournalError, match="is broken"):
        patched.setattr(Directory, "sync", refuse)
        patched.setattr(os, "unlink", refuse)
        fleet.compact()
    assert len(names(tmp_path, "journal")) == 2
    if again:
        fleet.compact()
        assert len(names(tmp_path, "snapshot")) == 2
    fleet.open(1)
    wanted = facts(fleet)
    fleet.shut()
    with recovered(tmp_path) as later:
        assert facts(later) == wanted


@pytest.mark.parametrize("opens", [0, 1])
def test_a_torn_end_beside_a_journal_begun_in_vain(tmp_path, opens):
    fleet, _ = filled(tmp_path)
    _journal.create(Directory(tmp_path).journal(fleet._journal.number), fleet._journal.number)
    if opens:
        fleet.open(opens)
    wanted, journal = facts(fleet), fleet._journal.path
    fleet.shut()
    journal.write_bytes(journal.read_bytes() + b"half")
    for bytes_cut in (4, 0):
        with recovered(tmp_path) as again:
            assert facts(again) == wanted and again.recovered.bytes_cut == bytes_cut


def test_others_step_while_a_snapshot_is_written(tmp_path, monkeypatch):
    with recovered(tmp_path) as fleet:
        session = fleet.session()
        session.step(ROUND)
        write, writing, stepped = snapshots.write, threading.Event(), threading.Event()

        def slow(path: Path, state: Any) -> None:
            writing.set()
            assert stepped.wait(30)
            write(path, state)

        monkeypatch.setattr(snapshots, "write", slow)
        compacting = threading.Thread(target=fleet.compact)
        compacting.start()
        assert writing.wait(30)
        for _ in range(5):
            session.step(ROUND)
        stepped.set()
        compacting.join()
        wanted = facts(fleet)
    with recovered(tmp_path) as again:
        assert facts(again) == wanted and again.recovered.entries == 5


# --- one writer -----------------------------------------------------------------------------------
def test_a_second_writer_is_told_who_is_there(tmp_path):
    with recovered(tmp_path):
        with pytest.raises(DirectoryInUseError, match="this process has this directory open"):
            recovered(tmp_path)
        other = start(
            """
            import sys
            from cellium_fast import Fleet
            Fleet.open_durable(sys.argv[1])
            """, tmp_path,
        )
        error = other.communicate(timeout=60)[1]
        assert f"DirectoryInUseError: {tmp_path}: process {os.getpid()} has this" in error
    recovered(tmp_path).shut()


def test_two_fleets_in_one_process(tmp_path):
    with recovered(tmp_path / "a") as one, recovered(tmp_path / "b") as other:
        one.open(1)
        other.open(2)
    with recovered(tmp_path / "a") as one, recovered(tmp_path / "b") as other:
        assert (len(one), len(other)) == (1, 2)


HOLD = """
    import sys
    from durable_runs import recovered
    fleet = recovered(sys.argv[1])
    fleet.open(3)
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_killed_holder_is_no_obstacle(tmp_path):
    holder = start(HOLD, tmp_path)
    assert holder.stdout is not None and holder.stdout.readline() == "open\n"
    with pytest.raises(DirectoryInUseError, match=f"process {holder.pid} "):
        recovered(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=60)
    with recovered(tmp_path) as fleet:
        assert len(fleet) == 3


def test_b74_no_update_of_several_processes_is_lost(tmp_path):
    """Five processes, fifty updates each: who finds the directory in use comes again."""
    recovered(tmp_path).shut()
    code = """
        import sys, time
        from durable_runs import recovered
        from cellium_fast import DirectoryInUseError, Round
        left = 50
        while left:
            try:
                fleet = recovered(sys.argv[1])
            except DirectoryInUseError:
                time.sleep(0.002)
                continue
            for _ in range(10):
                fleet.session().step(Round())
            left -= 10
            fleet.shut()
    """
    processes = [start(code, tmp_path) for _ in range(5)]
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    with recovered(tmp_path) as fleet:
        assert len(fleet) == 250 and fleet.recovered.entries == 500


def test_b74_no_update_of_several_threads_is_lost(tmp_path):
    with recovered(tmp_path, compact_bytes=5_000) as fleet:
        sessions = [fleet.session() for _ in range(8)]

        def update(session: Any) -> None:
            for _ in range(50):
                session.step(ROUND)

        threads = [threading.Thread(target=update, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = facts(fleet)
    with recovered(tmp_path) as again:
        assert facts(again) == wanted
        rounds = [session.decision.features.round for session in again._handles.values()]
        assert rounds == [50] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_a_forked_process_may_not_write_and_does_not_hold_the_directory(tmp_path):
    parent = start(
        """
        import os, sys
        from durable_runs import recovered
        from cellium_fast import ForkedError, Round
        fleet = recovered(sys.argv[1])
        session = fleet.session()
        child = os.fork()
        if not child:
            refused = 0
            for call in (lambda: fleet.open(1), lambda: session.step(Round()), fleet.compact):
                try:
                    call()
                except ForkedError as error:
                    refused += "this process was forked" in str(error)
            print(refused, len(fleet), os.getpid(), flush=True)
            fleet.shut()
            sys.stdin.read()
            os._exit(0)
        session.step(Round())
        os.waitpid(child, 0)
        """, tmp_path,
    )
    assert parent.stdout is not None
    refused, count, child = map(int, parent.stdout.readline().split())
    try:
        assert (refused, count) == (3, 1)
        with pytest.raises(DirectoryInUseError, match=f"process {parent.pid} "):
            recovered(tmp_path)
        parent.send_signal(signal.SIGKILL)
        parent.wait(60)
        with recovered(tmp_path) as fleet:
            assert fleet.recovered.entries == 2
    finally:
        os.kill(child, signal.SIGKILL)
        for stream in (parent.stdin, parent.stdout, parent.stderr):
            assert stream is not None
            stream.close()


# --- the directory --------------------------------------------------------------------------------
def test_a_directory_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(JournalError, match="files here, and none of a fleet"):
        recovered(tmp_path)
    assert names(tmp_path) == ["thesis.txt"]
    with pytest.raises(JournalError, match="there cannot be a fleet here"):
        recovered(tmp_path / "thesis.txt")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs rights that can be missing")
def test_a_directory_that_cannot_be_written_says_so(tmp_path):
    recovered(tmp_path).shut()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(JournalError, match="cannot be written"):
            recovered(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_arguments_that_do_not_fit_the_stored_fleet(tmp_path, caplog):
    policies, pools = {"a": Policy(), "b": "cellium"}, {"p": Posterior(), "q": Posterior(alpha=3.0)}
    with Fleet.open_durable(tmp_path, seed=5, policies=policies, pools=pools):
        pass
    for given, message in (
        ({"seed": 6}, "seed: the fleet in .* has 5, got 6"),
        ({"policies": {"a": Policy()}}, "policies: .* has 'a', 'b', got 'a'"),
        ({"pools": ["p"]}, "pools: .* has 'p', 'q', got 'p'"),
    ):
        with pytest.raises(InputError, match=message):
            recovered(tmp_path, **given)
    with recovered(tmp_path, seed=5, policies=policies, pools=pools) as fleet:
        assert fleet.seed == 5 and not caplog.records
    with recovered(tmp_path, policies={"a": "cellium", "b": "cellium"}) as fleet:
        assert fleet.policies["a"] == Policy()
    assert "policies of other parameters were given than are stored, which stand: a" in caplog.text


@pytest.mark.parametrize(("setting", "value"), [
    ("fsync", "always"), ("fsync_interval", -1), ("compact_bytes", 0), ("compact_seconds", "x"),
])
def test_settings_that_make_no_sense(tmp_path, setting, value):
    with pytest.raises(InputError, match=setting):
        Fleet.open_durable(tmp_path / "fleet", **{setting: value})
    assert not (tmp_path / "fleet").exists()


def test_shut_twice_and_used_afterwards(tmp_path):
    fleet = recovered(tmp_path)
    session = fleet.session()
    assert not fleet.is_shut
    fleet.shut()
    fleet.shut()
    assert fleet.is_shut and len(fleet) == 1
    for call in (lambda: fleet.open(1), lambda: session.step(ROUND), fleet.compact):
        with pytest.raises(JournalError, match="it is closed"):
            call()
    with pytest.raises(SessionError):       # as ever
        fleet.done([99])


def test_fsync_is_asked_for_as_promised(tmp_path):
    for fsync, wanted in (("step", 11), ("interval", 0), ("never", 0)):
        with recovered(tmp_path / fsync, fsync=fsync, fsync_interval=1e6) as fleet:
            session = fleet.session()
            for _ in range(10):
                session.step(ROUND)
            assert fleet._journal.syncs == wanted


def test_what_is_recovered_is_brought_to_the_disk(tmp_path, monkeypatch):
    fleet, _ = filled(tmp_path)
    fleet.shut()
    journal, synced, fsync = directory_journal(tmp_path), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file)), fsync(file)))
    for mode in ("never", "step", "interval"):
        with recovered(tmp_path, fsync=mode):
            found = any(os.path.samestat(one, journal.stat()) for one in synced)
            assert found == (mode != "never")
        synced.clear()


def test_every_new_directory_is_on_the_disk(tmp_path, monkeypatch):
    synced: list[Path] = []
    sync = Directory.sync
    monkeypatch.setattr(Directory, "sync", lambda self: (synced.append(self.path), sync(self))[1])
    recovered(tmp_path / "a" / "b" / "c").shut()
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)


def test_a_full_disk_refuses_calls_and_nothing_changes(tmp_path):
    child = start(
        """
        import resource, signal, sys
        from durable_runs import begin, facts
        from cellium_fast import JournalError, Round, RoundBatch
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        fleet = begin(sys.argv[1], 1)
        session, ids = fleet.session(), fleet.open(50)
        limit = fleet._journal.end + 400        # less than 50 ids
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        before = facts(fleet)
        for call in (
            lambda: fleet.step(ids, RoundBatch(context_tokens=[1] * 50)), lambda: fleet.close(ids),
            lambda: fleet.user_message(ids), lambda: fleet.session("x" * 1_000),
            lambda: fleet.set_policy("default", "cellium"),
            lambda: fleet.use_policy(ids, "cellium"), lambda: fleet.compacted(ids),
        ):
            try:
                call()
            except JournalError as error:
                assert "nothing was changed" in str(error)
            else:
                raise SystemExit("not refused")
            assert facts(fleet) == before
        while True:
            before = facts(fleet)
            try:
                session.step(Round())
            except JournalError:
                break
        assert facts(fleet) == before
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, resource.RLIM_INFINITY))
        fleet.step(ids, RoundBatch(context_tokens=[1] * 50))
        print(fleet._journal.number)
        """, tmp_path,
    )
    out, error = child.communicate(timeout=60)
    assert child.returncode == 0, error
    with recovered(tmp_path) as again:
        assert again.recovered.entries == int(out) > 5 and len(again) == 51


# --- quiet ----------------------------------------------------------------------------------------
def test_nothing_is_said_unless_someone_listens(tmp_path):
    """A torn end is logged as a warning; without a handler, Python would print it."""
    fleet, _ = filled(tmp_path)
    fleet.shut()
    journal = directory_journal(tmp_path)
    journal.write_bytes(journal.read_bytes()[:-1])
    code = """
        import sys
        from durable_runs import recovered
        fleet = recovered(sys.argv[1])
        assert fleet.recovered.bytes_cut
    """
    assert start(code, tmp_path).communicate(timeout=60) == ("", "")
    assert not logging.getLogger("cellium_fast.recovery").handlers
