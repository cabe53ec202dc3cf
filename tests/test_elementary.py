"""The sampler's own logarithm, exponential, sine and cosine against those of Python.

Against exact values they are off by at most 1.1, 1.0, 1.6 and 1.6 units in the last place; here
the rounding of Python's own, and of its pi / 2, comes on top.
"""

import math
import sys

import numpy as np
import pytest

from cellium_fast import _philox

TINY = sys.float_info.min


def logs(xs):
    return _philox.elementary(np.array(xs, float))[0]


def exponentials(xs):
    return _philox.elementary(np.array(xs, float))[1]


def check(xs, found, expected, units):
    for x, one, right in zip(xs, found, expected, strict=True):
        assert abs(one - right) <= units * math.ulp(right), (x, one, right)


def test_log(rng):
    xs = [2.0 ** rng.uniform(-1022, 1023) for _ in range(5_000)]
    xs += [2.0 ** rng.uniform(-66, 0) for _ in range(5_000)]
    xs += [rng.uniform(0.5, 2) for _ in range(20_000)]
    xs += [1 + rng.choice((-1, 1)) * 2.0 ** rng.uniform(-53, -1) for _ in range(5_000)]
    check(xs, logs(xs), map(math.log, xs), 2)


def test_log_at_edges():
    root = math.sqrt(0.5)
    xs = [TINY, 2.0**-64, 2.0**-53, math.nextafter(root, 0), root, math.nextafter(root, 1), 0.5,
          math.nextafter(1, 0), math.nextafter(1, 2), 2 * root, 2.0, 1e300,
          sys.float_info.max]  # fmt: skip
    check(xs, logs(xs), map(math.log, xs), 2)
    assert logs([1.0]) == [0.0]


def test_exponential(rng):
    xs = [-rng.uniform(0, 708) for _ in range(10_000)]
    xs += [-(2.0 ** rng.uniform(-60, 2)) for _ in range(10_000)]
    check(xs, exponentials(xs), map(math.exp, xs), 2)


def test_exponential_at_edges():
    xs = [0.0, -0.0, -5e-324, -1e-20, -math.log(2) / 2, -math.log(2), -708.0, -708.5, -720.0,
          -744.0, -745.0, -745.13, -745.14, -746.0, -750.0, -1e5, -1e302]  # fmt: skip
    check(xs, exponentials(xs), map(math.exp, xs), 2)
    assert exponentials([0.0, -math.inf, -sys.float_info.max]) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(("place", "function", "units"), [(2, math.sin, 3), (3, math.cos, 3)])
def test_sine_and_cosine_of_a_quarter(place, function, units, rng):
    xs = [rng.uniform(-0.5, 0.5) for _ in range(20_000)]
    xs += [-0.5, 0.5, 0.0, -(2.0**-31), 2.0**-31, 0.5 - 2.0**-31, 1e-300]
    found = _philox.elementary(np.array(xs))[place]
    check(xs, found, [function(math.pi / 2 * x) for x in xs], units)
