"""The probability with which an arm is chosen: against closed forms, another quadrature and draws.

Draws are judged by p-values (`sampling_laws`). A right formula fails anywhere in this file with a
probability below `BUDGET`, whatever the seeds.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import sampling_laws as laws
from scipy import integrate, special

from cellium_fast import _philox, _propensity, kernels

BUDGET = 1e-6
CHECKS = 40
LEVEL = BUDGET / CHECKS

EXACT = 1e-8    # what the kernel promises
EXTREMES = (1e-3, 1.0, 1e6)


def propensities(alpha, beta, bias=(0, 0, 0, 0, 0)):
    """Of arms with these shapes; the others are no candidates."""
    arms = len(alpha)
    rows = [np.array([[*values, *[9.0] * 5][:5]], float) for values in (alpha, beta, bias)]
    found = kernels.propensity(*rows[:2], np.array([(1 << arms) - 1], np.uint8), rows[2])[0]
    assert (found[arms:] == 0).all()
    assert found.sum() == pytest.approx(1, abs=1e-15)
    return found[:arms]


# --- Closed forms --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "shapes", [(1.0, 2.0), (1e-3, 3.0, 0.5), (1e6, 1.0, 2e6, 3.0), (1e-3, 1e6, 1.0, 30.0, 0.2)]
)
def test_powers_of_uniforms(shapes):
    # Beta(a, 1) is U^(1 / a): the product of the others' distribution functions is a power.
    expected = np.array(shapes) / sum(shapes)
    assert propensities(shapes, [1.0] * len(shapes)) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("shapes", [(1.0, 2.0), (1e-3, 0.5), (1e6, 3.0), (2e5, 1e6)])
def test_powers_from_above(shapes):
    # Beta(1, b) is 1 - U^(1 / b), the larger if its power of U is the smaller.
    expected = np.array(shapes)[::-1] / sum(shapes)
    assert propensities([1.0, 1.0], shapes) == pytest.approx(expected, abs=EXACT)


def test_whole_shapes(rng):
    # Of two arms; by counting, exactly: Beta(a, b) is the a-th smallest of a + b - 1 uniforms.
    for _ in range(30):
        a, b, c, d = (rng.randrange(1, 30) for _ in range(4))
        total = a + b + c + d - 2
        ways = sum(
            math.comb(a + k - 1, k) * math.comb(total - a - k, c + d - 1 - k)
            for k in range(c, c + d)
        )
        expected = Fraction(ways, math.comb(total, c + d - 1))
        assert propensities([a, c], [b, d])[0] == pytest.approx(float(expected), abs=EXACT)


@pytest.mark.parametrize("ahead", [0.0, 1e-12, 0.03, 0.5, 0.999, 1.0, 1.5])
def test_two_uniforms_and_a_bias(ahead):
    expected = 1 - max(0.0, 1 - ahead) ** 2 / 2
    for bias in ((ahead, 0.0), (ahead - 0.4, -0.4)):
        found = propensities([1.0, 1.0], [1.0, 1.0], bias)
        assert found == pytest.approx([expected, 1 - expected], abs=EXACT)


@pytest.mark.parametrize(("alpha", "beta"), list(itertools.product(EXTREMES, EXTREMES)))
@pytest.mark.parametrize("arms", [2, 3, 5])
def test_equal_arms_are_chosen_equally_often(alpha, beta, arms):
    found = propensities([alpha] * arms, [beta] * arms, [0.25] * arms)
    assert found == pytest.approx([1 / arms] * arms, abs=EXACT)


def test_one_candidate_is_certain():
    masks = np.array([1, 2, 4, 8, 16], np.uint8)
    ones = np.ones((5, 5))
    assert kernels.propensity(ones, ones, masks, ones).tolist() == np.eye(5).tolist()


def test_who_is_out_of_reach_is_never_chosen():
    assert propensities([2, 2, 2], [2, 2, 2], [1.0, 0.0, -1.0]).tolist() == [1, 0, 0]
    found = propensities([2, 3, 2], [2, 2, 2], [0.5, 0.5, -0.5])
    assert found[2] == 0
    assert found[:2] == pytest.approx(propensities([2, 3], [2, 2]), abs=1e-15)


# --- Another quadrature --------------------------------------------------------------------------
def distribution(alpha, beta, draw, rest, logit):
    """F(draw); `rest` is 1 - draw, and logit the draw's, if that is known exactly."""
    if logit is not None and abs(logit) > 600:
        rate, sign = (alpha, 1) if logit < 0 else (beta, -1)
        tail = math.exp(-rate * abs(logit) - math.log(rate) - special.betaln(alpha, beta))
        return tail if sign > 0 else 1 - tail
    if draw <= 0 or rest <= 0:
        return float(rest <= 0)
    if draw < 0.5:
        return special.betainc(alpha, beta, draw)
    return 1 - special.betainc(beta, alpha, rest)


