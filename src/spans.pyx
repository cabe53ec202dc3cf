# cython: language_level=3
"""Whose turn it is with a fleet's memory, and spans of a batch in threads of their own.

This is compiled because an interrupt (Ctrl-C) is an exception that Python raises between any two
of its own instructions. Here it can only be raised inside a call, where it is caught: a turn that
was taken is given away, and a span that was begun is always waited for, since it writes into a
fleet's memory.
"""

import os
from _thread import start_new_thread
from queue import SimpleQueue
from threading import Lock
from time import sleep
from weakref import ref

from libc.string cimport memset
from cellium_fast._records cimport Batch as BatchObject
from records cimport Batch

from cellium_fast.errors import ReentryError

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()


cdef class Turn:
    """A lock that says so, instead of waiting for ever, if its own holder asks for it again.

    That happens where Python runs foreign code by itself: a finalizer, when the garbage collector
    comes by, or a signal handler. The threads that work on the holder's spans count as the holder.

    A process forks between turns only: what is in a fleet's memory then is whole in both.

    Attributes
    ----------
    then
        What someone left to be called once, after the turn; or None.
    """

    cdef object wait
    cdef object let_go
    cdef unsigned long holder       # 0: nobody
    cdef unsigned long number
    cdef readonly set helpers
    cdef public object then
    cdef object follower        # a weak reference to what the child of a fork calls
    cdef object __weakref__

    def __cinit__(self):
        self.renew()
        follow_forks(self)

    cpdef renew(self):
        """Be nobody's turn, with a lock that no thread waits for."""
        lock = Lock()
        self.wait = lock.acquire
        self.let_go = lock.release
        self.holder = 0
        self.helpers = set()

    cpdef call_in_child(self, reference):
        """After a fork, call in the child what a `WeakMethod` refers to, if it is still there."""
        self.follower = reference

    cdef object tell_follower(self):
        function = None if self.follower is None else self.follower()
        if function is not None:
            function()

    cdef bint is_mine(self):
        cdef unsigned long me = PyThread_get_thread_ident()
        return me == self.holder or (len(self.helpers) > 0 and me in self.helpers)

    cpdef acquire(self):
        """Wait for the turn; ReentryError if it is this thread's already."""
        if self.is_mine():
            raise ReentryError(
                "the fleet is in the middle of a call; a finalizer or signal handler that runs "
                "within it cannot call the fleet, nor what stands inside the `with` of a block"
            )
        self.wait()
        self.holder = PyThread_get_thread_ident()

    cpdef release(self):
        """Give the turn away."""
        self.holder = 0
        self.let_go()

    cpdef wait_for_helpers(self):
        """Wait until no thread helps the holder, who calls this."""
        while self.holder == PyThread_get_thread_ident() and self.helpers:
            sleep(0.001)

    def run(self, function, *arguments):
        """Call a function in this turn."""
        self.acquire()
        try:
            result = function(*arguments)
        finally:
            self.release()
        if self.then is not None:
            self.follow()
        return result

    def follow(self):
        """Call what was left to be called after the turn."""
        then, self.then = self.then, None
        if then is not None:
            then()


cdef class Forks:
    """Lets a process fork only while no thread is in a turn but, at most, the one that forks."""

    cdef set turns          # weak references
    cdef unsigned long made
    cdef dict taken         # turns taken for a fork, by the thread that forks

    def __cinit__(self):
        self.turns = set()
        self.taken = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self.before, after_in_parent=self.in_parent, after_in_child=self.in_child
            )

    cdef list alive(self):
        # In the order of their making: two threads that fork take them in the same one.
        cdef list turns = [reference() for reference in list(self.turns)]
        return sorted([turn for turn in turns if turn is not None], key=number_of)

    def before(self):
        """Take every turn."""
        cdef Turn turn
        cdef list taken = []
        problem = None
        for turn in self.alive():
            if not turn.is_mine():
                interrupted = insist(turn.acquire)
                taken.append(turn)
            else:
                # The child goes on with the call, but without the threads that help.
                interrupted = insist(turn.wait_for_helpers)
            problem = interrupted if problem is None else problem
        self.taken[PyThread_get_thread_ident()] = taken
        if problem is not None:
            raise problem       # which Python shows, and goes on

    def in_parent(self):
        """Give the turns back."""
        cdef Turn turn
        for turn in self.taken.pop(PyThread_get_thread_ident(), ()):
            turn.release()

    def in_child(self):
        """Make the turns anew: who waited for one in the parent does not exist here."""
        cdef Turn turn
        cdef list turns = self.alive()
        taken = self.taken.pop(PyThread_get_thread_ident(), ())
        self.taken.clear()
        for turn in turns:
            if turn in taken or not turn.is_mine():
                turn.renew()
        for turn in turns:
            turn.tell_follower()


