"""A durable fleet that is killed, at any moment and at precise ones, loses no call that returned.

Nor does it when the machine dies, the disk is full or the system refuses; and what is damaged is
told. `crash_runs.py` has the processes that are killed, and the models of what must be left.
Processes that are killed as they save a snapshot by itself: `test_whole_file.py`.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_runs import (
    DIE,
    DIE_HALFWAY,
    REFUSE_ALL,
    REFUSE_ONE,
    THREADS,
    Children,
    Models,
    Order,
    Player,
    columns_of,
    compiled,
    disk_after_power_loss,
)
from durable_runs import begin, copied, count_calls_alone, facts, recovered
from fuzzing import every_flip, every_truncation, some_of
from test_cli_recover import checked

from cellium_fast import JournalError, Round, RoundBatch, SnapshotError, ToolCall

ROUND = Round([ToolCall("search", {"q": "x"}, "found")], "text", 7)

pytestmark = pytest.mark.skipif(not hasattr(os, "waitid"), reason="no fork, or no waitid")


@pytest.fixture(autouse=True)
def _entries_are_calls(monkeypatch):
    count_calls_alone(monkeypatch)


def bounded(names: str, short: Any, long: Any) -> Any:
    """The same test in a short form and a long one."""
    several = "," in names
    return pytest.mark.parametrize(names, [
        pytest.param(*(short if several else [short]), id="short"),
        pytest.param(*(long if several else [long]), id="long", marks=pytest.mark.long),
    ])  # fmt: skip


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Starts processes to be killed."""
    started = Children(tmp_path)
    yield started
    started.end()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Children]:
    """Likewise; those can be killed, and refused, at each operation of the file system."""
    library = compiled(Path(__file__).with_name("crash_points.c"), tmp_path)
    if library is None:
        pytest.skip("needs Linux and a C compiler")
    started = Children(tmp_path, library)
    yield started
    started.end()


# --- at random moments ---------------------------------------------------------------------------
def kill_somewhen(children: Children, order: Order, rng: random.Random) -> tuple[list[int], bool]:
    """What a child said before it was killed; whether it was, before it ended by itself.

    It is killed while it opens the directory and recovers, or after some calls.
    """
    pid = children.start(order)
    said = []
    if rng.random() < 0.6:
        for _ in range(rng.randint(1, 40)):
            word = children.word()
            if word == ".":     # the script has an end
                return said, children.killed()
            said.append(int(word))
    time.sleep(rng.random() * rng.choice([0.002, 0.02, 0.1]))
    os.kill(pid, signal.SIGKILL)
    more, killed = children.rest()
    return said + more, killed


def check_chain(children: Children, folder: Path, rng: random.Random) -> dict[str, int]:
    """One directory, and one process after the other that is killed in it."""
    seed, most = rng.randrange(10**6), rng.choice([None, 12])
    order = Order(str(folder / "fleet"), seed, most, settings={
        "fsync": rng.choice(["step", "interval", "never"]), "fsync_interval": 0.01,
        "compact_bytes": rng.choice([500, 1_500, 6_000, None]),
    })  # fmt: skip
    shutil.rmtree(order.directory, ignore_errors=True)
    models, returned = Models(seed, most), -1
    seen = dict.fromkeys(("kills", "while opening", "unreported", "torn", "temporary"), 0)
    for crash in range(rng.randint(3, 5)):
        told = f"seed {seed}, {order.settings}, at most {most}, crash {crash}"
        said, killed = kill_somewhen(children, order, rng)
        assert said == list(range(said[0], said[0] + len(said))) if said else True
        if said:
            assert said[0] in (max(returned, 0), returned + 1), told
        seen["kills"] += killed
        seen["while opening"] += not said
        returned = max([returned, *said])
        if not Path(order.directory).is_dir():
            continue        # it had not begun
        seen["temporary"] += any(".tmp-" in name for name in os.listdir(order.directory))
        with recovered(copied(Path(order.directory), folder / "copy")) as fleet:
            seen["torn"] += fleet.recovered.bytes_cut > 0
            number = models.check(fleet, told) if fleet.recovered.snapshot else 0
            assert number in (max(returned, 0), returned + 1), told
            seen["unreported"] += number > returned
            if fleet.recovered.snapshot:
                models.check_going_on(fleet, told)
    return seen


