# cython: language_level=3
"""Spans of a batch in threads that live as long as the call.

This is compiled because an interrupt (Ctrl-C) is an exception that Python raises between any two
of its own instructions. Here it can only be raised inside a call, where it is caught: a span that
was begun is always waited for, since it writes into a fleet's memory.
"""

from _thread import start_new_thread
from queue import SimpleQueue


def _run(span, done):
    try:
        span()
    except BaseException as error:
        done.put(error)
    else:
        done.put(None)


def run_spans(spans):
    """Call the first of these functions here and each other one in a thread of its own.

    Returns when all have ended, and raises what the first one to fail raised. A span for which no
    thread can be started is called here.
    """
    cdef Py_ssize_t running = 0
    cdef list here = list(spans[:1])
    done = SimpleQueue()
    problem = None
    for span in spans[1:]:
        try:
            start_new_thread(_run, (span, done))
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