def number_of(Turn turn not None):
    """Turns made before this one."""
    return turn.number


cdef object insist(function):
    # Call it until an interrupt, which is returned, does not end it.
    problem = None
    while True:
        try:
            function()
        except BaseException as error:
            problem = error if problem is None else problem
        else:
            return problem


cdef Forks forks = None


cdef int follow_forks(Turn turn) except -1:
    global forks
    if forks is None:
        forks = Forks()
    turn.number = forks.made
    forks.made += 1
    forks.turns.add(ref(turn, forks.turns.discard))
    return 0


cdef class Stage:
    """A part of what each session of a batch goes through: a C function on a range of them.

    Called as ``stage(batch, start, stop)`` it returns 0, or a code for what failed.
    """

    def __init__(self):
        raise TypeError("a Stage is made of a C function, by `stage` of _spans.pxd")

    def __call__(self, BatchObject batch not None, Py_ssize_t start, Py_ssize_t stop):
        cdef int failure
        with nogil:
            failure = self.function(&batch.batch, start, stop)
        return failure

    def __repr__(self):
        return f"<Stage {self.name}>"


cdef Stage stage(StageFunction function, str name):
    cdef Stage made = Stage.__new__(Stage)
    made.function = function
    made.name = name
    return made


cdef Stages functions_of(tuple stages):
    cdef Stages found
    memset(&found, 0, sizeof(Stages))
    if len(stages) > MOST_STAGES or not all([isinstance(one, Stage) for one in stages]):
        return found
    for one in stages:
        found.functions[found.count] = (<Stage> one).function
        found.count += 1
    return found


cdef int run_stages(
    const Stages* stages, const Batch* batch, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t chunk,
) noexcept nogil:
    cdef Py_ssize_t first = start, last, k
    cdef int failure = 0, code
    while first < stop:
        last = min(first + chunk, stop)
        for k in range(stages.count):
            code = stages.functions[k](batch, first, last)
            if failure == 0:
                failure = code
        first = last
    return failure


cdef class Span:
    """The sessions [start, stop) of a batch on their way through the stages.

    They go in chunks, whose state stays in cache from the first stage to the last. If all stages
    are `Stage`s, that happens in C, without the GIL; any other callable is called as
    ``stage(batch, first, last)``. If one fails, the others are called all the same, so that no
    session is left between two stages; what the first one to fail raised is raised then.

    Attributes
    ----------
    failure
        After a call: the first code that a `Stage` returned and that is not 0, or 0.
    """

    cdef tuple stages
    cdef Stages functions
    cdef readonly BatchObject batch
    cdef readonly int failure
    cdef Py_ssize_t start
    cdef Py_ssize_t stop
    cdef Py_ssize_t chunk

    def __cinit__(
        self, tuple stages not None, BatchObject batch not None, Py_ssize_t start, Py_ssize_t stop,
        Py_ssize_t chunk
    ):
        self.stages = stages
        self.functions = functions_of(stages)
        self.batch = batch
        self.start = start
        self.stop = stop
        self.chunk = chunk

    def __call__(self):
        if not self.functions.count:
            self.call_each()
            return
        with nogil:
            self.failure = run_stages(
                &self.functions, &self.batch.batch, self.start, self.stop, self.chunk
            )

    cdef int call_each(self) except -1:
        cdef Py_ssize_t first, last
        problem = None
        self.failure = 0
        for first in range(self.start, self.stop, self.chunk):
            last = min(first + self.chunk, self.stop)
            for stage in self.stages:
                try:
                    code = stage(self.batch, first, last)
                except BaseException as error:
                    problem = error if problem is None else problem
                else:
                    if isinstance(stage, Stage) and self.failure == 0:
                        self.failure = code
        if problem is not None:
            raise problem
        return 0


# Code of Python's own, in which alone it raises what was set from another thread.
cdef object notice = eval("lambda: None")


def _run(span, done, helpers):
    me = PyThread_get_thread_ident()
    helpers.add(me)
    problem = None
    # Up to its start a thread goes by the ident of who starts it: what was set for that one may
    # have come here.
    for function in (notice, span, notice):
        try:
            function()
        except BaseException as error:
            problem = error if problem is None else problem
    helpers.discard(me)
    done.put(problem)


def run_spans(spans, set helpers):
    """Call the first of these functions here and each other one in a thread of its own.

    `helpers` holds the idents of those threads while they run.

    Returns when all have ended, and raises what the first one to fail raised, or what was set for
    its thread from another one. A span for which no thread can be started is called here.
    """
    cdef Py_ssize_t running = 0
    cdef list here = list(spans[:1])
    done = SimpleQueue()
    problem = None
    for span in spans[1:]:
        try:
            start_new_thread(_run, (span, done, helpers))
        except (RuntimeError, MemoryError):     # no more threads, or the interpreter is ending
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
