# The table of addresses that kernels read, for other modules.

cimport records


cdef object failure_object(const records.UserFailure* failure)


cdef class Batch:
    cdef records.Batch batch
    cdef records.UserFailure user_failure
    cdef list kept
    cdef Py_ssize_t policy_count
    cdef readonly size_t address
    cdef readonly object sessions
    cdef readonly object policies
    cdef readonly object pools
    cdef readonly object user_code
    cdef readonly object trials
    cdef size_t where(self, array) except? 0
    cdef void look_for_user_code(self) noexcept
