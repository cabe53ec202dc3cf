"""What a durable fleet learned is told apart from what it learned in a future that it lost."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from learners import FAST, learner, teach

from cellium_fast import Fleet, LearnedPosterior, shutdown
from cellium_fast.durable import DurableFleet
from cellium_fast.recovery import Recovery


def opened(directory: Path) -> DurableFleet:
    plain = learner(FAST)
    return Fleet.open_durable(
        directory, fsync="never", policies=plain.policies, pools=plain.pools
    )


def sources_of(fleet: Fleet) -> set[str]:
    return {history.source for history in fleet._learned_from.values()}


def cut_back(directory: Path) -> None:
    """As a crash of the machine leaves it: the newest entries are not there."""
    (journal,) = directory.glob("journal-*.log")
    journal.write_bytes(journal.read_bytes()[:-700])


def damaged_and_repaired(directory: Path) -> None:
    (journal,) = directory.glob("journal-*.log")
    data = bytearray(journal.read_bytes())
    data[-700] ^= 1
    journal.write_bytes(data)
    recovery = Recovery(shutdown.Directory(directory))
    recovery.run(Fleet._from_state)
    recovery.repair()


@pytest.mark.parametrize("lose", [cut_back, damaged_and_repaired])
@pytest.mark.parametrize("shut", [True, False])
def test_evidence_of_both_futures_counts(tmp_path: Path, lose: Any, shut: bool) -> None:
    directory, path = tmp_path / "fleet", tmp_path / "learned.json"
    fleet = opened(directory)
    for _ in range(9):
        teach(fleet, 1.0)
    fleet.export_posterior().merge_into(path)
    if shut:
        fleet.shut()
    else:
        copy = shutil.copytree(directory, tmp_path / "killed")
        fleet.shut()
        shutil.rmtree(directory)
        copy.rename(directory)
    lose(directory)
    with opened(directory) as fleet:
        left = fleet.export_posterior().closed
        assert 0 < left < 9
        for _ in range(12):     # more of all counts than it had merged
            teach(fleet, 0.0)
        merged = fleet.export_posterior().merge_into(path)
    assert merged.closed == 9 + 12
    assert merged.actions["continue"].updates == 9 + 12


def test_a_copied_directory_is_sources_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as fleet:
        teach(fleet, 1.0)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    exports = []
    for name, count in (("one", 2), ("two", 5)):
        with opened(tmp_path / name) as fleet:
            for _ in range(count):
                teach(fleet, 0.5)
            exports.append(fleet.export_posterior())
    assert exports[0].merge(exports[1]).closed == 1 + 2 + 5


def test_a_directory_put_back_from_a_copy_is_sources_of_its_own(tmp_path: Path) -> None:
    directory, copy = tmp_path / "fleet", tmp_path / "copy"
    with opened(directory) as fleet:
        teach(fleet, 1.0)
    shutil.copytree(directory, copy)
    with opened(directory) as fleet:
        before = teach(fleet, 1.0).export_posterior()
    for file in copy.iterdir():     # into the same files
        shutil.copy2(file, directory / file.name)
    with opened(directory) as fleet:
        after = teach(fleet, 0.0, 0.0).export_posterior()
    assert before.merge(after).closed == 3


def test_what_was_shut_goes_on_as_the_same_sources(tmp_path: Path) -> None:
    with opened(tmp_path / "fleet") as fleet:
        teach(fleet, 1.0)
        known, number = sources_of(fleet), fleet._journal.number
    for compact in (False, True):
        with opened(tmp_path / "fleet") as fleet:
            assert (sources_of(fleet), fleet._journal.number) == (known, number)
            if compact:
                fleet.compact()
    (tmp_path / "fleet").rename(tmp_path / "moved")
    with opened(tmp_path / "moved") as fleet:
        assert sources_of(fleet) == known


def test_sources_begun_after_a_kill_are_recovered(tmp_path: Path) -> None:
    fleet, known = opened(tmp_path / "0"), set[str]()
    for place in range(4):      # a copy of an open directory is what a kill leaves
        teach(fleet, 1.0)
        learned = fleet.export_posterior().merge_into(tmp_path / "learned.json")
        assert learned.closed == place + 1 == fleet.export_posterior().closed
        assert not known & sources_of(fleet)
        known |= sources_of(fleet)
        shutil.copytree(tmp_path / str(place), tmp_path / str(place + 1))
        fleet.shut()
        fleet = opened(tmp_path / str(place + 1))
    fleet.shut()
    assert isinstance(learned, LearnedPosterior) and len(learned.sources) == 4


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"9" * 5000, b"[" * 100_000])
def test_a_note_that_says_nothing(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path) as fleet:
        known = sources_of(fleet)
    (tmp_path / "shut").write_bytes(content)
    with opened(tmp_path) as fleet:
        assert not known & sources_of(fleet)


def test_without_room_for_the_note_it_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = opened(tmp_path)
    (tmp_path / "shut").mkdir()
    with caplog.at_level(logging.WARNING, "cellium_fast"):
        fleet.shut()
    assert "begin new sources" in caplog.text
    (tmp_path / "shut").rmdir()
    opened(tmp_path).shut()
    assert json.loads((tmp_path / "shut").read_bytes())["bytes"] > 0
