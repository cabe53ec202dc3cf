"""Durable fleets that are killed: the process that is, and the model that knows what must be left.

As a program, this starts a child for each order that comes in, a line of JSON; it need not import
anew. A child opens a durable fleet and plays a script on it. It says how many calls of the script
the fleet has, after opening it and after each call that returned.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable_runs import begin, calls, count_calls_alone, facts
from lively_fleets import Run, Script, new_fleet

from cellium_fast import Fleet, JournalError, Round, RoundBatch, Session, SnapshotError
from cellium_fast.durable import DurableFleet

COUNT, DIE, DIE_HALFWAY, REFUSE_ONE, REFUSE_ALL = range(5)      # as in crash_points.c
LARGE = 4_000       # sessions: an entry of some 200 kB, in many writes
THREADS = 2


# --- scripts -------------------------------------------------------------------------------------
@cache
def steps_of(seed: int, most: int | None) -> list[Any]:
    """The steps of a script, which nobody changes."""
    return Script(seed, most).steps


class Player:
    """Plays a script call by call, on a fleet of its own or another that got there.

    `number` is that of the calls so far; each is one entry of a journal. `attempt` makes them.
    """

    def __init__(self, seed: int, most: int | None = None, large: bool = False) -> None:
        self.fleet: Fleet = new_fleet(seed, max_sessions=most, threads=1)
        self.attempt: Callable[[Callable[[], Any]], Any] = lambda call: call()
        self.decided: list[bytes] = []      # of the newest step of many sessions
        self.number = 0
        self._calls = (
            large_calls(self, seed) if large else calls(Run(self), steps_of(seed, most))
        )

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(self.fleet, name)):
            return getattr(self.fleet, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = self.attempt(lambda: getattr(self.fleet, name)(*arguments, **options))
            return Handle(self, result.id) if isinstance(result, Session) else result
        return call

    def step(self, *arguments: Any) -> None:
        columns = self.attempt(lambda: self.fleet.step(*arguments)).columns()
        self.decided = [
            column[name].tobytes()
            for column in columns.values() for name in column.dtype.names or [...]
        ]

    def play(self, most: int = 10**9) -> Iterator[int]:
        """The number after each call."""
        while self.number < most and next(self._calls, self) is not self:
            self.number += 1
            yield self.number

    def to(self, number: int) -> Player:
        """After so many calls."""
        for _ in self.play(number):
            pass
        assert self.number == number
        return self

    def go_on_with(self, fleet: Fleet) -> Player:
        """Play on with a fleet in the same state."""
        self.fleet = fleet
        return self


@dataclass
class Handle:
    """The `Session` of this id, in the fleet that a player plays on."""

    player: Player
    id: int

    def step(self, one: Round) -> None:
        self.player.attempt(lambda: self.player.fleet.attach(self.id).step(one))


def large_calls(fleet: Any, seed: int) -> Iterator[None]:
    """Steps of very many sessions, with calls, and a few opened and closed in between."""
    rng = np.random.default_rng(seed)
    ids = fleet.open(LARGE)
    yield
    for _ in range(40):
        fleet.step(ids, RoundBatch(
            call_offsets=np.arange(len(ids) + 1),
            call_tool=rng.integers(1, 5, len(ids), np.uint64),
            call_signature=rng.integers(1, 9, len(ids), np.uint64),
            context_tokens=rng.integers(0, 90_000, len(ids)),
        ))
        yield
        fleet.close(ids[:30], rng.integers(-1, 2, 30).astype(np.int8))
        yield
        ids = np.append(ids[30:], fleet.open(30))
        yield


def columns_of(number: int, count: int) -> RoundBatch:
    """What a thread tells its sessions in its step of this number."""
    return RoundBatch(
        context_tokens=np.full(count, 1_000 * number), text=np.full(count, number, np.uint64)
    )


class Models:
    """The state after each number of calls of a script, and what comes after it."""

    def __init__(self, seed: int, most: int | None = None) -> None:
        self.seed, self.most = seed, most
        self._player = Player(seed, most)
        self._states = [facts(self._player.fleet, sources=False)]

    def __getitem__(self, number: int) -> dict[str, Any]:
        for _ in self._player.play(number):
            self._states.append(facts(self._player.fleet, sources=False))
        return self._states[number]

    def check(self, fleet: DurableFleet, told: str) -> int:
        """The number of calls in a fleet, whose state must be that after them."""
        number = int(fleet._journal.number)
        assert facts(fleet, sources=False) == self[number], f"{told}: not call {number}"
        return number

    def check_going_on(self, fleet: DurableFleet, told: str, count: int = 10) -> None:
        """The next calls must do the same as if nothing had been."""
        number = self.check(fleet, told)
        plain = Player(self.seed, self.most).to(number)
        again = Player(self.seed, self.most).to(number).go_on_with(fleet)
        for one, other in zip(
            plain.play(number + count), again.play(number + count), strict=True
        ):
            assert one == other == fleet._journal.number
            assert plain.decided == again.decided, f"{told}: {one - number} calls later"
        self.check(fleet, told)


# --- children ------------------------------------------------------------------------------------
@dataclass
class Order:
    """What a child shall do.

    Attributes
    ----------
    directory, seed, most, large, settings
        The fleet and the script.
    what, place, error
        What happens at the file system's operation of this number, counted from opening on.
    until
        Number of the last call to play.
    log
        A file for what reached the disk; beside it a directory for files without a name.
    do
        Whether to play the script, or what else, see `DOINGS`.
    """

    directory: str
    seed: int
    most: int | None = None
    large: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    what: int = COUNT
    place: int = 0
    error: int = errno.ENOSPC
    until: int = 10**9
    log: str | None = None
    do: str = "play"


def say(text: object) -> None:
    os.write(1, f"{text} ".encode())


def opened(order: Order) -> DurableFleet:
    """The fleet; which operations come from now on is as ordered."""
    hook = ctypes.CDLL(None)
    if hasattr(hook, "crash_arm"):
        if order.log:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            hook.crash_log(os.open(order.log, flags, 0o644), os.fsencode(f"{order.log}.kept"))
        hook.crash_arm(order.what, ctypes.c_long(order.place), order.error)
    return begin(Path(order.directory), order.seed, max_sessions=order.most, **order.settings)


def operations() -> int:
    """How many there were; from now on nothing happens to them."""
    return int(ctypes.CDLL(None).crash_disarm())


def play(order: Order) -> None:
    """Open, play, shut; then say how many operations that took, below 0."""
    with opened(order) as fleet:
        number = int(fleet._journal.number)
        say(number)
        player = Player(order.seed, order.most, order.large).to(number).go_on_with(fleet)
        for number in player.play(order.until):
            say(number)
    if hasattr(ctypes.CDLL(None), "crash_disarm"):
        say(-operations())


def play_in_threads(order: Order) -> None:
    """Each thread steps sessions of its own; says 10 times the number of its step, and its own."""
    with opened(order) as fleet:
        say(fleet._journal.number)

        def work(own: int) -> None:
            ids = fleet.ids[own::THREADS]
            number = int(fleet._memory.sessions["round"][own])
            while True:
                number += 1
                fleet.step(ids, columns_of(number, len(ids)))
                say(10 * number + own)

        threads = [threading.Thread(target=work, args=(own,)) for own in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Happened(Exception):
    """A call that raised, since nobody knew."""


def refused(order: Order) -> None:
    """Play although the system refuses: each call that raises must change nothing.

    Once one has, the system lets everything happen again, and the call is made again; in a fleet
    that is opened anew, if the error says so. Says the number of calls, and how many raised.
    """
    raised: list[str] = []

    def heed(error: Exception) -> None:
        assert not isinstance(error, SnapshotError) or error.reason == "unwritable", error
        raised.append(str(error))
        operations()

    def make() -> DurableFleet:
        return begin(Path(order.directory), order.seed, max_sessions=order.most, **order.settings)

    def attempt(call: Callable[[], Any]) -> Any:
        before, number = facts(player.fleet, sources=False), player.fleet._journal.number
        try:
            return call()
        except (JournalError, SnapshotError) as error:
            heed(error)
            assert facts(player.fleet, sources=False) == before, f"{error}: something changed"
            if "anew" in str(error):
                player.fleet.shut()
                player.fleet = make()
                if "may have happened" in str(error) and player.fleet._journal.number > number:
                    raise Happened from None
                assert facts(player.fleet, sources=False) == before, f"{error}: not all is there"
            return call()

    try:
        fleet = opened(order)
    except (JournalError, SnapshotError) as error:
        heed(error)
        fleet = make()
    player = Player(order.seed, order.most).go_on_with(fleet)
    while player.number < order.until:
        # Results of a call that has happened all the same are nowhere: a model has them.
        fleet, number = player.fleet, int(player.fleet._journal.number)
        player = Player(order.seed, order.most).to(number).go_on_with(fleet)
        player.attempt = attempt
        with suppress(Happened):
            for _ in player.play(order.until):
                pass
    player.compact()
    player.shut()
    say(player.number)
    say(len(raised))
    say(-operations())


def at_every_limit(order: Order) -> None:
    """Each call of a script with room for so many bytes of its entry, for every number of them.

    Says the number of calls, and of limits.
    """
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    fleet = begin(Path(order.directory), order.seed, **order.settings)
    limits = 0

    def attempt(call: Callable[[], Any]) -> Any:
        nonlocal limits
        before = facts(fleet)
        for limit in range(fleet._journal.end, 10**9):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
            try:
                return call()
            except JournalError as error:
                assert "nothing was changed" in str(error), error
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            limits += 1
            assert facts(fleet) == before, f"call {player.number + 1}, limit {limit}"
            assert fleet._journal.path.stat().st_size == fleet._journal.end

    player = Player(order.seed).go_on_with(fleet)
    player.attempt = attempt
    for _ in player.play(order.until):
        pass
    say(player.number)
    say(limits)


DOINGS = {one.__name__: one for one in (play, play_in_threads, refused, at_every_limit)}


def children() -> None:
    """A child for each order; then a dot and how it ended."""
    last = None
    for line in sys.stdin:
        if last:    # only now, so that nobody else gets its number while it may be killed
            os.waitpid(last, 0)
        order = Order(**json.loads(line))
        steps_of(order.seed, order.most)    # once, for those that come after it too
        last = pid = os.fork()
        if not pid:
            status = 1
            try:
                DOINGS[order.do](order)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        say(pid)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended
        killed_by = 0 if ended.si_code == os.CLD_EXITED else ended.si_status
        os.write(1, f".{-killed_by or ended.si_status}\n".encode())


class Children:
    """Starts children, one after the other."""

    def __init__(self, folder: Path, preload: Path | None = None) -> None:
        self.errors = folder / "errors"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if preload:
            environment["LD_PRELOAD"] = str(preload)
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__], bufsize=0, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, env=environment,
            )

    def start(self, order: Order) -> int:
        """The number of the child's process."""
        self._write(json.dumps(order.__dict__))
        return int(self.word())

    def word(self) -> str:
        """The next word that was said; "." once the child has ended."""
        assert self._process.stdout
        said = b""
        while not said.endswith((b" ", b".")):
            one = self._process.stdout.read(1)
            assert one, f"no more children: {self.errors.read_text()}"
            said += one
        return said.decode().strip()

    def rest(self) -> tuple[list[int], bool]:
        """The numbers that were said until the child's end, and whether it was killed."""
        said = []
        while (word := self.word()) != ".":
            said.append(int(word))
        return said, self.killed()

    def killed(self) -> bool:
        """Whether a child that has ended was killed."""
        assert self._process.stdout
        status = int(self._process.stdout.readline())
        assert status in (0, -signal.SIGKILL), f"{status}: {self.errors.read_text()}"
        return bool(status)

    def run(self, order: Order) -> tuple[list[int], bool]:
        """`rest` of a child that ends by itself."""
        self.start(order)
        return self.rest()

    def end(self) -> None:
        """No more of them."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line.encode() + b"\n")


def compiled(source: Path, folder: Path) -> Path | None:
    """A library to preload; None where that cannot be."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if sys.platform != "linux" or shutil.which(compiler) is None:
        return None
    library = folder / "crash_points.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True
    )
    return library


