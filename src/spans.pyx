# cython: language_level=3
"""Whose turn it is with a fleet's memory, and spans of a batch in threads of their own.

This is compiled because an interrupt (Ctrl-C) is an exception that Python raises between any two
of its own instructions. Here it can only be raised inside a call, where it is caught: a span that
was begun is always waited for, since it writes into a fleet's memory.
"""

from _thread import start_new_thread
from queue import SimpleQueue
from threading import Lock

from cellium_fast.errors import ReentryError

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()


cdef class Turn:
    """A lock that says so, instead of waiting for ever, if its own holder asks for it again.

    That happens where Python runs foreign code by itself: a finalizer, when the garbage collector
    comes by, or a signal handler. The threads that work on the holder's spans count as the holder.
    """

    cdef object wait
    cdef object let_go
    cdef unsigned long holder       # 0: nobody
    cdef readonly set helpers

    def __cinit__(self):
        lock = Lock()
        self.wait = lock.acquire
        self.let_go = lock.release
        self.helpers = set()

    def acquire(self):
        """Wait for the turn; ReentryError if it is this thread's already."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if me == self.holder or (self.helpers and me in self.helpers):
            raise ReentryError(
                "the fleet is in the middle of a call; a finalizer or signal handler that runs "
                "within it cannot call the fleet"
            )
        self.wait()
        self.holder = me

    def release(self):
        """Give the turn away."""
        self.holder = 0
        self.let_go()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *problem):
        self.release()


def _run(span, done, helpers):
    me = PyThread_get_thread_ident()
    helpers.add(me)
    problem = None
    try:
        span()
    except BaseException as error:
        problem = error
    helpers.discard(me)
    done.put(problem)


def run_spans(spans, set helpers):
    """Call the first of these functions here and each other one in a thread of its own.

    `helpers` holds the idents of those threads while they run.

    Returns when all have ended, and raises what the first one to fail raised. A span for which no
    thread can be started is called here.
    """
    cdef Py_ssize_t running = 0
    cdef list here = list(spans[:1])
    done = SimpleQueue()
    problem = None
    for span in spans[1:]:
        try:
            start_new_thread(_run, (span, done, helpers))
        except RuntimeError:    # no more threads, or the interpreter is ending
            here.append(span)
        else:
            running += 1
    for span in here:
        try:
            span()
        except BaseException as error:
            problem = error if problem is None else problem
    while running:
        try:
            failed = done.get()
        except BaseException as error:
            problem = error if problem is None else problem
        else:
            running -= 1
            problem = failed if problem is None else problem
    if problem is not None:
        raise problem
