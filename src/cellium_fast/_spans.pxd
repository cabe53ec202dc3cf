# What a batch goes through chunk by chunk, for the modules that are a part of that.

from records cimport Batch

# Works on the sessions [start, stop) of a batch; 0, or a code for what failed there.
ctypedef int (*StageFunction)(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil

cdef enum:
    MOST_STAGES = 16


cdef class Stage:
    cdef StageFunction function
    cdef readonly str name


# A stage made of a C function; modules offer theirs by its name.
cdef Stage stage(StageFunction function, str name)


# Stages that are all C functions.
ctypedef struct Stages:
    Py_ssize_t count        # 0: not all are, or they are too many
    StageFunction functions[MOST_STAGES]


cdef Stages functions_of(tuple stages)

# Take the sessions [start, stop) through the stages, in chunks; the first code that is not 0.
cdef int run_stages(
    const Stages* stages, const Batch* batch, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t chunk,
) noexcept nogil
