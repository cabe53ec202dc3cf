# cython: language_level=3
"""Reading a journal back: its entries one after the other, and what is wrong where they end."""

from libc.math cimport isnan
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from journal_format cimport (
    GIVEN_FLAGS, GIVEN_RESULT, GIVEN_SHAPE, GIVEN_SIZE, KIND_ROUND, OTHER_BYTE_ORDER, VERSION,
    EntryHeader, FileHeader, RoundBody, checksum_of, padded, size_of,
)
from records cimport EVENT_COMPACTION, Round, bad_flags

import mmap
import os

from xxhash import xxh3_64_intdigest

from cellium_fast._journal_names import unpack_names as unpack

cdef enum:
    HASHED_FOR_EACH_BYTE = 8    # looking for a good entry behind a bad one


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
    is_blank
        Whether there is no more than a header that never was whole.
    is_foreign
        Whether it is whole as far as is known, and for another version of this package, or another
        kind of machine, to read: no damage.
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
    cdef readonly bint is_blank
    cdef readonly bint is_foreign
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
            self.is_blank = True
            return 0
        memcpy(&header, &self.bytes[0], sizeof(FileHeader))
        self.is_blank = self.size == sizeof(FileHeader)
        if memcmp(header.name, b"CELLJRNL", 8) != 0:
            self.problem = "it does not begin as a journal does"
            return 0
        if header.byte_order == OTHER_BYTE_ORDER:
            self.problem = "it was written on a machine of another byte order: open it there"
            self.is_foreign = True
        elif header.checksum != checksum_of(
            xxh3_64_intdigest, &header, sizeof(FileHeader) - sizeof(uint64_t)
        ):
            self.problem = "its header was altered"
            return 0
        elif header.version != VERSION:
            self.problem = (
                f"it has format version {header.version}, and this package knows {VERSION}: use "
                "the package that wrote it, or a later one"
            )
            self.is_foreign = True
        else:
            self.first = self.number = header.number
            self.end = sizeof(FileHeader)
        self.is_blank = False
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
            entry.checksum != checksum_of(
                xxh3_64_intdigest, entry.name, size_of(entry) - sizeof(uint64_t)
            )
        ):
            return "an entry was altered, or not written as a whole"
        if number and entry.number != <uint64_t> number:
            return f"entry {number} should be here, and it is {entry.number}"
        return None

    cdef bint good_after(self, int64_t offset) except -1:
        # Whether a whole entry with a later number begins anywhere behind. In a file made to keep
        # this busy, with a header in every place, it is taken for granted: nothing is cut off then.
        cdef int64_t place
        cdef int64_t left = HASHED_FOR_EACH_BYTE * self.size
        cdef const EntryHeader* entry
        for place in range(offset + 8, self.size - <int64_t> sizeof(EntryHeader) + 1, 8):
            entry = <const EntryHeader*> &self.bytes[place]
            if memcmp(entry.name, b"ENTR", 4) == 0 and entry.number > <uint64_t> self.number:
                if entry.length <= <uint64_t> (self.size - place):
                    left -= <int64_t> entry.length
                if left < 0 or self.problem_at(place, 0) is None:
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
            self.new_tools, self.new_errors, self.used = unpack(
                self.bytes[place - &self.bytes[0] : place - &self.bytes[0] + body.names]
            )
        else:
            self.used = None
        return 0


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