# --- power loss ----------------------------------------------------------------------------------
def disk_after_power_loss(
    directory: Path, log: Path, target: Path, rng: random.Random, *, names: str, tail: str
) -> Path:
    """What a disk may hold of a directory if the machine died now, made as `target`.

    `names`: those it has "now", or had as the directory was "synced". `tail`, what is left of
    bytes that were not synced: "none", "some", or "some" with "zeros" behind.
    """
    sizes: dict[int, int] = {}
    synced: dict[str, int] = {}
    inside = False
    for line in log.read_text().splitlines():
        kind, number, *rest = line.split(" ", 2)
        if kind == "file":
            sizes[int(number)] = int(rest[0])
        elif kind == "directory":
            inside = int(number) == directory.stat().st_ino
            synced = {} if inside else synced
        elif inside:
            synced[rest[0]] = int(number)
    present = {path.stat().st_ino: path for path in directory.iterdir()}
    kept = {int(path.name): path for path in Path(f"{log}.kept").iterdir()}
    chosen = synced if names == "synced" else {
        path.name: path.stat().st_ino for path in directory.iterdir()
    }
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name, inode in chosen.items():
        data = (present.get(inode) or kept[inode]).read_bytes()
        size = min(sizes.get(inode, 0), len(data))
        left = size if tail == "none" else rng.randint(size, len(data))
        rest_of = bytes(len(data) - left) if tail == "zeros" else b""
        (target / name).write_bytes(data[:left] + rest_of)
    return target


if __name__ == "__main__":
    count_calls_alone(pytest.MonkeyPatch())
    children()

