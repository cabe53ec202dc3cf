# cython: language_level=3
"""A journal: one file of numbered, checksummed entries; appending to it, and reading it back.

A file is a header and then entries, each a multiple of eight bytes, in this machine's byte order:

    header   "CELLJRNL", format version, mark of byte order, number of the entry before the first,
             checksum of all that
    entry    checksum of what follows, "ENTR", kind, number, length of the body, body

Checksums are XXH3 (64 bits). Numbers are consecutive. The body of a round is declared here,
`RoundBody`; those of other entries in `cellium_fast/entries.py`.

Appending is compiled because nothing may come between an entry and what it stands for: here Python
runs no code of its own, so no interrupt and no other thread.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_GET_SIZE,
)
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_AsEncodedString
from libc.math cimport isnan
from libc.stdint cimport INT64_MAX, int8_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset
from records cimport EVENT_COMPACTION, Round, bad_flags

import mmap
import os
from time import monotonic

from xxhash import xxh3_64, xxh3_64_intdigest

from cellium_fast.errors import ForkedError, JournalError

cdef extern from "files.h" nogil:
    int write_at(int file, const void* bytes, size_t size, int64_t offset)
    int cut_file(int file, int64_t size)
    int sync_file(int file)

cdef extern from "Python.h":
    enum:
        PyBUF_READ

cdef enum:
    VERSION = 1
    BYTE_ORDER_MARK = 0x01020304
    MAX_PARTS = 32
    AT_ONCE = 1 << 16       # bytes: a smaller entry is gathered and written by one system call

cdef struct FileHeader:
    char name[8]
    uint32_t version
    uint32_t byte_order
    uint64_t number         # of the entry before the first
    uint64_t checksum       # of the fields above

cdef struct EntryHeader:
    uint64_t checksum       # of the fields below and the body
    char name[4]
    uint32_t kind
    uint64_t number
    uint64_t length         # bytes of the body, a multiple of 8

# One round of one session. Behind it, each given column of its calls: tool, signature, shape,
# result, size, flags; then names.
cdef struct RoundBody:
    int64_t id
    uint64_t text
    uint64_t sketch
    int64_t context_tokens
    int64_t context_limit
    float progress
    float reward
    uint32_t calls
    uint32_t names          # bytes
    int8_t success
    uint8_t event
    uint8_t given           # columns: a sum of the numbers below
    uint8_t unused[5]

cdef enum:
    GIVEN_SHAPE = 1
    GIVEN_RESULT = 2
    GIVEN_SIZE = 4
    GIVEN_FLAGS = 8

HEADER_SIZE = sizeof(FileHeader)
KIND_ROUND = 1              # other kinds are those of `cellium_fast/entries.py`
FSYNC = ("step", "interval", "never")


cdef inline size_t padded(size_t size) noexcept nogil:
    return (size + 7) & ~<size_t> 7


cdef uint64_t checksum_of(const void* bytes, size_t size) except? 0:
    return xxh3_64_intdigest(PyMemoryView_FromMemory(<char*> bytes, size, PyBUF_READ))


cdef bytes file_header(uint64_t number):
    cdef FileHeader header
    memcpy(header.name, b"CELLJRNL", 8)
    header.version = VERSION
    header.byte_order = BYTE_ORDER_MARK
    header.number = number
    header.checksum = checksum_of(&header, sizeof(FileHeader) - sizeof(uint64_t))
    return (<char*> &header)[:sizeof(FileHeader)]


# --- names ---------------------------------------------------------------------------------------
cdef bytes packed_text(text):
    # Python's texts may hold lone surrogates, and be of a class of the user's.
    cdef bytes packed = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass")
    cdef uint32_t size = <uint32_t> PyBytes_GET_SIZE(packed)
    return (<char*> &size)[:sizeof(uint32_t)] + packed


cdef bytes packed_digest(uint64_t digest):
    return (<char*> &digest)[:sizeof(uint64_t)]


def pack_names(dict tools, dict errors, used=()):
    """Texts by their hashes, and the names of tools that were used, as bytes."""
    cdef uint32_t counts[3]
    cdef list parts = []
    counts[0], counts[1], counts[2] = len(tools), len(errors), len(used)
    parts.append((<char*> counts)[:sizeof(counts)])
    for table in (tools, errors):
        for digest, text in (<dict> table).items():
            parts.append(packed_digest(digest))
            parts.append(packed_text(text))
    for text in used:
        parts.append(packed_text(text))
    return b"".join(parts)


cdef class _Names:
    cdef const char* place
    cdef Py_ssize_t left

    cdef const char* take(self, size_t size) except NULL:
        cdef const char* taken = self.place
        if size > <size_t> self.left:
            raise ValueError("names: they end too soon")
        self.place += size
        self.left -= size
        return taken

    cdef str text(self):
        cdef uint32_t size
        memcpy(&size, self.take(sizeof(uint32_t)), sizeof(uint32_t))
        return self.take(size)[:size].decode("utf-8", "surrogatepass")

    cdef dict table(self, uint32_t count):
        cdef uint64_t digest
        cdef dict texts = {}
        for _ in range(count):
            memcpy(&digest, self.take(sizeof(uint64_t)), sizeof(uint64_t))
            texts[digest] = self.text()
        return texts


def unpack_names(const unsigned char[::1] packed):
    """What `pack_names` packed: tools, errors, used; ValueError if these are no names."""
    cdef uint32_t counts[3]
    cdef _Names names = _Names()
    names.left = packed.shape[0]
    names.place = <const char*> &packed[0] if names.left else NULL
    memcpy(counts, names.take(sizeof(counts)), sizeof(counts))
    tools = names.table(counts[0])
    errors = names.table(counts[1])
    return tools, errors, frozenset([names.text() for _ in range(counts[2])])


# --- appending -----------------------------------------------------------------------------------
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
            names = pack_names(tools, errors, used or ())
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
        self.settle(self.write_gathered(KIND_ROUND, padded(length)))

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
        header.checksum = checksum_of(header.name, size - sizeof(uint64_t))
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
                hasher.update(PyMemoryView_FromMemory(
                    <char*> self.parts[i].buf, self.parts[i].len, PyBUF_READ
                ))
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
        raise JournalError(
            self.path, f"an entry could not be written: {os.strerror(problem)}; nothing was changed"
        )

    cdef int settle_sync(self, int64_t end) except -1:
        # If the disk did not take it, nobody knows what it has: the end is what was good before.
        cdef int problem
        with nogil:
            problem = sync_file(self.file)
        self.syncs += 1
        if problem:
            cut_file(self.file, end)
            self.refusal = (
                f"the disk did not take all entries ({os.strerror(problem)}), so nobody knows "
                "which it has; open the directory anew"
            )
            raise JournalError(self.path, f"{self.refusal}. Nothing was changed")
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


# --- reading -------------------------------------------------------------------------------------
cdef class Entries:
    """The entries of a file, one after the other, up to its end or the first that is not good.

    Iterating gives ``(kind, body)``; bodies lie in the file, which stays open as long as one of
    them is held. `replay_rounds` gives rounds in the form in which a `Packer` gives them.

    Attributes
    ----------
    path, size
        The file; its bytes.
    first
        Number of the entry before the first one; -1 if the file has no header.
    number, start, end
        Of the newest entry read, and where that begins and ends.
    problem
        Once it stopped: why, in words; None at the end of the file.
    later
        Whether a good entry comes after what is not good: it is no torn end then.
    address, id, taught, new_tools, new_errors, used
        The newest round replayed: where it is, packed; its session; whether it taught names, and
        which, by their mixed hashes; the tools used for the first time in it, or None.
    """

    has_names = False       # a packer's, which are learned with the round

    cdef readonly object path
    cdef readonly int64_t size
    cdef readonly int64_t first
    cdef readonly int64_t number
    cdef readonly int64_t start
    cdef readonly int64_t end
    cdef readonly object problem
    cdef readonly bint later
    cdef object whole               # memoryview of the file
    cdef const unsigned char[::1] bytes
    cdef Round round
    cdef readonly size_t address
    cdef readonly int64_t id        # of the round's session
    cdef readonly bint taught
    cdef readonly dict new_tools
    cdef readonly dict new_errors
    cdef readonly object used       # a frozenset

    def __init__(self, path):
        self.path = path
        self.address = <size_t> &self.round
        self.first = self.number = -1
        with open(path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            # What is empty cannot be mapped.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        self.whole = memoryview(mapped)
        self.bytes = self.whole
        self.read_header()

    cdef int read_header(self) except -1:
        cdef FileHeader header
        if self.size < <int64_t> sizeof(FileHeader):
            self.problem = "it ends within its header"
            return 0
        memcpy(&header, &self.bytes[0], sizeof(FileHeader))
        if memcmp(header.name, b"CELLJRNL", 8) != 0:
            self.problem = "it does not begin as a journal does"
        elif header.byte_order != BYTE_ORDER_MARK:
            self.problem = "it was written on a machine of another byte order"
        elif header.checksum != checksum_of(&header, sizeof(FileHeader) - sizeof(uint64_t)):
            self.problem = "its header was altered"
        elif header.version != VERSION:
            self.problem = f"it has format version {header.version}; this package knows {VERSION}"
        else:
            self.first = self.number = header.number
            self.end = sizeof(FileHeader)
        return 0

    def __iter__(self):
        return self

    def __next__(self):
        cdef const EntryHeader* entry = self.next_entry()
        if entry == NULL:
            raise StopIteration
        return entry.kind, self.whole[self.end - <int64_t> entry.length : self.end]

    cdef const EntryHeader* next_entry(self) except? NULL:
        cdef const EntryHeader* entry
        if self.problem is not None or self.end == self.size:
            return NULL
        self.problem = self.problem_at(self.end, self.number + 1)
        if self.problem is not None:
            self.later = self.good_after(self.end)
            return NULL
        entry = <const EntryHeader*> &self.bytes[self.end]
        self.number += 1
        self.start = self.end
        self.end += size_of(entry)
        return entry

    cdef object problem_at(self, int64_t offset, int64_t number):
        # What is wrong with the entry there, which should have this number (0: any); or None.
        cdef const EntryHeader* entry = <const EntryHeader*> &self.bytes[offset]
        cdef int64_t left = self.size - offset
        if left < <int64_t> sizeof(EntryHeader):
            return "it ends within the header of an entry"
        if memcmp(entry.name, b"ENTR", 4) != 0:
            return "no entry begins here"
        if entry.length > <uint64_t> left - sizeof(EntryHeader):
            return "it ends within an entry"
        if entry.length % 8 or (
            entry.checksum != checksum_of(entry.name, size_of(entry) - sizeof(uint64_t))
        ):
            return "an entry was altered, or not written as a whole"
        if number and entry.number != <uint64_t> number:
            return f"entry {number} should be here, and it is {entry.number}"
        return None

    cdef bint good_after(self, int64_t offset) except -1:
        # Whether a whole entry with a later number begins anywhere behind.
        cdef int64_t place
        cdef const EntryHeader* entry
        for place in range(offset + 8, self.size - <int64_t> sizeof(EntryHeader) + 1, 8):
            entry = <const EntryHeader*> &self.bytes[place]
            if memcmp(entry.name, b"ENTR", 4) == 0 and entry.number > <uint64_t> self.number:
                if self.problem_at(place, 0) is None:
                    return True
        return False

    # --- rounds ----------------------------------------------------------------------------------
    def replay_rounds(self, take, Py_ssize_t most):
        """Call ``take(id, self)`` with each round of those that come next; returns how many.

        Raises ValueError if one is none, whose checksum is right all the same.
        """
        cdef Py_ssize_t count = 0
        cdef const EntryHeader* entry
        while count < most and self.next_is_round():
            entry = self.next_entry()
            if entry == NULL:
                break
            self.read_round(entry)
            take(self.id, self)
            count += 1
        return count

    cdef bint next_is_round(self):
        cdef const EntryHeader* entry
        if self.problem is not None or self.size - self.end < <int64_t> sizeof(EntryHeader):
            return False
        entry = <const EntryHeader*> &self.bytes[self.end]
        return entry.kind == KIND_ROUND

    cdef int read_round(self, const EntryHeader* entry) except -1:
        cdef const RoundBody* body = <const RoundBody*> (entry + 1)
        cdef const unsigned char* place = <const unsigned char*> (body + 1)
        cdef uint64_t calls, width
        if entry.length < sizeof(RoundBody):
            raise ValueError("a round is too short")
        calls = body.calls
        width = 16 + (8 if body.given & GIVEN_SHAPE else 0) + (
            (8 if body.given & GIVEN_RESULT else 0) + (4 if body.given & GIVEN_SIZE else 0)
            + (1 if body.given & GIVEN_FLAGS else 0)
        )
        if padded(sizeof(RoundBody) + width * calls + body.names) != entry.length:
            raise ValueError("a round is longer or shorter than its calls")
        self.id = body.id
        self.round.calls = calls
        self.round.tool = <const uint64_t*> place
        place += 8 * calls
        self.round.signature = <const uint64_t*> place
        place += 8 * calls
        self.round.shape = <const uint64_t*> place if body.given & GIVEN_SHAPE else NULL
        place += 8 * calls if body.given & GIVEN_SHAPE else 0
        self.round.result = <const uint64_t*> place if body.given & GIVEN_RESULT else NULL
        place += 8 * calls if body.given & GIVEN_RESULT else 0
        self.round.size = <const uint32_t*> place if body.given & GIVEN_SIZE else NULL
        place += 4 * calls if body.given & GIVEN_SIZE else 0
        self.round.flags = <const uint8_t*> place if body.given & GIVEN_FLAGS else NULL
        place += calls if body.given & GIVEN_FLAGS else 0
        self.round.text = body.text
        self.round.sketch = body.sketch
        self.round.context_tokens = body.context_tokens
        self.round.context_limit = body.context_limit
        self.round.progress = body.progress
        self.round.reward = body.reward
        self.round.success = body.success
        self.round.event = body.event
        check_round(&self.round)
        self.taught = body.names != 0
        if self.taught:
            self.new_tools, self.new_errors, self.used = unpack_names(
                self.bytes[place - &self.bytes[0] : place - &self.bytes[0] + body.names]
            )
        else:
            self.used = None
        return 0


cdef inline size_t size_of(const EntryHeader* entry) noexcept nogil:
    return sizeof(EntryHeader) + entry.length


cdef bint is_fraction(float value) noexcept nogil:
    return isnan(value) or 0 <= value <= 1


cdef int check_round(const Round* round) except -1:
    # What kernels trust in.
    cdef Py_ssize_t i
    cdef bint good = (
        is_fraction(round.progress) and is_fraction(round.reward)
        and -1 <= round.success <= 1 and round.event <= EVENT_COMPACTION
    )
    if round.flags != NULL:
        for i in range(round.calls):
            good = good and not bad_flags(round.flags[i])
    if not good:
        raise ValueError("a round holds what no round can")
    return 0
