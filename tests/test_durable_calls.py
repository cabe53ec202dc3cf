"""Durable fleets: what calls them when, and from where, does their files no harm."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from durable_runs import facts, recovered

from cellium_fast import (
    DirectoryInUseError,
    Fleet,
    JournalError,
    ReentryError,
    Round,
    ToolCall,
    _journal,
)
from cellium_fast import snapshot as snapshots
from cellium_fast.directory import Directory
from cellium_fast.durable import DurableFleet

ROUND = Round([ToolCall("search", {"q": "x"}, "found")], "text", 7)


# --- where it is ---------------------------------------------------------------------------------
def test_another_current_directory_is_not_another_fleet(tmp_path, monkeypatch):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with recovered(Path("state"), seed=2) as fleet:
        fleet.open(3)
    before = {path.name: path.read_bytes() for path in Path("state").iterdir()}
    monkeypatch.chdir(tmp_path / "one")
    fleet = recovered(Path("state"), seed=1)
    assert fleet.directory == tmp_path / "one" / "state"
    session = fleet.session()
    monkeypatch.chdir(tmp_path / "other")
    for _ in range(3):
        session.step(ROUND)
        fleet.compact()
    wanted = facts(fleet)
    fleet.shut()
    assert {path.name: path.read_bytes() for path in Path("state").iterdir()} == before
    with recovered(tmp_path / "one" / "state") as again:
        assert facts(again) == wanted


def test_a_volume_of_its_own_is_taken(tmp_path):
    (tmp_path / "lost+found").mkdir()
    with recovered(tmp_path) as fleet:
        fleet.open(1)


def test_there_is_none_without_a_directory(tmp_path):
    Fleet().save(tmp_path / "file")
    for call in (DurableFleet, lambda: DurableFleet(seed=3),
                 lambda: DurableFleet.load(tmp_path / "file")):
        with pytest.raises(TypeError, match=r"Fleet\.open_durable\(directory"):
            call()


# --- from within ---------------------------------------------------------------------------------
def within_a_call(fleet: Fleet, call: Callable[[], object]) -> list[BaseException]:
    """What a call raises that comes within a call of the fleet, as a signal handler's does."""
    raised: list[BaseException] = []

    def meddle() -> None:
        try:
            call()
        except ReentryError as error:
            raised.append(error)

    fleet._lock.run(meddle)
    return raised


def test_shut_within_a_call_shuts_nothing(tmp_path):
    fleet = recovered(tmp_path)
    assert within_a_call(fleet, fleet.shut)
    assert not fleet.is_shut
    with pytest.raises(DirectoryInUseError):
        recovered(tmp_path)
    fleet.open(2)
    wanted = facts(fleet)
    fleet.shut()
    with recovered(tmp_path) as again:
        assert facts(again) == wanted


def test_a_signal_handler_within_a_compaction_is_told(tmp_path, monkeypatch):
    """SIGTERM often means `shut`, and comes at any time."""
    with recovered(tmp_path) as fleet:
        fleet.open(1)
        write, told = snapshots.write, []

        def handler(*_: object) -> None:
            for call in (fleet.shut, fleet.compact):
                try:
                    call()
                except ReentryError as error:
                    told.append(error)

        def interrupted(path: Path, state: Any) -> None:
            signal.raise_signal(signal.SIGUSR1)
            fleet.open(1)       # as a handler may, and which would compact
            write(path, state)

        monkeypatch.setattr(snapshots, "write", interrupted)
        former = signal.signal(signal.SIGUSR1, handler)
        try:
            fleet.compact()
        finally:
            signal.signal(signal.SIGUSR1, former)
        assert len(told) == 2 and not fleet.is_shut
        wanted = facts(fleet)
    with recovered(tmp_path) as again:
        assert facts(again) == wanted


def test_no_call_waits_for_a_compaction_that_waits_for_it(tmp_path):
    """Another thread compacts, and needs the turn of the call that a handler interrupts."""
    with recovered(tmp_path) as fleet:
        fleet.open(1)
        begun = threading.Event()

        def compacting() -> None:
            fleet._compacting.run(lambda: (begun.set(), fleet._compact()))

        def meddle() -> None:
            other.start()
            assert begun.wait(30)
            for call in (fleet.shut, fleet.compact):
                with pytest.raises(ReentryError):
                    call()

        other = threading.Thread(target=compacting)
        fleet._lock.run(meddle)
        other.join(30)
        assert not other.is_alive() and len(Directory(tmp_path).snapshots()) == 2


