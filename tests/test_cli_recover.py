"""`cellium-fast recover`: what it finds, what it says, and what it mends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_runs import ESCAPE, call, start
from durable_runs import copied, facts, recovered

from cellium_fast import JournalError, Round, ToolCall, _journal, _journal_reader
from cellium_fast.directory import Directory

ROUND = Round([ToolCall("search", {"q": "x"}, "found")], "text", 7)


@pytest.fixture(autouse=True)
def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two generations: four entries, three, two."""
    path = tmp_path / "fleet"
    with recovered(path) as fleet:
        session, ids = fleet.session("a"), fleet.open(3)
        for _ in range(2):
            session.step(ROUND)
        fleet.compact()
        fleet.close(ids[:1])
        for _ in range(2):
            session.step(ROUND)
        fleet.compact()
        fleet.open(1)
        session.step(ROUND)
    return path


def listing(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in sorted(os.listdir(path))}


def checked(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = call("recover", path, "--json", *options)
    assert result.stderr == ""
    return result.exit_code, json.loads(result.stdout)


def said(path: Path, *options: str) -> tuple[int, str]:
    result = call("recover", path, *options)
    assert result.stderr == "" and ESCAPE not in result.stdout
    return result.exit_code, result.stdout


def damage(path: Path, entry: int) -> int:
    """Alter one entry of a journal; returns where it begins."""
    entries = _journal_reader.Entries(path)
    for _ in range(entry):
        next(entries)
    data = bytearray(path.read_bytes())
    data[entries.end + 40] ^= 1
    path.write_bytes(data)
    return entries.end


STATE = {
    "entries": 9, "replayed": 2, "sessions_open": 4, "sessions_closed": 1,
    "rounds_of_open_sessions": 5, "policies": ["default"], "pools": ["default"],
}


def test_all_is_whole(directory):
    before = listing(directory)
    code, found = checked(directory)
    assert code == 0 and listing(directory) == before
    assert found["directory"] == str(directory)
    assert (found["whole"], found["can_open"], found["repaired"]) == (True, True, False)
    assert found["state"] == STATE
    assert found["put_aside"] == found["left_over"] == []
    files = Directory(directory)
    assert [one["path"] for one in found["snapshots"]] == [
        str(files.snapshot(number)) for number in (4, 7)
    ]
    assert [one["used"] for one in found["snapshots"]] == [False, True]
    assert found["journals"] == [
        {"path": str(files.journal(number)), "bytes": files.journal(number).stat().st_size,
         "used": used, "problem": None, "entries": entries, "offset": None, "torn": False}
        for number, used, entries in ((4, False, 3), (7, True, 2))
    ]
    code, out = said(directory)
    assert code == 0 and out.splitlines()[-1] == "All is whole."
    assert "State: 9 entries, 2 of them since the snapshot." in out
    assert "Sessions: 4 open, with 5 rounds; 1 closed." in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(line.startswith("journal-000000000004.log") and line.endswith("3 good, not needed")
               for line in lines)
    assert listing(directory) == before


def test_repair_of_what_is_whole_changes_nothing(directory):
    before = listing(directory)
    code, found = checked(directory, "--repair")
    assert code == 0 and not found["repaired"] and listing(directory) == before


def test_a_torn_end_loses_nothing_and_is_put_aside(directory):
    journal = Directory(directory).journal(7)
    entries = _journal_reader.Entries(journal)
    next(entries)
    journal.write_bytes(journal.read_bytes()[:-3])
    before = listing(directory)
    code, found = checked(directory)
    assert code == 1 and listing(directory) == before
    assert (found["whole"], found["can_open"]) == (False, True)
    last = found["journals"][-1]
    assert (last["torn"], last["offset"], last["entries"]) == (True, entries.end, 1)
    code, out = said(directory)
    assert code == 1 and f"torn from byte {entries.end} on: it ends within an entry" in out
    assert "Nothing of the state is lost." in out
    code, out = said(directory, "--repair")
    assert code == 1 and "Repaired. What was put aside:\n    journal-000000000007.log.torn-1" in out
    assert (directory / "journal-000000000007.log.torn-1").read_bytes() == (
        before[journal.name][entries.end :]
    )
    assert checked(directory)[0] == 0
    with recovered(directory) as fleet:
        assert len(fleet) == 4 and fleet.recovered.entries == 1


@pytest.mark.parametrize("entry", [0, 1])
def test_damage_is_named_and_repair_goes_on_before_it(directory, tmp_path, entry):
    """In the journal that is needed, with the newest snapshot bad too."""
    files = Directory(directory)
    files.snapshot(7).write_bytes(b"")
    offset = damage(files.journal(4), entry)
    before = listing(directory)
    code, found = checked(directory)
    assert code == 1 and listing(directory) == before
    assert not found["can_open"] and found["state"]["entries"] == 4 + entry
    bad, rest = found["journals"]
    assert (bad["offset"], bad["entries"], bad["torn"]) == (offset, entry, False)
    assert "comes after the damage" in rest["problem"]
    with pytest.raises(JournalError):
        recovered(directory)
    code, out = said(directory)
    assert f"damaged from byte {offset} on: an entry was altered" in out
    assert "The fleet cannot be opened as it is" in out
    assert f"State just before the damage: {4 + entry} entries" in out
    code, found = checked(directory, "--repair")
    assert code == 1 and found["repaired"] and found["can_open"]
    assert [Path(path).name for path in found["put_aside"]] == [
        "journal-000000000004.log.damaged-1", "journal-000000000007.log.unreachable-1",
        "snapshot-000000000007.safetensors.bad-1",
    ]
    aside = directory / "journal-000000000004.log.damaged-1"
    assert aside.read_bytes() == before[files.journal(4).name][offset:]
    assert checked(directory)[0] == 0
    with recovered(directory) as fleet:
        assert fleet.recovered.entries == entry
        fleet.open(1)
        wanted = facts(fleet)
        fleet.compact()
    with recovered(directory) as fleet:
        assert facts(fleet) == wanted


def test_damage_that_is_not_needed_is_named_and_left(directory):
    offset = damage(Directory(directory).journal(4), 1)
    code, found = checked(directory)
    assert code == 1 and found["can_open"] and found["state"] == STATE
    assert found["journals"][0]["offset"] == offset
    with recovered(directory) as fleet:
        assert len(fleet) == 4
    code, out = said(directory, "--repair")
    assert code == 1 and "put aside:\n    journal-000000000004.log.bad-1\n" in out
    assert checked(directory)[0] == 0


def test_a_bad_snapshot_that_is_not_needed_is_put_aside(directory):
    path = Directory(directory).snapshot(4)
    path.write_bytes(path.read_bytes()[:-1])
    before = path.read_bytes()
    assert checked(directory)[0] == 1
    code, found = checked(directory, "--repair")
    assert code == 1 and found["put_aside"] == [f"{path}.bad-1"]
    assert Path(f"{path}.bad-1").read_bytes() == before
    code, found = checked(directory)
    assert code == 0 and found["state"] == STATE


@pytest.mark.parametrize("size", [0, 9, 32])
def test_a_journal_begun_in_vain_is_left_over(directory, size):
    """As an interrupt leaves one, in the middle of a compaction, if the fleet then goes on."""
    path = Directory(directory).journal(8)
    _journal.create(path, 8)
    path.write_bytes(path.read_bytes()[:size])
    code, found = checked(directory)
    assert code == 1 and found["can_open"] and found["state"] == STATE
    assert "a compaction began it" in found["journals"][-1]["problem"]
    code, out = said(directory, "--repair")
    assert code == 1 and out.endswith("Repaired. Nothing had to be put aside.\n")
    assert not path.exists() and checked(directory)[0] == 0


def test_a_bad_snapshot_loses_nothing(directory):
    path = Directory(directory).snapshot(7)
    path.write_bytes(path.read_bytes()[:-1])
    code, found = checked(directory)
    assert code == 1 and found["can_open"]
    assert found["state"] == STATE | {"replayed": 5}
    assert "ends too early" in found["snapshots"][1]["problem"]
    code, found = checked(directory, "--repair")
    assert code == 1 and [Path(path).name for path in found["put_aside"]] == [f"{path.name}.bad-1"]
    assert checked(directory)[0] == 0


def test_a_missing_journal_is_named_and_begun_anew(directory):
    Directory(directory).journal(7).unlink()
    code, out = said(directory)
    assert code == 1 and "there is no such file" in out
    assert "State just before the damage: 7 entries" in out
    code, out = said(directory, "--repair")
    assert code == 1 and out.endswith("Repaired. Nothing had to be put aside.\n")
    with recovered(directory) as fleet:
        assert len(fleet) == 3


def test_without_a_good_snapshot_there_is_no_state_and_nothing_is_changed(directory):
    for number in (4, 7):
        Directory(directory).snapshot(number).write_bytes(b"x")
    before = listing(directory)
    code, out = said(directory)
    assert code == 1 and "There is no good snapshot, so no state." in out
    result = call("recover", directory, "--repair")
    assert result.exit_code == 1 and "no snapshot is good" in result.stderr
    assert listing(directory) == before


def test_what_was_left_over_is_named_and_removed(directory):
    left = directory / "snapshot-000000000009.safetensors.tmp-77-77"
    left.write_bytes(b"half")
    code, found = checked(directory)
    assert (code, found["left_over"]) == (1, [str(left)])
    assert "left over" in said(directory)[1]
    assert said(directory, "--repair")[0] == 1 and not left.exists()
    assert checked(directory)[0] == 0


def test_in_use(directory):
    with recovered(directory):
        for options in ((), ("--repair",)):
            process = start("recover", directory, *options)
            out, err = process.communicate()
            assert (process.returncode, out) == (2, b"")
            assert f"process {os.getpid()} has this directory open".encode() in err


def test_no_fleet(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        for options in ((), ("--repair",)):
            process = start("recover", path, *options)
            out, err = process.communicate()
            assert (process.returncode, out) == (2, b"") and str(path).encode() in err
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs rights that can be missing")
def test_a_directory_that_cannot_be_written_can_be_checked(directory):
    directory.chmod(0o500)
    try:
        assert checked(directory)[0] == 0
    finally:
        directory.chmod(0o700)


def test_a_copy_is_enough(directory, tmp_path):
    copy = copied(directory, tmp_path / "copy")
    (copy / "lock").unlink()
    before = listing(copy)
    assert checked(copy)[0] == 0 and listing(copy) == before