@bounded("chains", 5, 120)
def test_killed_at_random_moments(chains, tmp_path, children, rng):
    seen: dict[str, int] = {}
    for _ in range(chains):
        for name, count in check_chain(children, tmp_path, rng).items():
            seen[name] = seen.get(name, 0) + count
    print(seen)
    assert seen["kills"] > 2 * chains and seen["while opening"]


@bounded("kills", 6, 150)
def test_killed_in_the_middle_of_large_entries(kills, tmp_path, children, rng):
    seed = rng.randrange(10**6)
    order = Order(str(tmp_path / "fleet"), seed, large=True, settings={"compact_bytes": 10**6})
    player, returned, torn = Player(seed, large=True), -1, 0
    for kill in range(kills):
        pid = children.start(order)
        said = [int(children.word()) for _ in range(rng.randint(1, 8))]
        time.sleep(rng.random() * 0.01)
        os.kill(pid, signal.SIGKILL)
        more, _ = children.rest()
        returned = max([returned, *said, *more])
        with recovered(copied(tmp_path / "fleet", tmp_path / "copy")) as fleet:
            number = int(fleet._journal.number)
            torn += fleet.recovered.bytes_cut > 0
            assert number in (returned, returned + 1), f"seed {seed}, kill {kill}"
            if returned >= player.number:
                player.to(number)
            assert facts(fleet, sources=False) == facts(player.fleet, sources=False), (seed, kill)
        if number > 90:     # the script has an end
            shutil.rmtree(order.directory)
            player, returned = Player(seed, large=True), -1
    print(f"{torn} torn entries")


