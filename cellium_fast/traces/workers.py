"""Work on many items in processes of its own: results in the order of the items, bounded ahead.

The processes are started afresh ("spawn"), since forking a process that has threads may hang it.
They leave with the caller: at the end, on an exception or an interrupt; and if it is killed, as
soon as the item at hand is done.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4      # items a process that are worked on or wait for their turn, at most


def in_order(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order, worked out by `jobs` processes.

    Parameters
    ----------
    work
        A function of a module; it, the items and the results are pickled.

    Raises
    ------
    ChildProcessError
        A process ended before its work was done; `filename` is the item.
    Exception
        What `work` raised, when the turn of that item comes.
    """
    context = get_context("spawn")
    processes = []
    idle: list[Connection] = []
    try:
        for _ in range(min(jobs, len(items))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(work, theirs, os.getcwd()), daemon=True)
            with _interrupts_blocked():
                process.start()
            theirs.close()
            processes.append(process)
            idle.append(ours)
        yield from _results(items, idle)
    finally:
        for process in processes:
            process.terminate()
            process.join()
            process.close()


def _results(items: Sequence[Any], idle: list[Connection]) -> Iterator[Any]:
    ahead = _AHEAD * len(idle)
    busy: dict[Connection, int] = {}
    ready: dict[int, tuple[Any, Exception | None]] = {}
    begun = 0
    for place in range(len(items)):
        while place not in ready:
            while idle and begun < min(len(items), place + ahead):
                pipe = idle.pop()
                busy[pipe] = begun
                _talk(pipe.send, items[begun], items[begun])
                begun += 1
            for pipe in busy.keys() & wait(list(busy)):
                number = busy.pop(pipe)
                ready[number] = _talk(pipe.recv, items[number])
                idle.append(pipe)
        result, error = ready.pop(place)
        if error is not None:
            raise error
        yield result


def _talk(method: Callable[..., Any], item: Any, *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except (EOFError, ConnectionError):
        why = "the process at work on it ended (was it killed, or short of memory?)"
        raise ChildProcessError(errno.ECHILD, why, str(item)) from None


def _serve(work: Callable[[Any], Any], pipe: Connection, folder: str) -> None:
    # An interrupt is for the caller, who ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)    # it would be that of the caller's start
    try:
        while True:
            item = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = work(item), None
            except Exception as error:
                answer = None, error
            pipe.send(answer)
    except (EOFError, ConnectionError):     # the caller is no more
        return


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let a process start that no interrupt reaches while it has not begun to ignore them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()   # begun with the first process, it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
