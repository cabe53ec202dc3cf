"""Saving is all or nothing: a full disk, a refusing system, a kill at any moment."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cellium_fast import Fleet, RoundBatch, SnapshotError, snapshot, whole_file

SESSIONS = 3_000


def new_fleet():
    fleet = Fleet(seed=7)
    fleet.open(SESSIONS)
    return fleet


def advance(fleet, place):
    """One step of a fleet, which its sessions count."""
    columns = RoundBatch(context_tokens=np.full(SESSIONS, 1_000 + place, np.int64))
    fleet.step(np.arange(SESSIONS), columns, want=[])


def rounds_of(fleet):
    """How often it was advanced; no session more often than another."""
    (count,) = set(fleet._memory.sessions["round"][:SESSIONS].tolist())
    return count


def child(path):
    """Advance and save for ever; say how often it was advanced before each save and after."""
    os.write(1, f"{os.getpid()} ".encode())
    fleet = Fleet.load(path)
    for place in range(rounds_of(fleet), 10**9):
        advance(fleet, place)
        os.write(1, f"{place + 1} ".encode())
        fleet.save(path)
        os.write(1, f"{place + 1} ".encode())


# --- killed --------------------------------------------------------------------------------------
def one_after_the_other(path):
    """A child for each line that comes in; a dot when it has ended. It need not import anew."""
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            child(path)
        os.waitpid(pid, 0)
        os.write(1, b".")


def until(stream, end):
    """What comes out of a stream, until `end` does."""
    said = b""
    while not said.endswith(end):
        said += stream.read(1)
    return said[: -len(end)]


@pytest.fixture
def children(tmp_path):
    """What starts children, see `one_after_the_other`."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork")
    with subprocess.Popen(
        [sys.executable, __file__, str(tmp_path / "fleet")], bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process
        process.stdin.close()


def check_kills(tmp_path, children, rng, count):
    path, expected, advanced = tmp_path / "fleet", new_fleet(), 0
    expected.save(path)
    left_behind = torn = 0
    for _ in range(count):
        children.stdin.write(b"\n")
        pid = int(until(children.stdout, b" "))
        first = until(children.stdout, b" ")
        time.sleep(rng.random() * 0.1)
        os.kill(pid, signal.SIGKILL)
        begun = [int(word) for word in (first + b" " + until(children.stdout, b".")).split()]
        names = sorted(os.listdir(tmp_path))
        left_behind += any(".tmp-" in name for name in names)
        fleet = Fleet.load(path)
        torn += len(begun) % 2
        assert rounds_of(fleet) in (begun[-1] - len(begun) % 2, begun[-1])
        while advanced < rounds_of(fleet):
            advance(expected, advanced)
            advanced += 1
        assert fleet._state().sessions.tobytes() == expected._state().sessions.tobytes()
        assert rounds_of(Fleet.load(tmp_path / "fleet.bak")) in (advanced - 1, advanced)
        fleet.save(path)
        assert sorted(os.listdir(tmp_path)) == ["fleet", "fleet.bak"]
    return left_behind, torn


def test_killed_while_saving(tmp_path, children, rng):
    _, torn = check_kills(tmp_path, children, rng, 15)
    assert torn > 0


@pytest.mark.long
def test_killed_while_saving_hundreds_of_times(tmp_path, children, rng):
    left_behind, torn = check_kills(tmp_path, children, rng, 250)
    assert min(left_behind, torn) > 20


# --- the system refuses --------------------------------------------------------------------------
def refuse(monkeypatch, name, code, after=0):
    """A function of `os` fails, after so many calls that do not."""
    real, calls = getattr(os, name), []

    def refusing(*arguments, **options):
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, refusing)