@bounded("kills", 6, 150)
def test_killed_while_two_threads_step(kills, tmp_path, children, rng):
    directory = tmp_path / "fleet"
    settings = {"fsync": "never", "compact_bytes": 300_000}
    with begin(directory, 1, **settings) as fleet:
        fleet.open(2_000)
    model = begin(tmp_path / "model", 1)
    ids = model.open(2_000)
    done = [0] * THREADS
    for kill in range(kills):
        pid = children.start(Order(str(directory), 1, settings=settings, do="play_in_threads"))
        first = int(children.word())
        assert first >= sum(done) + 1
        time.sleep(rng.random() * 0.08)
        os.kill(pid, signal.SIGKILL)
        said, _ = children.rest()
        with recovered(copied(directory, tmp_path / "copy")) as fleet:
            rounds = fleet._memory.sessions["round"]
            for own in range(THREADS):
                returned = max([done[own], *(one // 10 for one in said if one % 10 == own)])
                (number,) = set(rounds[own:2_000:THREADS].tolist())
                assert number in (returned, returned + 1), f"kill {kill}, thread {own}"
                for one in range(done[own] + 1, number + 1):
                    model.step(ids[own::THREADS], columns_of(one, 2_000 // THREADS))
                done[own] = number
            assert fleet._journal.number == 1 + sum(done), f"kill {kill}"
            assert facts(fleet, sources=False) == facts(model, sources=False), f"kill {kill}"


# --- at precise moments --------------------------------------------------------------------------
def unfinished(children: Children, folder: Path, seed: int, **settings: Any) -> Order:
    """A directory in which a process died halfway through an entry, and what goes on there.

    There is a snapshot that was being written, too. What goes on writes others and rotates.
    """
    order = Order(str(folder / "base"), seed, settings={"compact_bytes": 900, **settings}, until=9)
    children.run(order)
    base = Path(order.directory)
    journal = max(base.glob("journal-*"))
    journal.write_bytes(journal.read_bytes() + b"ENTR" * 5)
    (base / "snapshot-000000000099.safetensors.tmp-1-1").write_bytes(b"half")
    return replace(order, until=17)


@pytest.mark.parametrize("base", ["new", "unfinished"])
@bounded("deaths, more", ([("never", DIE_HALFWAY)], 3), ([
    (fsync, what) for fsync in ("step", "interval", "never") for what in (DIE, DIE_HALFWAY)
], 8))  # fmt: skip
def test_killed_at_every_operation(deaths, more, base, tmp_path, watched):
    """Before each operation that changes the file system; or halfway, where it writes."""
    for mode, what in deaths:
        order = unfinished(watched, tmp_path, 3, fsync=mode)
        before, models, target = Path(order.directory), Models(3), tmp_path / "fleet"
        until = more + (0 if base == "new" else 9)
        order = replace(order, directory=str(target), what=what, until=until)
        killed, place = True, 0
        while killed:
            shutil.rmtree(target, ignore_errors=True)
            if base != "new":
                copied(before, target)
            said, killed = watched.run(replace(order, place=place))
            told = f"fsync {mode}, operation {place}, {base}"
            returned = max(said, default=-1)
            if not target.is_dir():
                assert not said, told
            else:
                with recovered(target, seed=3) as fleet:
                    number = int(fleet._journal.number)
                    first = 0 if base == "new" else 9
                    assert number in (max(returned, first), max(returned + 1, first)), told
                    if fleet.recovered.snapshot:
                        models.check_going_on(fleet, told, 2)
                    else:
                        assert number == 0 and not said, told
                    assert not fleet._files.temporary(), told
            place += 1
        assert place > 15, f"{place} operations"
        assert returned == until


# --- the machine dies ----------------------------------------------------------------------------
@pytest.mark.parametrize("base", ["new", "unfinished"])
@bounded("every", 9, 1)
def test_power_lost_at_an_operation(every, base, tmp_path, watched, rng):
    """What was not brought to the disk is gone, or a part of it, or zeros are in its place."""
    log, target, models = tmp_path / "log", tmp_path / "fleet", Models(3)
    killed, place, first, checked = True, rng.randrange(every), 0, 0
    before = unfinished(watched, tmp_path, 3) if base != "new" else None
    while killed:
        for path in (target, Path(f"{log}.kept")):
            shutil.rmtree(path, ignore_errors=True)
        log.unlink(missing_ok=True)
        Path(f"{log}.kept").mkdir()
        fsync = rng.choice(["step", "step", "interval", "never"])
        order = Order(
            str(target), 3, settings={"fsync": fsync, "compact_bytes": 900}, until=17,
            log=str(log), what=DIE, place=place,
        )
        if before:      # all of it is on the disk, but for the newest journal
            copied(Path(before.directory), target)
            newest = max(target.glob("journal-*"))
            lines = [
                f"file {path.stat().st_ino} {40 if path == newest else path.stat().st_size}\n"
                for path in target.iterdir()
            ]
            lines.append(f"directory {target.stat().st_ino}\n")
            lines += [f"name {path.stat().st_ino} {path.name}\n" for path in target.iterdir()]
            log.write_text("".join(lines))
            first = int(newest.name[8:20])
        said, killed = watched.run(order)
        for names in ("now", "synced"):
            for tail in ("none", "some", "zeros"):
                told = f"operation {place}, {base}, fsync {fsync}, names {names}, tail {tail}"
                if not target.is_dir():
                    assert not said, told
                    continue
                left = disk_after_power_loss(
                    target, log, tmp_path / "left", rng, names=names, tail=tail
                )
                with recovered(left, seed=3) as fleet:
                    number = models.check(fleet, told) if fleet.recovered.snapshot else 0
                    least = max(first, *said, 0) if fsync == "step" else first
                    assert least <= number <= max(max(said, default=0) + 1, 9), told
                checked += 1
        place += every
    assert checked > 150 // every


def test_what_is_recovered_is_on_the_disk_once_it_is_open(tmp_path, watched, rng):
    """Also what a killed process had left to the system."""
    target, log = tmp_path / "fleet", tmp_path / "log"
    Path(f"{log}.kept").mkdir()
    order = Order(
        str(target), 3, settings={"fsync": "never", "compact_bytes": None}, until=9, log=str(log)
    )
    watched.run(order)
    for fsync in ("never", "step", "interval"):
        said, _ = watched.run(replace(order, settings={"fsync": fsync}))
        left = disk_after_power_loss(
            target, log, tmp_path / "left", rng, names="synced", tail="none"
        )
        assert said[0] == 9
        with recovered(left, seed=3) as fleet:
            assert fleet._journal.number == (0 if fsync == "never" else 9)


# --- the system refuses --------------------------------------------------------------------------
@pytest.mark.parametrize("base", ["new", "unfinished"])
@bounded("errors, more, every", ([(REFUSE_ALL, errno.ENOSPC)], 2, 4), ([
    (what, error) for what in (REFUSE_ONE, REFUSE_ALL)
    for error in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
], 8, 1))  # fmt: skip
def test_refused_at_every_operation(errors, more, every, base, tmp_path, watched, rng):
    """A full disk, one that is broken, one that became read-only, for one operation or more."""
    before = unfinished(watched, tmp_path, 3)
    before = replace(before, until=more + (0 if base == "new" else 9))
    models, target = Models(3), tmp_path / "fleet"
    for what, error in errors:
        place, raised, reached = rng.randrange(every), 0, True
        while reached:
            shutil.rmtree(target, ignore_errors=True)
            if base != "new":
                copied(Path(before.directory), target)
            (number, count, operations), _ = watched.run(replace(
                before, directory=str(target), what=what, place=place, error=error, do="refused",
            ))  # fmt: skip
            reached = place < -operations
            raised += count
            told = f"operation {place}, {base}, {what}, {os.strerror(error)}"
            assert number == before.until, told
            with recovered(target) as fleet:
                assert models.check(fleet, told) == number
            place += every
        assert place > 16 and raised > 12 // every, f"{raised} of {place} operations raised"


def test_a_full_disk_at_every_byte_of_an_entry(tmp_path, children):
    order = Order(str(tmp_path / "fleet"), 3, settings={"compact_bytes": None}, do="at_every_limit")
    (calls, limits), _ = children.run(replace(order, until=12))
    assert calls == 12 and limits > 1_000
    with recovered(tmp_path / "fleet") as fleet:
        assert Models(3).check(fleet, "after all limits") == 12
        assert fleet.recovered.bytes_cut == 0


# --- damage --------------------------------------------------------------------------------------
@pytest.fixture
def two_generations(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A small directory of two snapshots and two journals; and the state after each entry."""
    directory = tmp_path / "whole"
    with recovered(directory, seed=3) as fleet:
        states = [facts(fleet)]
        session, ids = fleet.session("ticket", tools=["search"]), None
        states.append(facts(fleet))
        for _ in range(3):
            ids = fleet.open(2)
            states.append(facts(fleet))
            session.step(ROUND)
            states.append(facts(fleet))
            fleet.step(ids, RoundBatch(context_tokens=np.array([5, 7])))
            states.append(facts(fleet))
            if len(states) < 9:
                fleet.compact()
    assert len(list(directory.glob("*-*"))) == 4 and len(states) == 11
    return directory, states


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def check_damaged(
    directory: Path, states: list[dict[str, Any]], told: str, *, inspect: bool
) -> str:
    """What opening makes of a damaged directory: a right state, or an error that says so."""
    before, last = contents(directory), len(states) - 1
    status, said = checked(directory) if inspect else (-1, {})
    assert contents(directory) == before, f"{told}: looking at it changed something"
    try:
        fleet = recovered(directory)
    except (JournalError, SnapshotError) as error:
        assert str(directory) in str(error), told
        assert not inspect or (status == 1 and not said["can_open"]), f"{told}: {said}"
        assert contents(directory) == before, f"{told}: something was changed"
        return "refused"
    with fleet:
        number = fleet._journal.number
        assert facts(fleet) == states[number], f"{told}: not the state after {number} entries"
        if inspect:
            assert said["can_open"] and said["state"]["entries"] == number, f"{told}: {said}"
        if number < last:
            # Nobody can know of entries that were cut off where one ends.
            assert fleet.recovered.bytes_cut or "cut off" in told, f"{told}: nothing was said"
            assert number == last - 1 or "cut off" in told, told
            return "shorter"
        if fleet.recovered.skipped:
            assert status in (1, -1), told
            return "older snapshot"
    return "as before"


@bounded("most", 6, None)
def test_damage_at_every_byte_is_told(most, two_generations, tmp_path, rng):
    directory, states = two_generations
    seen: Counter[str] = Counter()
    for path in sorted(directory.glob("*-*")):
        data = path.read_bytes()
        places = some_of(rng, len(data), len(data) if most is None else most)
        for damage in (
            *every_truncation(data, places),
            *(one for at in places for one in every_flip(data, [1 << rng.randrange(8)], [at])),
        ):
            told = f"{path.name}, {damage.what}"
            damaged = copied(directory, tmp_path / "damaged")
            (damaged / path.name).write_bytes(damage.data)
            inspect = rng.random() < (0.5 if most else 0.05)
            seen[check_damaged(damaged, states, told, inspect=inspect)] += 1
            seen["bytes flipped" if "xor" in told else "truncations"] += 1
    print(dict(seen))
    assert min(seen[kind] for kind in ("refused", "shorter", "older snapshot", "as before")) > 1
