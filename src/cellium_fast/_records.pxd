# The table of addresses that kernels read, for other modules.

cimport records


cdef class Batch:
    cdef records.Batch batch
    cdef list kept
    cdef readonly size_t address
    cdef readonly object sessions
    cdef readonly object policies
    cdef readonly object pools
    cdef size_t where(self, array) except? 0
