# Python objects to packed records: what one tool call and one round become.

from libc.stdint cimport uint8_t, uint32_t, uint64_t


# One tool call, packed; the columns of a RoundBatch hold these fields.
ctypedef struct CallRecord:
    uint64_t tool           # hash of the name
    uint64_t signature      # hash of the name and the canonical arguments
    uint64_t shape          # the same without the values of volatile fields
    uint64_t result         # hash of the result text, masked for an error
    uint32_t size           # characters of the result text
    uint8_t flags