def reference(alpha, beta, bias, arm):
    """The probability of an arm by its draw's logit, adaptively between all kinks and quantiles."""
    others = [k for k in range(len(alpha)) if k != arm]
    a, b = alpha[arm], beta[arm]
    norm = special.betaln(a, b)

    def integrand(logit):
        log_draw, log_rest = special.log_expit(logit), special.log_expit(-logit)
        value = math.exp(a * log_draw + b * log_rest - norm)
        for k in others:
            ahead = bias[arm] - bias[k]
            draw, rest = special.expit(logit) + ahead, special.expit(-logit) - ahead
            value *= distribution(alpha[k], beta[k], draw, rest, None if ahead else logit)
        return value

    mode, spread = math.log(a / b), math.sqrt(1 / a + 1 / b)
    lowest, highest = mode - 9 * spread - 30 / a, mode + 9 * spread + 30 / b
    points = [mode + k * spread for k in (-6, -3, -1, 0, 1, 3, 6)] + [-8, 0, 8]
    points += [lowest / 8, lowest / 64, highest / 8, highest / 64]
    for k in others:
        for place in (0, 1e-9, 1e-4, 0.05, 0.3, 0.5, 0.7, 0.95, 1 - 1e-4, 1 - 1e-9, 1):
            draw = special.betaincinv(alpha[k], beta[k], place) + (bias[k] - bias[arm])
            rest = special.betaincinv(beta[k], alpha[k], 1 - place) - (bias[k] - bias[arm])
            if draw > 0 and rest > 0:
                points.append(math.log(draw / rest))
    points = sorted({point for point in points if lowest < point < highest})
    edges = [lowest, *points, highest]
    # `full_output` keeps it from warning where it asks for more than doubles have.
    return sum(
        integrate.quad(integrand, *ends, epsabs=1e-12, epsrel=1e-9, limit=200, full_output=True)[0]
        for ends in itertools.pairwise(edges)
    )


def some_bias(rng, arms):
    if rng.random() < 0.3:
        return [0.0] * arms
    if rng.random() < 0.5:
        return [rng.choice([0.0, 0.0, 0.02, 0.03, 0.15, 0.2]) for _ in range(arms)]
    return [rng.uniform(-1, 1) * rng.choice([1, 0.1, 1e-3, 1e-6]) for _ in range(arms)]


@pytest.mark.parametrize("powers", [(0, 1.7), (-1, 3), (-3, 0), (-3, 6)])
def test_another_quadrature_agrees(powers, rng):
    for _ in range(12):
        arms = rng.randrange(2, 6)
        alpha, beta = ([10 ** rng.uniform(*powers) for _ in range(arms)] for _ in range(2))
        bias = some_bias(rng, arms)
        expected = [reference(alpha, beta, bias, arm) for arm in range(arms)]
        assert sum(expected) == pytest.approx(1, abs=1e-7)
        found = propensities(alpha, beta, bias)
        assert found == pytest.approx(expected, abs=1e-7), (alpha, beta, bias)


# --- What the sampler does ------------------------------------------------------------------------
DRAWS = 40_000


def rounding_is_rare(alpha, beta):
    """Whether draws hardly ever round to 0 or 1, where the order of actions decides."""
    return min(*alpha, *beta) >= 0.5


def chosen(alpha, beta, candidates, bias, key):
    """The action of each of `DRAWS` ties."""
    rows = [np.tile(np.array(values, float), (DRAWS, 1)) for values in (alpha, beta, bias)]
    masks = np.full(DRAWS, candidates, np.uint8)
    ids = np.arange(DRAWS, dtype=np.uint64)
    return kernels.thompson(*rows[:2], masks, rows[2], key, ids, 1)


def some_tie(rng):
    """Shapes, candidates and bias of five actions that are all chosen now and then."""
    while True:
        alpha, beta = ([10 ** rng.uniform(-0.3, 1.5) for _ in range(5)] for _ in range(2))
        candidates = rng.choice([mask for mask in range(32) if mask.bit_count() > 1])
        bias = some_bias(rng, 5)
        rows = [np.array([values]) for values in (alpha, beta, bias)]
        found = kernels.propensity(*rows[:2], np.array([candidates], np.uint8), rows[2])[0]
        if all(found[arm] > 0.02 for arm in range(5) if candidates >> arm & 1):
            return alpha, beta, candidates, bias, found


