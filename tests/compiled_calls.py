"""Calls of the compiled code of users' functions, as the kernels make them, and random features."""

import ctypes

import numpy as np

from cellium_fast import _records

FAILED = "failed"
OUTCOME = np.dtype([
    ("reward", "f8"), ("success", "i8"), ("told", "i8"), ("calls", "i8"), ("decision_stuck", "i8"),
])
ADDRESS = ctypes.c_void_p


def call(compiled, *records):
    """What a compiled function returns for these records, or FAILED."""
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ADDRESS] * (2 + len(records)))(compiled.address)
    returned, error = np.full(1, -1, "i8"), np.zeros(1, "i8")
    addresses = [array.ctypes.data for array in (returned, error, *records)]
    if function(*addresses):
        return FAILED
    if compiled.kind == 0:
        (byte,) = returned.view("u1")[:1].tolist()
        assert byte in (0, 1)
        return bool(byte)
    return returned.view({1: "i8", 2: "f8"}[compiled.kind])[0].item()


def random_features(random, count):
    """Records of all that features can be, with what is at the ends of ranges among it."""
    made = np.zeros(count, _records.FEATURES)
    for name in made.dtype.names:
        column = made[name]
        kind = column.dtype
        if kind.kind == "f":
            column[:] = random.choice([0.0, 1.0, 0.5, 1e-300, 0.1], count)
            drawn = random.random(count) < 0.7
            column[drawn] = random.uniform(-1.0 if "trend" in name else 0.0, 1.0, drawn.sum())
        elif kind.kind == "b":
            column[:] = random.integers(0, 2, count)
        else:
            low, high = np.iinfo(kind).min, np.iinfo(kind).max
            column[:] = random.integers(low, high, column.shape, kind, endpoint=True)
            small = random.random(column.shape) < 0.6
            column[small] = random.integers(0, 6, small.sum())
            column[random.random(column.shape) < 0.05] = high
    return made
