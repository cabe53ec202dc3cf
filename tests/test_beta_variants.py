"""The Beta sampler gives the same bits by every variant, alone or in a batch of any make-up."""

import itertools

import numpy as np
import pytest
import reference_random

from cellium_fast import _philox, kernels

VARIANTS = _philox.beta_variants()
EDGES = (
    5e-324, 1e-300, 1e-20, 1e-3, 0.5, np.nextafter(1, 0), 1.0, np.nextafter(1, 2), 1.000001, 2.0,
    60.0, 1e6, 1e15, 1e155, 1e300, np.finfo(float).max,
)  # fmt: skip
KEY = 0x9E3779B97F4A7C15


def drawn(sampler, alpha, beta, key=KEY, first=0):
    out = np.full(len(alpha), np.nan)
    sampler(np.ascontiguousarray(alpha), np.ascontiguousarray(beta), key, first, out)
    return out


def by(variant):
    return lambda *arguments: _philox.sample_beta_with(variant, *arguments)


def same_bits(one, two):
    return np.array_equal(one.view(np.uint64), two.view(np.uint64))


@pytest.fixture(scope="module")
def shapes():
    edges = np.array(list(itertools.product(EDGES, EDGES)) * 20)
    rng = np.random.default_rng(31)
    wide = 10 ** rng.uniform(-3, 6, (20_000, 2))
    usual = rng.uniform(1, 60, (20_000, 2))
    mixed = rng.permutation(np.concatenate([edges, wide, usual]))
    return mixed[:, 0].copy(), mixed[:, 1].copy()


def test_plain_code_is_always_there():
    assert VARIANTS[0] == 0


@pytest.mark.parametrize("variant", [-1, 3, 99])
def test_a_variant_that_is_not_there_is_refused(variant):
    assert variant not in VARIANTS
    with pytest.raises(ValueError, match=f"cannot run variant {variant}"):
        drawn(by(variant), np.ones(3), np.ones(3))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_has_the_bits_of_single_draws(variant, shapes):
    singly = drawn(_philox.sample_beta_singly, *shapes)
    assert np.all((singly >= 0) & (singly <= 1))
    assert same_bits(drawn(by(variant), *shapes), singly)
    assert same_bits(drawn(_philox.sample_beta, *shapes), singly)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025])
def test_a_draw_does_not_depend_on_its_place(variant, count, shapes):
    whole = drawn(by(variant), *shapes)
    for start in (0, 1, 77, 2_050):
        part = [column[start : start + count] for column in shapes]
        assert same_bits(drawn(by(variant), *part, first=start), whole[start : start + count])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_draw_does_not_depend_on_its_neighbours(variant, shapes):
    alpha, beta = (column.copy() for column in shapes)
    whole = drawn(by(variant), alpha, beta)
    alpha[::2], beta[::2] = 1.0, 1.0        # the shapes that are rejected most
    assert same_bits(drawn(by(variant), alpha, beta)[1::2], whole[1::2])


# Counters whose draws from Beta(1, 1) with the key 2024 take 7 or 8 tries.
STUBBORN = (5_373_684, 8_173_574, 9_549_677, 10_765_030, 11_142_584)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("counter", STUBBORN)
def test_many_tries(variant, counter):
    tries, _, _ = reference_random.accepted_try(1.0, 1.0, 2024, counter)
    assert tries >= 7
    ones = np.ones(200)
    batch = drawn(by(variant), ones, ones, 2024, counter - 100)
    assert same_bits(batch[100:101], drawn(_philox.sample_beta_singly, ones[:1], ones[:1], 2024,
                                           counter))  # fmt: skip
    expected = reference_random.beta(1.0, 1.0, 2024, counter)
    np.testing.assert_allclose(batch[100], expected, rtol=2e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_counter_wraps_around(variant):
    ones = np.ones(40)
    around = drawn(by(variant), ones, ones, first=2**64 - 20)
    assert same_bits(around[20:], drawn(by(variant), ones[:20], ones[:20]))


def test_no_draws():
    assert kernels.sample_beta([], [], 1).shape == (0,)


@pytest.mark.parametrize("shift", [0, 1, -1, 100])
def test_out_may_overlap_the_shapes(shift):
    memory = np.random.default_rng(5).uniform(0.5, 3, 3_000)
    alpha = memory[200:2_200]
    out = memory[200 + shift : 2_200 + shift]
    expected = kernels.sample_beta(alpha.copy(), 2.0, 3)
    assert kernels.sample_beta(alpha, 2.0, 3, out=out) is out
    assert same_bits(out, expected)


def test_shapes_are_left_as_they_are():
    alpha, beta = np.full(300, 0.5), np.full(300, 2.0)
    kernels.sample_beta(alpha, beta, 1)
    assert set(alpha) == {0.5}
    assert set(beta) == {2.0}