def test_a_log_handler_may_shut_the_fleet(tmp_path, monkeypatch, caplog):
    fleet = recovered(tmp_path, compact_bytes=1)

    def fail(path: Path, state: Any) -> None:
        raise OSError(28, "no room")

    class Shutting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            fleet.shut()

    monkeypatch.setattr(snapshots, "write", fail)
    handler = Shutting()
    logging.getLogger("cellium_fast").addHandler(handler)
    try:
        fleet.open(1)
    finally:
        logging.getLogger("cellium_fast").removeHandler(handler)
    assert fleet.is_shut and "could not be compacted" in caplog.text


def test_a_fork_while_another_thread_compacts(tmp_path, monkeypatch):
    with recovered(tmp_path) as fleet:
        fleet.open(1)
        write, writing = snapshots.write, threading.Event()

        def slow(path: Path, state: Any) -> None:
            writing.set()
            threading.Event().wait(0.05)
            write(path, state)

        monkeypatch.setattr(snapshots, "write", slow)
        for _ in range(3):
            writing.clear()
            fleet.open(1)
            other = threading.Thread(target=fleet.compact)
            other.start()
            assert writing.wait(30)
            child = os.fork()
            if not child:
                fleet.shut()
                os._exit(len(fleet))
            other.join()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(fleet)


# --- interrupts ----------------------------------------------------------------------------------
@pytest.mark.parametrize("when", ["created", "rotated"])
def test_an_interrupt_within_a_rotation_loses_nothing(tmp_path, monkeypatch, when):
    fleet = recovered(tmp_path)
    session = fleet.session()
    session.step(ROUND)
    create = _journal.create

    def interrupted_create(path: Path, number: int) -> None:
        create(path, number)
        raise KeyboardInterrupt

    def rotate_interrupted(path: Path, number: int) -> None:
        path.unlink(missing_ok=True)
        create(path, number)
        fleet._journal.rotate(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(
            _journal, "create", interrupted_create if when == "created" else rotate_interrupted
        )
        fleet.compact()
    session.step(ROUND)
    wanted = facts(fleet)
    fleet.shut()
    assert len(Directory(tmp_path).journals()) == (1 if when == "created" else 2)
    with recovered(tmp_path) as again:
        assert facts(again) == wanted


def test_a_torn_end_before_a_journal_begun_in_vain_is_a_torn_end(tmp_path):
    fleet = recovered(tmp_path)
    session = fleet.session()
    session.step(ROUND)
    _journal.create(Directory(tmp_path).journal(2), 2)      # and then the process was interrupted
    session.step(ROUND)
    wanted = facts(fleet)
    session.step(ROUND)
    fleet.shut()
    journal = Directory(tmp_path).journal(0)
    journal.write_bytes(journal.read_bytes()[:-1])
    with recovered(tmp_path) as again:
        found = facts(again)
        del found["histories"], wanted["histories"]     # after a loss, new sources begin
        assert found == wanted and again.recovered.bytes_cut
    assert Directory(tmp_path).journals() == [0]


def test_what_is_in_use_no_more_is_a_clear_error(tmp_path):
    for number, harm in enumerate((
        lambda path: path.rename(path.with_name("elsewhere")),
        lambda path: (path / "lock").unlink(),
        lambda path: Directory(path).journal(0).unlink(),
    )):
        directory = tmp_path / str(number)
        fleet = recovered(directory)
        fleet.open(1)
        harm(directory)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(JournalError, match="removed, renamed or replaced"):
            fleet.compact()
        assert sorted(tmp_path.rglob("*")) == before
        fleet.shut()


# --- out= ----------------------------------------------------------------------------------------
def test_a_call_that_the_journal_refuses_leaves_out_as_it_was(tmp_path):
    fleet = Fleet.open_durable(tmp_path, fsync="never", policies={"a": "default", "b": "cellium"})
    one, other = fleet.open(1, policy="a"), fleet.open(1, policy="b")
    out = fleet.step(one, [Round()])
    before = out[0].setting.policy, out.action.copy()
    fleet.shut()
    with pytest.raises(JournalError):
        fleet.step(other, [Round()], out=out)
    assert (out[0].setting.policy, out.action) == before
