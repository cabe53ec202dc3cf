"""The counter-based generator and the Beta sampler: known answers, and a second writing.

The law and independence of draws: `test_sampler_statistics.py`.
"""

import math
import sys

import numpy as np
import pytest
import reference_random

from cellium_fast import _philox, kernels


def words(counters, key):
    out = np.zeros((len(counters), 4), np.uint32)
    _philox.random_words(np.array(counters, np.uint32), key, out)
    return out


def draws_of(a, b, key, count, counter=0):
    return kernels.sample_beta(np.full(count, a), b, key, counter)


# --- Generator -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0_A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_random123(counter, key, expected):
    assert " ".join(f"{word:08x}" for word in words([counter], key)[0]) == expected


def test_equals_the_second_writing(rng):
    counters = [[rng.getrandbits(32) for _ in range(4)] for _ in range(500)]
    key = rng.getrandbits(64)
    expected = [reference_random.philox(one, (key & 0xFFFFFFFF, key >> 32)) for one in counters]
    assert words(counters, key).tolist() == [list(one) for one in expected]


# --- Sampler against its second writing ----------------------------------------------------------
@pytest.mark.parametrize("a", [1e-3, 0.05, 0.5, 1.0, 1.5, 2.0, 9.0, 400.0, 1e6])
def test_draws_equal_the_second_writing(a, rng):
    key = rng.getrandbits(64)
    for b in (1e-3, 0.2, 1.0, 2.0, 30.0, 1e6):
        counter = rng.getrandbits(63)
        drawn = draws_of(a, b, key, 60, counter)
        expected = [reference_random.beta(a, b, key, counter + i) for i in range(60)]
        np.testing.assert_allclose(drawn, expected, rtol=2e-12, atol=1e-300)


def test_golden_draws():
    # A change here changes every recorded run. The second writing agrees, see above.
    drawn = kernels.sample_beta(
        [2.0, 0.5, 30.0, 1e-3, 1e6, 0.02], [2.0, 0.5, 2.0, 0.2, 1.0, 0.3], key=7
    )
    expected = [
        0.6568189009437172,
        0.6643062673533326,
        0.9253691458591915,
        0.0,
        0.9999976970963654,
        7.893532010809922e-25,
    ]
    np.testing.assert_allclose(drawn, expected, rtol=1e-13)


SHAPE_EDGES = (5e-324, sys.float_info.min, 1.0, sys.float_info.max)
NO_SHAPES = (0.0, -0.0, -5e-324, -1.0, -sys.float_info.max, math.inf, -math.inf, math.nan,
             -math.nan)  # fmt: skip


def test_every_finite_number_above_0_is_a_shape():
    assert _philox.first_no_shape(np.array(SHAPE_EDGES * 3)) == -1
    assert _philox.first_no_shape(np.empty(0)) == -1


@pytest.mark.parametrize("bad", NO_SHAPES)
@pytest.mark.parametrize("place", [0, 1, 7, 10])
def test_the_first_that_is_no_shape_is_found(bad, place):
    values = np.array(SHAPE_EDGES * 3)
    values[[place, 11]] = bad
    assert _philox.first_no_shape(values) == place
