# cython: language_level=3
"""A journal: one file of numbered, checksummed entries, and appending to it.

This is compiled because nothing may come between an entry and what it stands for: here Python runs
no code of its own, so no interrupt and no other thread. The format is in journal_format.pxd.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from journal_format cimport (
    BYTE_ORDER_MARK, GIVEN_FLAGS, GIVEN_RESULT, GIVEN_SHAPE, GIVEN_SIZE, VERSION,
    EntryHeader, FileHeader, RoundBody, checksum_of, padded, view_of,
)
from records cimport Round
cimport journal_format

import os
from time import monotonic

from xxhash import xxh3_64, xxh3_64_intdigest

from cellium_fast._journal_names import pack_names as pack
from cellium_fast.errors import ForkedError, JournalError

cdef extern from "files.h" nogil:
    int write_at(int file, const void* bytes, size_t size, int64_t offset)
    int cut_file(int file, int64_t size)
    int sync_file(int file)

cdef enum:
    MAX_PARTS = 32
    AT_ONCE = 1 << 16       # bytes: a smaller entry is gathered and written by one system call

HEADER_SIZE = sizeof(FileHeader)
KIND_ROUND = journal_format.KIND_ROUND
FSYNC = ("step", "interval", "never")


cdef bytes file_header(uint64_t number):
    cdef FileHeader header
    memcpy(header.name, b"CELLJRNL", 8)
    header.version = VERSION
    header.byte_order = BYTE_ORDER_MARK
    header.number = number
    header.checksum = checksum_of(
        xxh3_64_intdigest, &header, sizeof(FileHeader) - sizeof(uint64_t)
    )
    return (<char*> &header)[:sizeof(FileHeader)]


def create(path, uint64_t number):
    """Make the file of a journal whose first entry has the number after this one; it is on disk.

    Raises
    ------
    OSError
        There is such a file already, or it cannot be written; then none is left.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
    try:
        header = file_header(number)
        problem = write_at(file, PyBytes_AS_STRING(header), len(header), 0) or sync_file(file)
        if problem:
            raise OSError(problem, os.strerror(problem), path)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(file)