@pytest.mark.parametrize(
    ("name", "code", "after"),
    [("open", errno.EROFS, 0), ("open", errno.EACCES, 0), ("write", errno.ENOSPC, 0),
     ("write", errno.ENOSPC, 2), ("fsync", errno.EIO, 0), ("replace", errno.EACCES, 0),
     ("replace", errno.EACCES, 1)],
)  # fmt: skip
@pytest.mark.parametrize("exists", [True, False])
def test_what_was_there_stays_when_the_system_refuses(
    tmp_path, monkeypatch, name, code, after, exists
):
    path, fleet = tmp_path / "fleet", new_fleet()
    if exists:
        fleet.save(path)
    elif name == "replace" and after:
        pytest.skip("there is one file to replace")
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    advance(fleet, 0)
    with monkeypatch.context() as patched, pytest.raises(SnapshotError) as caught:
        refuse(patched, name, code, after)
        fleet.save(path)
    assert caught.value.reason == "unwritable"
    assert os.strerror(code) in str(caught.value)
    left = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    if name == "replace" and after:
        assert left.pop("fleet.bak") == before["fleet"]
    assert left == before
    fleet.save(path)
    assert rounds_of(Fleet.load(path)) == 1


def test_the_message_says_when_only_the_directory_was_not_brought_to_the_disk(
    tmp_path, monkeypatch
):
    path, fleet = tmp_path / "fleet", new_fleet()
    fleet.save(path)
    advance(fleet, 0)
    with monkeypatch.context() as patched, pytest.raises(SnapshotError) as caught:
        refuse(patched, "fsync", errno.EIO, after=1)
        fleet.save(path)
    assert caught.value.reason == "unwritable"
    assert f"{os.strerror(errno.EIO)}: the new file is in place" in str(caught.value)
    assert "untouched" not in str(caught.value)
    assert rounds_of(Fleet.load(path)) == 1
    assert rounds_of(Fleet.load(tmp_path / "fleet.bak")) == 0
    assert sorted(os.listdir(tmp_path)) == ["fleet", "fleet.bak"]


@pytest.mark.skipif(os.name != "posix", reason="no such permissions")
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("mode", [0o600, 0o664, 0o646])
def test_permissions_stay(tmp_path, monkeypatch, mode, links):
    path = tmp_path / "file"
    seen = []

    def write(descriptor):
        seen.append(os.fstat(descriptor).st_mode & 0o777)

    before = os.umask(0o027)
    try:
        whole_file.replace(path, write)
        path.chmod(mode)
        if not links:
            refuse(monkeypatch, "link", errno.EPERM)
        whole_file.replace(path, write)
    finally:
        os.umask(before)
    assert seen == [0o640, mode]        # before there is anything to be read
    assert path.stat().st_mode & 0o777 == mode
    assert whole_file.backup_of(path).stat().st_mode & 0o777 == mode


LIMITED = """
import resource, sys
from cellium_fast import Fleet, SnapshotError
fleet = Fleet.load(sys.argv[1])
fleet.open(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    fleet.save(sys.argv[1])
except SnapshotError as error:
    print(error.reason, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_file_that_the_system_does_not_let_grow(tmp_path):
    path = tmp_path / "fleet"
    new_fleet().save(path)
    data = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("unwritable")
    assert os.strerror(errno.EFBIG) in done.stdout
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["fleet"]


def test_no_directory_and_a_directory_in_its_place(tmp_path):
    for path in (tmp_path / "none" / "fleet", tmp_path):
        with pytest.raises(SnapshotError) as caught:
            Fleet().save(path)
        assert caught.value.reason == "unwritable"
    assert os.listdir(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path):
    def interrupted(descriptor):
        os.write(descriptor, b"part")
        raise KeyboardInterrupt

    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        whole_file.replace(tmp_path / "file", interrupted)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


# --- beside it -----------------------------------------------------------------------------------
def test_without_hard_links_the_one_before_is_copied(tmp_path, monkeypatch):
    path, fleet = tmp_path / "fleet", new_fleet()
    fleet.save(path)
    data = path.read_bytes()
    advance(fleet, 0)
    refuse(monkeypatch, "link", errno.EPERM)
    fleet.save(path)
    assert (tmp_path / "fleet.bak").read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["fleet", "fleet.bak"]


LEFT = f".tmp-1-{'0' * 16}"     # what a writer that died is made of


def test_without_hard_links_there_may_be_none_before(tmp_path, monkeypatch):
    refuse(monkeypatch, "link", errno.EPERM)
    Fleet().save(tmp_path / "fleet")
    assert os.listdir(tmp_path) == ["fleet"]


def test_what_the_dead_left_is_removed_and_nothing_else(tmp_path):
    others = [
        "fleet2" + LEFT, "fleet.bak", "fleet.tmp", "afleet" + LEFT, "fleet.tmp-notes",
        "fleet.tmp-1-1", f"fleet{LEFT}0", f"fleet{LEFT}.bak2", f"fleet{LEFT}.bak.bak",
    ]
    for name in [*others, "fleet" + LEFT, f"fleet.tmp-999999-{'a' * 16}.bak"]:
        (tmp_path / name).write_bytes(b"x")
    Fleet().save(tmp_path / "fleet")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "fleet"])


def test_without_locks_what_was_left_behind_is_in_nobodys_way(tmp_path, monkeypatch):
    if whole_file.fcntl is None:
        pytest.skip("no locks on this system")

    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(whole_file.fcntl, "flock", no_locks)
    names = []

    def killed(descriptor):
        names.extend(os.listdir(tmp_path))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole_file.replace(tmp_path / "file", killed)
    (tmp_path / names[0]).write_bytes(b"left")
    for content in (b"one", b"two"):
        whole_file.replace(tmp_path / "file", lambda file, text=content: os.write(file, text))
        assert (tmp_path / "file").read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == sorted([names[0], "file", "file.bak"])


SAVERS = """
import sys, threading
from pathlib import Path
from cellium_fast import whole_file
path, count = Path(sys.argv[1]), int(sys.argv[2])
def save():
    for _ in range(count):
        whole_file.replace(path, lambda file: open(file, "wb", closefd=False).write(b"x" * 500))
        assert path.read_bytes() == b"x" * 500
