"""The counter-based generator and the Beta sampler: known answers, a second writing, the law."""

import itertools
import math
import sys

import numpy as np
import pytest
import reference_random
from scipy import special, stats

from cellium_fast import _philox, kernels

SHAPES = (1e-3, 1e-2, 0.04, 0.3, 1.0, 1.0000005, 1.5, 2.0, 17.0, 1e3, 1e6)
PAIRS = list(itertools.product(SHAPES, SHAPES))
UNLIKELY = 1e-3 / len(PAIRS)  # Bonferroni: one false alarm in a thousand changes of the sampler
DRAWS = 20_000


def words(counters, key):
    out = np.zeros((len(counters), 4), np.uint32)
    _philox.random_words(np.array(counters, np.uint32), key, out)
    return out


def draws_of(a, b, key, count=DRAWS, counter=0):
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


# --- Law -----------------------------------------------------------------------------------------
def check_law(drawn, a, b):
    """Kolmogorov-Smirnov over the numbers inside (0, 1).

    At 0 and 1 the law has mass within the float resolution, so the two distribution functions
    are compared at the points between; that can only make the distance smaller.
    """
    ordered = np.sort(drawn)
    inside = (ordered > 0) & (ordered < 1)
    theory = special.betainc(a, b, ordered[inside])
    upper = np.arange(1, len(ordered) + 1)[inside] / len(ordered)
    lower = np.arange(len(ordered))[inside] / len(ordered)
    distance = max(np.max(upper - theory, initial=0), np.max(theory - lower, initial=0))
    assert stats.kstwo.sf(distance, len(ordered)) > UNLIKELY, (a, b, distance)


def check_share(happened, probability, what):
    """A count against its exact probability."""
    count = int(np.count_nonzero(happened))
    p_value = stats.binomtest(count, len(happened), min(probability, 1.0)).pvalue
    assert p_value > UNLIKELY / 10, (what, count / len(happened), probability)


@pytest.mark.parametrize("a", SHAPES)
def test_law(a):
    for place, b in enumerate(SHAPES):
        drawn = draws_of(a, b, key=1_000 + place)
        assert np.all((drawn >= 0) & (drawn <= 1))
        check_law(drawn, a, b)
        for cut in (1e-300, 1e-100, 1e-10):
            check_share(drawn < cut, special.betainc(a, b, cut), f"Beta({a}, {b}) < {cut}")
        for cut in (1e-15, 1e-10, 1e-4):
            above = special.betainc(b, a, cut)
            check_share(drawn > 1 - cut, above, f"Beta({a}, {b}) > 1 - {cut}")


@pytest.mark.parametrize("a", SHAPES)
def test_mean_and_variance(a):
    for place, b in enumerate(SHAPES):
        drawn = draws_of(a, b, key=2_000 + place)
        mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
        wide = max(6 * math.sqrt(variance / DRAWS), 4e-3 * mean)
        assert abs(drawn.mean() - mean) < wide, (a, b)
        kurtosis = stats.beta.stats(a, b, moments="k")
        wide = variance * 6 * math.sqrt((float(kurtosis) + 2) / DRAWS)
        assert abs(drawn.var() - variance) < wide, (a, b)


def test_mirrored_shapes_have_the_mirrored_law():
    for a, b in ((0.3, 2.0), (1.5, 17.0), (1e3, 2.0), (0.04, 0.3)):
        mirrored = 1 - draws_of(a, b, key=3)
        drawn = draws_of(b, a, key=4)
        assert stats.ks_2samp(mirrored, drawn).pvalue > 1e-4, (a, b)


def test_mass_at_one_is_what_rounds_to_it():
    # 1 - x < 2^-53 is one; down to 2^-54 a correctly rounded 1 - x may be one too.
    drawn = draws_of(2.0, 1e-3, key=5, count=200_000)
    share = np.mean(drawn == 1.0)
    low, high = (special.betainc(1e-3, 2.0, 2.0**power) for power in (-54, -53))
    noise = 4 * math.sqrt(high * (1 - high) / len(drawn))
    assert low - noise < share < high + noise


EXTREMES = (5e-324, 1e-308, 1e-300, 1e-100, 1e-20, 1e-6, 1e8, 1e20, 1e155, 1e300, 1.7e308,
            sys.float_info.max)  # fmt: skip


@pytest.mark.parametrize("a", EXTREMES)
def test_any_finite_shape_gives_a_number_in_the_unit_interval(a):
    for b in (*EXTREMES, 1.0, 1e-3, 1e6):
        for pair in ((a, b), (b, a)):
            drawn = kernels.sample_beta(np.full(200, pair[0]), pair[1], key=6)
            assert np.all((drawn >= 0) & (drawn <= 1)), pair


def test_tiny_shapes_are_a_coin():
    drawn = draws_of(3e-300, 1e-300, key=8)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    check_share(drawn == 1.0, 0.75, "3 : 1")


# --- Independence --------------------------------------------------------------------------------
def autocorrelation(values, lag):
    values = values - values.mean()
    return float(np.dot(values[:-lag], values[lag:]) / np.dot(values, values))


@pytest.mark.parametrize("shapes", [(2.0, 2.0), (0.3, 4.0), (1e3, 1e3)])
def test_neighbouring_counters_are_independent(shapes):
    drawn = special.betainc(*shapes, draws_of(*shapes, key=9, count=100_000))
    for lag in (1, 2, 3, 4, 5, 16, 256):
        assert abs(autocorrelation(drawn, lag)) < 4.5 / math.sqrt(len(drawn)), lag


def test_neighbouring_keys_are_independent():
    drawn = [draws_of(2.0, 2.0, key=key, count=50_000) for key in range(4)]
    drawn.append(draws_of(2.0, 2.0, key=1 << 32, count=50_000))
    correlations = np.corrcoef(drawn)[np.triu_indices(len(drawn), 1)]
    assert np.abs(correlations).max() < 4.5 / math.sqrt(50_000)


def test_a_draw_is_a_function_of_key_counter_and_shapes():
    whole = draws_of(0.7, 3.0, key=10, count=100)
    assert np.array_equal(whole[40:], draws_of(0.7, 3.0, key=10, count=60, counter=40))
    assert kernels.sample_beta(0.7, 3.0, 10, 99) == whole[99]
    assert len(set(whole)) == 100
    assert not np.any(whole == draws_of(0.7, 3.0, key=11, count=100))