def test_the_sampler_chooses_so_often(rng):
    for _ in range(CHECKS // 2):
        alpha, beta, candidates, bias, found = some_tie(rng)
        assert rounding_is_rare(alpha, beta)
        p_value = laws.choices(chosen(alpha, beta, candidates, bias, rng.getrandbits(64)), found)
        assert p_value > LEVEL, (alpha, beta, candidates, bias, found)


@pytest.mark.parametrize("wrong", ["no bias", "bias of others", "shapes", "greedy", "evenly"])
def test_wrong_probabilities_are_noticed(wrong, rng):
    alpha, beta, bias = [3.0, 5.0, 2.0, 4.0, 2.0], [2.0, 4.0, 2.0, 3.0, 2.5], [0, 0.05, 0, 0.1, 0]
    drawn = chosen(alpha, beta, 31, bias, rng.getrandbits(64))
    assert laws.choices(drawn, propensities(alpha, beta, bias)) > LEVEL
    found = {
        "no bias": lambda: propensities(alpha, beta),
        "bias of others": lambda: propensities(alpha, beta, np.negative(bias)),
        "shapes": lambda: propensities(np.add(alpha, 0.3), beta, bias),
        "greedy": lambda: np.eye(5)[3] * 0.99 + 0.002,
        "evenly": lambda: np.full(5, 0.2),
    }[wrong]()
    assert laws.choices(drawn, found) < LEVEL


# --- Any numbers ---------------------------------------------------------------------------------
def test_nothing_is_ever_not_a_number(rng):
    sizes = [5e-324, 1e-300, 1e-20, 1e-3, 0.5, 1.0, 40.0, 1e6, 1e15, 1e300, 1.7e308]
    places = [0.0, -0.0, 5e-324, -1e-300, 1e-17, 0.03, 0.03 + 2**-57, 1.0, 1 - 2**-53, -1, 1.7e308]
    rows = 3_000
    alpha, beta, bias = (
        np.array([[float(rng.choice(given)) for _ in range(5)] for _ in range(rows)])
        for given in (sizes, sizes, [*places, *[-place for place in places]])
    )
    masks = np.array([rng.randrange(1, 32) for _ in range(rows)], np.uint8)
    found = kernels.propensity(alpha, beta, masks, bias)
    assert ((found >= 0) & (found <= 1)).all()
    assert found.sum(axis=1) == pytest.approx(np.ones(rows), abs=1e-15)
    assert (found[(masks[:, None] >> np.arange(5) & 1) == 0] == 0).all()


def test_a_higher_bias_makes_it_likelier(rng):
    for _ in range(50):
        alpha, beta = ([10 ** rng.uniform(-3, 4) for _ in range(3)] for _ in range(2))
        bias = some_bias(rng, 3)
        found = [
            propensities(alpha, beta, [bias[0] + more, *bias[1:]])[0]
            for more in (0, 1e-9, 1e-3, 0.02, 0.3, 1)
        ]
        assert all(one <= other + EXACT for one, other in itertools.pairwise(found))


def test_rows_are_apart(rng):
    alpha, beta = (10 ** rng.arrays.uniform(-1, 2, (40, 5)) for _ in range(2))
    masks = np.array([rng.randrange(1, 32) for _ in range(40)], np.uint8)
    bias = rng.arrays.uniform(-0.1, 0.1, (40, 5))
    together = kernels.propensity(alpha, beta, masks, bias)
    for row in range(40):
        part = slice(row, row + 1)
        alone = kernels.propensity(alpha[part], beta[part], masks[part], bias[part])
        assert alone[0].tolist() == together[row].tolist()
    assert kernels.propensity(alpha, beta, masks, bias, out=alpha) is alpha
    assert alpha.tolist() == together.tolist(), "out may be an argument"


def test_variants_give_the_same_bits(rng):
    alpha, beta = (10 ** rng.arrays.uniform(-3, 6, (60, 5)) for _ in range(2))
    masks = np.array([rng.randrange(1, 32) for _ in range(60)], np.uint8)
    bias = np.array([some_bias(rng, 5) for _ in range(60)])
    found = kernels.propensity(alpha, beta, masks, bias)
    variants = _philox.beta_variants()
    for variant in variants:
        out = np.empty((60, 5))
        _propensity.win_probabilities_with(variant, alpha, beta, masks, bias, out)
        assert out.tobytes() == found.tobytes()
    with pytest.raises(ValueError, match="cannot run variant"):
        _propensity.win_probabilities_with(max(variants) + 1, alpha, beta, masks, bias, found)


# --- The quadrature ------------------------------------------------------------------------------
def test_polynomials_are_integrated_exactly():
    nodes = np.polynomial.legendre.leggauss(16)[0]
    for degree in range(32):
        whole, below = _propensity.gauss_integrals(nodes**degree)
        assert whole == pytest.approx((1 - (-1) ** (degree + 1)) / (degree + 1), abs=4e-15)
        if degree < 16:
            expected = (nodes ** (degree + 1) - (-1) ** (degree + 1)) / (degree + 1)
            assert below == pytest.approx(expected, abs=4e-15)