threads = [threading.Thread(target=save) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def check_savers(path, count):
    """Threads of two processes write one file."""
    arguments = [sys.executable, "-c", SAVERS, path, str(count)]
    savers = [subprocess.Popen(arguments, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(saver.communicate()[1], saver.returncode) for saver in savers] == [(b"", 0)] * 2
    assert sorted(os.listdir(path.parent)) == ["file", "file.bak"]
    assert whole_file.backup_of(path).read_bytes() == path.read_bytes() == b"x" * 500


def test_many_save_to_one_path_at_once(tmp_path):
    check_savers(tmp_path / "file", 100)


@pytest.mark.long
def test_many_save_to_one_path_thousands_of_times(tmp_path):
    check_savers(tmp_path / "file", 2_000)


def test_what_others_are_writing_is_not_removed(tmp_path):
    path = tmp_path / "file"
    inside, done = threading.Event(), threading.Event()

    def slow(descriptor):
        os.write(descriptor, b"slow")
        inside.set()
        assert done.wait(30)

    writer = threading.Thread(target=whole_file.replace, args=(path, slow))
    writer.start()
    assert inside.wait(30)
    whole_file.replace(path, lambda descriptor: os.write(descriptor, b"quick"))
    assert path.read_bytes() == b"quick"
    done.set()
    writer.join()
    assert path.read_bytes() == b"slow"
    assert whole_file.backup_of(path).read_bytes() == b"quick"
    assert len(os.listdir(tmp_path)) == 2


def test_saved_while_others_step(tmp_path):
    path, fleet = tmp_path / "fleet", new_fleet()
    fleet.save(path)
    stop = threading.Event()

    def go_on():
        place = 0
        while not stop.is_set():
            advance(fleet, place)
            place += 1

    def save():
        for _ in range(10):
            fleet.save(path)

    threads = [threading.Thread(target=go_on), *(threading.Thread(target=save) for _ in range(2))]
    for thread in threads:
        thread.start()
    for _ in range(20):
        rounds_of(Fleet.load(path))     # all sessions were advanced as often
    for thread in threads[1:]:
        thread.join()
    stop.set()
    threads[0].join()
    fleet.save(path)
    assert rounds_of(Fleet.load(path)) == rounds_of(fleet)
    assert sorted(os.listdir(tmp_path)) == ["fleet", "fleet.bak"]
    assert snapshot.read(path).opened == SESSIONS


if __name__ == "__main__":
    one_after_the_other(Path(sys.argv[1]))