cdef class Journal:
    """Appends entries to a file; who uses it lets one thread in at a time.

    Parameters
    ----------
    path
        An existing journal.
    first, number, end
        Numbers of the entry before its first one, and of its newest one; where that ends.
    fsync
        When an entry is made to be on disk: ``"step"`` before `append` returns; ``"interval"``
        with the first entry that comes so many seconds after the last time; ``"never"``.
    interval
        These seconds.

    Attributes
    ----------
    path, first, number, end
        As above, by now.
    syncs
        How often the system was asked to have entries on disk.
    """

    cdef readonly object path
    cdef readonly uint64_t first
    cdef readonly uint64_t number
    cdef readonly int64_t end
    cdef readonly uint64_t syncs
    cdef int file
    cdef object turn            # where to leave `when_full`
    cdef object when_full
    cdef int64_t most_bytes     # of the file, before it is full
    cdef double most_seconds    # since it was begun; < 0 = any number
    cdef int64_t full_at
    cdef double begun
    cdef bint sync_each
    cdef double interval        # seconds; < 0 = never
    cdef double synced          # when
    cdef bint unsynced          # whether entries were appended since
    cdef object refusal         # why nothing can be appended any more; None = it can
    cdef bint forked
    cdef char* buffer
    cdef size_t capacity
    cdef Py_buffer parts[MAX_PARTS]

    def __cinit__(self):
        self.file = -1

    def __init__(
        self, path, uint64_t first, uint64_t number, int64_t end, str fsync, double interval
    ):
        self.path = path
        self.first = first
        self.number = number
        self.end = end
        self.sync_each = fsync == "step"
        self.interval = interval if fsync == "interval" else -1
        self.synced = self.begun = monotonic()
        self.full_at = INT64_MAX
        self.most_seconds = -1
        self.file = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))

    def __dealloc__(self):
        free(self.buffer)
        if self.file >= 0:
            os.close(self.file)

    def append(self, tuple entry):
        """Append an entry: its kind, and the parts of its body, each padded to eight bytes.

        Raises
        ------
        JournalError
            It cannot be written; the file is as it was.
        ForkedError
            This process was forked from the one that the journal belongs to.
        """
        cdef Py_ssize_t taken = 0
        cdef int problem
        kind, parts = entry
        if len(parts) > MAX_PARTS:
            raise ValueError(f"parts: wanted at most {MAX_PARTS}, got {len(parts)}")
        self.check()
        try:
            for part in parts:
                PyObject_GetBuffer(part, &self.parts[taken], PyBUF_SIMPLE)
                taken += 1
            problem = self.write_parts(kind, taken)
        finally:
            while taken:
                taken -= 1
                PyBuffer_Release(&self.parts[taken])
        self.settle(problem)

    def append_round(self, int64_t id, size_t round_address, dict tools, dict errors, used):
        """Append one round of one session, with the names that it taught; raises as `append`.

        `used`: the tools of the session that were used in it for the first time, or None.
        """
        cdef const Round* round = <const Round*> round_address
        cdef size_t calls = round.calls
        cdef size_t length
        cdef RoundBody* body
        cdef char* place
        cdef bytes names = None
        self.check()
        if tools or errors or used:
            names = pack(tools, errors, used or ())
        length = sizeof(RoundBody) + 37 * calls + (0 if names is None else len(names))
        self.reserve(sizeof(EntryHeader) + padded(length))
        body = <RoundBody*> (self.buffer + sizeof(EntryHeader))
        memset(body, 0, sizeof(RoundBody))
        body.id = id
        body.text = round.text
        body.sketch = round.sketch
        body.context_tokens = round.context_tokens
        body.context_limit = round.context_limit
        body.progress = round.progress
        body.reward = round.reward
        body.calls = <uint32_t> calls
        body.success = round.success
        body.event = round.event
        place = <char*> (body + 1)
        place = put(place, round.tool, calls * sizeof(uint64_t))
        place = put(place, round.signature, calls * sizeof(uint64_t))
        if round.shape != NULL:
            body.given |= GIVEN_SHAPE
            place = put(place, round.shape, calls * sizeof(uint64_t))
        if round.result != NULL:
            body.given |= GIVEN_RESULT
            place = put(place, round.result, calls * sizeof(uint64_t))
        if round.size != NULL:
            body.given |= GIVEN_SIZE
            place = put(place, round.size, calls * sizeof(uint32_t))
        if round.flags != NULL:
            body.given |= GIVEN_FLAGS
            place = put(place, round.flags, calls)
        if names is not None:
            body.names = <uint32_t> PyBytes_GET_SIZE(names)
            place = put(place, PyBytes_AS_STRING(names), body.names)
        length = place - <char*> body
        memset(place, 0, padded(length) - length)
        self.settle(self.write_gathered(journal_format.KIND_ROUND, padded(length)))

    def set_bounds(self, turn, when_full, bytes, seconds):
        """Have `turn` call `when_full` after a turn that filled the journal.

        It is full when it has so many bytes more than now, or is so many seconds older (None: any
        number).
        """
        self.turn = turn
        self.when_full = when_full
        self.most_bytes = -1 if bytes is None else bytes
        self.most_seconds = -1 if seconds is None else seconds
        self.full_at = INT64_MAX if bytes is None else bytes

    def renew_bounds(self):
        """From now on: so many bytes and seconds more."""
        self.begun = monotonic()
        if self.most_bytes >= 0:
            self.full_at = self.most_bytes + self.end

    def is_in_place(self):
        """Whether its path still leads to its file. Raises OSError."""
        return os.path.samestat(os.fstat(self.file), os.stat(self.path))

    def flush(self):
        """Have what was appended so far on disk; others may append meanwhile. Raises OSError."""
        file = os.dup(self.file) if self.file >= 0 else -1
        if file >= 0:
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def sync(self):
        """Have all entries on disk; raises as `append`, and is of no more use then."""
        self.check()
        self.settle_sync(self.end)

    def rotate(self, path):
        """Go on in another file, made by `create` for the number reached; the old one is on disk.

        Raises OSError, or as `append`; then it goes on in the old file.
        """
        cdef int old = self.file
        self.check()
        if self.unsynced:
            self.settle_sync(self.end)
        self.file = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self.path = path
        self.first = self.number
        self.end = sizeof(FileHeader)
        os.close(old)

    def close(self):
        """Have all entries on disk, unless that was never wanted, and let go of the file."""
        try:
            if self.refusal is None and self.unsynced and (self.sync_each or self.interval >= 0):
                self.settle_sync(self.end)
        finally:
            self.let_go("it is closed")

    def detach(self):
        """In a forked process: let go of the file, which belongs to the parent."""
        self.forked = True
        self.let_go(
            "this process was forked from the one that writes this journal; it needs a fleet of "
            "its own, in a directory of its own"
        )

    @property
    def is_closed(self):
        """Whether nothing can be appended, since it was closed or detached."""
        return self.file < 0

    cdef int let_go(self, refusal) except -1:
        cdef int file = self.file
        self.refusal = refusal
        self.file = -1
        if file >= 0:
            os.close(file)
        return 0

    cpdef check(self):
        """Raise what `append` would, if nothing can be appended any more."""
        if self.refusal is None:
            return
        if self.forked:
            raise ForkedError(f"{self.path}: {self.refusal}")
        raise JournalError(self.path, self.refusal)

    cdef int reserve(self, size_t size) except -1:
        if size > self.capacity:
            grown = <char*> realloc(self.buffer, size)
            if grown == NULL:
                raise MemoryError
            self.buffer = grown
            self.capacity = size
        return 0

    cdef int write_parts(self, uint32_t kind, Py_ssize_t count) except -1:
        # Returns an errno, 0 if all was written.
        cdef size_t length = 0
        cdef char* place
        cdef Py_ssize_t i
        for i in range(count):
            length += padded(self.parts[i].len)
        if length > AT_ONCE:
            return self.write_large(kind, count, length)
        self.reserve(sizeof(EntryHeader) + length)
        place = self.buffer + sizeof(EntryHeader)
        for i in range(count):
            place = put(place, self.parts[i].buf, self.parts[i].len)
            place = put(place, ZEROS, padded(self.parts[i].len) - self.parts[i].len)
        return self.write_gathered(kind, length)

    cdef int write_gathered(self, uint32_t kind, size_t length) except -1:
        # The body is in the buffer, behind room for its header.
        cdef EntryHeader* header = <EntryHeader*> self.buffer
        cdef size_t size = sizeof(EntryHeader) + length
        fill_header(header, kind, self.number + 1, length)
        header.checksum = checksum_of(
            xxh3_64_intdigest, header.name, size - sizeof(uint64_t)
        )
        problem = write_at(self.file, self.buffer, size, self.end)
        return problem or self.entry_written(size)

    cdef int write_large(self, uint32_t kind, Py_ssize_t count, size_t length) except -1:
        # Each part from where it lies.
        cdef EntryHeader header
        cdef int64_t place = self.end + <int64_t> sizeof(EntryHeader)
        cdef Py_ssize_t i
        cdef size_t padding
        cdef int problem
        fill_header(&header, kind, self.number + 1, length)
        hasher = xxh3_64((<char*> header.name)[:sizeof(EntryHeader) - sizeof(uint64_t)])
        for i in range(count):
            padding = padded(self.parts[i].len) - self.parts[i].len
            if self.parts[i].len:
                hasher.update(view_of(self.parts[i].buf, self.parts[i].len))
            hasher.update(ZEROS[:padding])
        header.checksum = hasher.intdigest()
        with nogil:
            problem = write_at(self.file, &header, sizeof(EntryHeader), self.end)
            for i in range(count):
                if problem:
                    break
                problem = write_at(self.file, self.parts[i].buf, self.parts[i].len, place)
                place += self.parts[i].len
                padding = padded(self.parts[i].len) - self.parts[i].len
                if padding and not problem:
                    problem = write_at(self.file, ZEROS, padding, place)
                    place += padding
        return problem or self.entry_written(sizeof(EntryHeader) + length)

    cdef int entry_written(self, size_t size) except -1:
        cdef int64_t end = self.end + <int64_t> size
        self.unsynced = True
        if self.sync_each or (self.interval >= 0 and monotonic() - self.synced >= self.interval):
            self.settle_sync(self.end)
        self.number += 1
        self.end = end
        if end >= self.full_at or (
            self.most_seconds >= 0 and monotonic() - self.begun >= self.most_seconds
        ):
            self.turn.then = self.when_full
        return 0

    cdef int settle(self, int problem) except -1:
        # What was written of an entry in vain is cut off.
        cdef int stuck
        if not problem:
            return 0
        stuck = cut_file(self.file, self.end)
        if stuck:
            self.refusal = (
                f"an entry could not be written ({os.strerror(problem)}), nor what was written of "
                f"it cut off ({os.strerror(stuck)}); open the directory anew"
            )
            raise JournalError(self.path, f"{self.refusal}. Nothing was changed")
        raise JournalError(
            self.path, f"an entry could not be written: {os.strerror(problem)}; nothing was changed"
        )

    cdef int settle_sync(self, int64_t end) except -1:
        # If the disk did not take it, nobody knows what it has: the end is what was good before.
        cdef int problem, stuck
        with nogil:
            problem = sync_file(self.file)
        self.syncs += 1
        if problem:
            stuck = cut_file(self.file, end)
            self.refusal = (
                f"the disk did not take all entries ({os.strerror(problem)}), so nobody knows "
                "which it has; open the directory anew"
            )
            raise JournalError(self.path, f"{self.refusal}. Nothing was changed" + (
                f", but what was written could not be cut off ({os.strerror(stuck)}): the call may "
                "have happened in what is opened then" if stuck else ""
            ))
        self.unsynced = False
        self.synced = monotonic() if self.interval >= 0 else 0
        return 0


cdef const char* ZEROS = "\0\0\0\0\0\0\0\0"


cdef inline char* put(char* place, const void* bytes, size_t size) noexcept nogil:
    if size:
        memcpy(place, bytes, size)
    return place + size


cdef inline void fill_header(
    EntryHeader* header, uint32_t kind, uint64_t number, uint64_t length
) noexcept nogil:
    memcpy(header.name, b"ENTR", 4)
    header.kind = kind
    header.number = number
    header.length = length
