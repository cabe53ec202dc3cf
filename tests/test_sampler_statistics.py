"""The sampler's law and independence, on every path that a draw takes.

Each check is a p-value (`sampling_laws`) and fails below `LEVEL`. A right sampler, whatever its
seed, fails anywhere in this file with a probability below `BUDGET`; seeds are fixed all the same,
so that a failure comes again. The last part has samplers that are wrong on purpose: every kind of
check is shown to fail on one of them.
"""

import itertools
import math
import sys

import numpy as np
import pytest
import sampling_laws as laws
from conftest import tying_policy
from scipy import special, stats

from cellium_fast import Action, Fleet, Posterior, Round, RoundBatch, _philox, kernels

BUDGET = 1e-6       # probability that a right sampler fails in this file
MOST_CHECKS = 20_000
LEVEL = BUDGET / MOST_CHECKS

SHAPES = (1e-3, 1e-2, 0.04, 0.3, 1.0, 1.0000005, 1.5, 2.0, 17.0, 1e3, 1e6)
TYPICAL = ((1e-3, 1e-3), (0.04, 2.0), (0.3, 0.3), (1.0, 1.0), (2.0, 2.0), (1.5, 17.0), (1e3, 1e6))
DRAWS = 10_000
MANY = 10_000_000


class Verdict:
    """Says no to p-values below the level, and counts how often it was asked."""

    def __init__(self):
        self.asked = 0

    def __call__(self, p_value, *what):
        self.asked += 1
        assert p_value > LEVEL, (*what, p_value)


@pytest.fixture(scope="module")
def judge():
    verdict = Verdict()
    yield verdict
    assert verdict.asked <= MOST_CHECKS, "more checks than the level of each allows for"


# --- The paths of a draw -------------------------------------------------------------------------
def by_kernel(a, b, count, key):
    return kernels.sample_beta(np.full(count, float(a)), b, key)


def shapes_of(a, b, count):
    return np.full(count, float(a)), np.full(count, float(b))


def singly(a, b, count, key):
    out = np.empty(count)
    _philox.sample_beta_singly(*shapes_of(a, b, count), key, 0, out)
    return out


def by_variant(variant):
    def draw(a, b, count, key):
        out = np.empty(count)
        _philox.sample_beta_with(variant, *shapes_of(a, b, count), key, 0, out)
        return out

    return draw


ARMS = [Action.CONTINUE, Action.RETRY, Action.REDIRECT]


def tying_fleet(a, b, key):
    pools = {"only": Posterior(alpha=a, beta=b)}
    return Fleet(seed=key, policies={"only": tying_policy(ARMS)}, pools=pools)


def by_ties_of_a_batch(a, b, count, key):
    fleet = tying_fleet(a, b, key)
    sessions = -(-count // 3)
    return fleet.step(fleet.open(sessions), RoundBatch()).draws[:, ARMS].ravel()[:count]


def by_ties_of_sessions(a, b, count, key):
    fleet = tying_fleet(a, b, key)
    drawn = []
    while len(drawn) < count:
        # Nothing is learned from before the third round.
        decision = fleet.session().step(Round())
        drawn += [decision.draws[arm] for arm in ARMS]
    return np.array(drawn[:count])


PATHS = {
    "kernel": by_kernel,
    "one after the other": singly,
    **{f"variant {variant}": by_variant(variant) for variant in _philox.beta_variants()},
    "ties of a batch": by_ties_of_a_batch,
    "ties of sessions": by_ties_of_sessions,
}


# --- Law -----------------------------------------------------------------------------------------
def below(cut):
    return lambda sample: laws.share(sample.drawn < cut, special.betainc(sample.a, sample.b, cut))


def above(cut):
    return lambda sample: laws.share(
        sample.drawn > 1 - cut, special.betainc(sample.b, sample.a, cut)
    )


ONE_LAW = {
    "Kolmogorov-Smirnov": lambda sample: laws.kolmogorov_smirnov(sample.places.below),
    "Anderson-Darling": lambda sample: laws.anderson_darling(
        sample.places.below, sample.places.above
    ),
    "mean": laws.mean_of,
    "variance": laws.variance_of,
    **{f"below {cut}": below(cut) for cut in (1e-300, 1e-100, 1e-10, 1e-3)},
    **{f"above 1 - {cut}": above(cut) for cut in (1e-12, 1e-10, 1e-3)},
}


def check_law(judge, drawn, a, b, path="kernel"):
    assert np.all((drawn >= 0) & (drawn <= 1)), (a, b)
    sample = laws.Sample(drawn, a, b)
    for name, check in ONE_LAW.items():
        judge(check(sample), name, path, a, b)


@pytest.mark.parametrize("a", SHAPES)
def test_law(a, judge):
    for place, b in enumerate(SHAPES):
        check_law(judge, by_kernel(a, b, DRAWS, 1_000 + place), a, b)


@pytest.mark.parametrize("path", [name for name in PATHS if name != "kernel"])
def test_law_on_every_path(path, judge):
    count = 3_000 if path == "ties of sessions" else DRAWS
    for place, (a, b) in enumerate(TYPICAL):
        check_law(judge, PATHS[path](a, b, count, 50 + place), a, b, path)


@pytest.mark.long
@pytest.mark.parametrize(("a", "b"), [*TYPICAL, (1e6, 1e6), (1e6, 1e-3), (0.071, 0.4222)])
def test_law_of_many_draws(a, b, judge):
    check_law(judge, by_kernel(a, b, MANY, 77), a, b)


@pytest.mark.long
def test_tails_of_a_hundred_million_draws(judge):
    sample = laws.Sample(by_kernel(2.0, 2.0, 10 * MANY, 78), 2.0, 2.0)
    for cut in (1e-7, 1e-5, 1e-3):
        judge(below(cut)(sample), cut)
        judge(above(cut)(sample), 1 - cut)
    judge(laws.mean_of(sample))
    judge(laws.variance_of(sample))


def test_mirrored_shapes_have_the_mirrored_law(judge):
    for a, b in ((0.3, 2.0), (1.5, 17.0), (1e3, 2.0), (0.04, 0.3), (1e6, 1e3)):
        mirrored = 1 - by_kernel(a, b, DRAWS, key=3)
        drawn = by_kernel(b, a, DRAWS, key=4)
        judge(float(stats.ks_2samp(mirrored, drawn).pvalue), a, b)


def test_mass_at_one_is_what_rounds_to_it(judge):
    # 1 - x < 2^-53 is one; down to 2^-54 a correctly rounded 1 - x may be one too.
    drawn = by_kernel(2.0, 1e-3, 200_000, key=5)
    low, high = (special.betainc(1e-3, 2.0, 2.0**power) for power in (-54, -53))
    count = int(np.count_nonzero(drawn == 1.0))
    judge(float(stats.binom.sf(count - 1, len(drawn), high)), "at most")
    judge(float(stats.binom.cdf(count, len(drawn), low)), "at least")


EXTREMES = (5e-324, 1e-308, 1e-300, 1e-100, 1e-20, 1e-8, 1e-6, 1e8, 1e9, 1e15, 1e20, 1e155, 1e300,
            1e308, sys.float_info.max)  # fmt: skip


@pytest.mark.parametrize("a", EXTREMES)
def test_any_finite_shape_gives_a_number_in_the_unit_interval(a):
    for b in (*EXTREMES, 1.0, 1e-3, 1e6):
        for pair in ((a, b), (b, a)):
            drawn = by_kernel(*pair, 200, key=6)
            assert np.all((drawn >= 0) & (drawn <= 1)), pair


def test_tiny_shapes_are_a_coin(judge):
    drawn = by_kernel(3e-300, 1e-300, DRAWS, key=8)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    judge(laws.share(drawn == 1.0, 0.75), "3 : 1")


# --- B62 and B63 ---------------------------------------------------------------------------------
# Bounds and numbers of draws as the cases have them, so that another seed may fail by chance.
KERNELS = {name: draw for name, draw in PATHS.items() if not name.startswith("ties")}
TINY = ((1e-8, 1e-8), (1e-300, 1e-300), (1e-3, 3e-3), (0.0710, 0.4222), (1e9, 1.0), (1e15, 1e15))


@pytest.mark.parametrize("path", KERNELS)
@pytest.mark.parametrize(("a", "b"), TINY)
def test_tiny_and_huge_parameters(path, a, b):
    drawn = KERNELS[path](a, b, 100_000, 62)
    assert np.all(np.isfinite(drawn) & (drawn >= 0) & (drawn <= 1))
    mean = a / (a + b)
    error = math.sqrt(mean * (b / (a + b)) / (a + b + 1) / len(drawn))
    # Where the law is narrower than the numbers are apart, half of the last place besides.
    assert abs(drawn.mean() - mean) <= 4 * error + 2.0**-53


@pytest.mark.parametrize("bad", [0, -1, -0.0, math.nan, math.inf, -math.inf])
def test_parameters_of_no_law_are_refused(bad):
    one = np.ones((1, 5))
    no = np.full((1, 5), float(bad))
    rest = np.array([3], np.uint8), np.zeros((1, 5)), 7, np.array([0], np.uint64), 1
    for draw in (
        lambda: kernels.sample_beta(bad, 1.0, 7), lambda: kernels.sample_beta(1.0, bad, 7),
        lambda: kernels.thompson(no, one, *rest), lambda: kernels.thompson(one, no, *rest),
        lambda: Posterior(alpha=bad), lambda: Posterior(beta=bad),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"alpha|beta"):
            draw()


def by_every_kernel(a, b, count, key):
    """What all kernels draw: the same, to the last bit."""
    drawn = [draw(a, b, count, key) for draw in KERNELS.values()]
    for other in drawn[1:]:
        assert np.array_equal(drawn[0].view(np.uint64), other.view(np.uint64))
    return drawn[0]


@pytest.mark.parametrize("a", [0.05, 0.3, 1.0, 2.0, 50.0, 5e3])
def test_no_bias_in_the_law(a):
    for place, b in enumerate((0.05, 0.3, 1.0, 2.0, 50.0, 5e3)):
        drawn = by_every_kernel(a, b, 100_000, 6_300 + place)
        assert laws.kolmogorov_smirnov(laws.Places(drawn, a, b).below) > 1e-3, (a, b)


def test_no_bias_in_the_left_tail():
    drawn = by_every_kernel(0.001, 0.001, 100_000, 63)
    expected = stats.beta(0.001, 0.001).cdf(1e-100)
    error = math.sqrt(expected * (1 - expected) / len(drawn))
    assert abs(np.mean(drawn < 1e-100) - expected) < 3 * error


# --- Words ---------------------------------------------------------------------------------------
def words_of(counters, key):
    out = np.zeros((len(counters), 4), np.uint32)
    _philox.random_words(np.ascontiguousarray(counters, np.uint32), key, out)
    return out


def counters(place, count):
    """So many counters that differ in one of their four words."""
    made = np.zeros((count, 4), np.uint32)
    made[:, place] = np.arange(count)
    return made


def words_are_even(words):
    """Of the values of each byte, the least likely of 16."""
    values = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 16)
    return min(1.0, 16 * min(laws.even(column, 256) for column in values.T))


def words_are_serially_even(words):
    """Of the values of pairs of bytes: of neighbouring words, and of one word and its next one."""
    first = (words >> 24).astype(np.int64)
    within = laws.even(first.ravel()[:-1] << 8 | first.ravel()[1:], 1 << 16)
    between = laws.even((first[:-1] << 8 | first[1:]).ravel(), 1 << 16)
    return min(1.0, 2 * min(within, between))


def bits_are_fair(words):
    """Of the ones at each place, the least likely of 128."""
    places = np.unpackbits(np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 16), 1)
    return min(1.0, 128 * min(laws.share(place, 0.5) for place in places.T))


def words_differ(words):
    """Of words that come again."""
    return laws.duplicates(words.ravel(), 2.0**-32)


WORDS = {
    "even": words_are_even, "serially even": words_are_serially_even, "fair": bits_are_fair,
    "different": words_differ,
}  # fmt: skip


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_words(place, key, judge):
    words = words_of(counters(place, 1 << 16), key)
    for name, check in WORDS.items():
        judge(check(words), name, place, key)


@pytest.mark.long
@pytest.mark.parametrize("place", range(4))
def test_many_words(place, judge):
    words = words_of(counters(place, 1 << 24), 5)
    for name, check in WORDS.items():
        judge(check(words), name, place)


# --- Independence --------------------------------------------------------------------------------
TOGETHER = {"correlation": laws.correlation, "pairs": laws.pairs}


def check_together(judge, one, other, *what):
    for name, check in TOGETHER.items():
        judge(check(one.ravel(), other.ravel()), name, *what)


@pytest.mark.parametrize("shapes", [(2.0, 2.0), (0.3, 4.0), (1e3, 1e3)])
@pytest.mark.parametrize("path", KERNELS)
def test_neighbouring_counters_are_independent(path, shapes, judge):
    uniform = laws.Places(KERNELS[path](*shapes, 100_000, 9), *shapes).below
    judge(laws.runs(uniform), "runs")
    for lag in (1, 2, 3, 4, 5, 16, 256):
        check_together(judge, uniform[lag:], uniform[:-lag], path, shapes, lag)


def test_neighbouring_keys_are_independent(judge):
    keys = (0, 1, 2, 3, 1 << 32, 1 << 63, 2**64 - 1)
    drawn = [laws.Places(by_kernel(2.0, 2.0, 50_000, key), 2.0, 2.0).below for key in keys]
    for one, other in itertools.combinations(range(len(keys)), 2):
        check_together(judge, drawn[one], drawn[other], keys[one], keys[other])


SESSIONS, ROUNDS = 3_000, 8


@pytest.fixture(scope="module", params=[11, 12])
def ties(request):
    """(rounds, sessions, arms) places of what a fleet draws, its pool learning all the while."""
    fleet = tying_fleet(2.0, 3.0, request.param)
    ids = fleet.open(SESSIONS)
    found = np.empty((ROUNDS, SESSIONS, len(ARMS)))
    for made in found:
        before = fleet.posterior()
        drawn = fleet.step(ids, RoundBatch()).draws
        for place, arm in enumerate(ARMS):
            shapes = before["alpha"][arm], before["beta"][arm]
            made[:, place] = laws.Places(drawn[:, arm], *shapes).below
    assert fleet.posterior()["updates"].sum() == SESSIONS * (ROUNDS - 3)
    return found


def test_ties_have_the_law_while_the_pool_learns(ties, judge):
    for place, arm in enumerate(ARMS):
        below = ties[:, :, place].ravel()
        judge(laws.kolmogorov_smirnov(below), arm)
        judge(laws.anderson_darling(below, 1 - below), arm)


def test_sessions_rounds_and_arms_are_independent(ties, judge):
    for axis, what in enumerate(("rounds", "sessions", "arms")):
        for lag in (1, 2):
            moved = np.moveaxis(ties, axis, 0)
            check_together(judge, moved[lag:], moved[:-lag], what, lag)
    # Sums that would show a counter put together so that session, round and arm can meet.
    check_together(judge, ties[1:, :-1], ties[:-1, 1:], "the next round of the last session")
    check_together(judge, ties[1:, :, :-1], ties[:-1, :, 1:], "the next round of the last arm")
    for order in ("rounds first", "sessions first"):
        flat = ties if order == "rounds first" else np.swapaxes(ties, 0, 1)
        judge(laws.runs(flat.ravel()), "runs", order)


def draws_differ(drawn):
    """Of draws from Beta(2, 2) that come again; two are equal by chance once in 2^52, or less."""
    return laws.duplicates(drawn, 2.0**-52)


def test_no_draw_comes_again(judge):
    fleet = tying_fleet(2.0, 2.0, 13)
    ids = fleet.open(2_000)
    # Nothing is learned before the third round.
    drawn = [fleet.step(ids, RoundBatch()).draws[:, ARMS] for _ in range(2)]
    judge(draws_differ(np.concatenate(drawn).ravel()), "ties")
    for path, draw in KERNELS.items():
        judge(draws_differ(draw(2.0, 2.0, DRAWS, 14)), path)


def test_a_draw_is_a_function_of_key_counter_and_shapes():
    whole = by_kernel(0.7, 3.0, 100, key=10)
    assert np.array_equal(whole[40:], kernels.sample_beta(np.full(60, 0.7), 3.0, 10, 40))
    assert kernels.sample_beta(0.7, 3.0, 10, 99) == whole[99]
    assert len(set(whole)) == 100
    assert not np.any(whole == by_kernel(0.7, 3.0, 100, key=11))


# --- Thompson sampling: the highest draw ---------------------------------------------------------
POSTERIORS = (
    ([2.0] * 5, [2.0] * 5),
    ([3.0, 2.5, 2.0, 6.0, 0.5], [2.0, 2.0, 3.0, 5.0, 0.7]),
    ([0.3, 0.05, 1.0, 1.0, 0.7], [0.4, 0.5, 20.0, 1.0, 0.5]),
    ([400.0, 390.0, 1e3, 5.0, 2.0], [400.0, 400.0, 1e3, 4.0, 2.5]),
)


def by_thompson(alpha, beta, candidates, count, key):
    rows = [np.tile(np.array(side), (count, 1)) for side in (alpha, beta)]
    mask = np.full(count, sum(1 << arm for arm in candidates), np.uint8)
    ids = np.arange(count, dtype=np.uint64)
    return kernels.thompson(*rows, mask, np.zeros((count, 5)), key, ids, 1)


def chosen_by_law(choose, alpha, beta, candidates, count=40_000, key=15):
    chosen = choose(alpha, beta, candidates, count, key)
    return laws.choices(chosen, laws.highest(alpha, beta, candidates))


@pytest.mark.parametrize("candidates", [(0, 1), (1, 2), (0, 1, 2), (0, 1, 2, 3, 4), (3, 4)])
def test_each_arm_is_chosen_as_often_as_its_draw_is_the_highest(candidates, judge):
    for alpha, beta in POSTERIORS:
        judge(chosen_by_law(by_thompson, alpha, beta, candidates), candidates, alpha, beta)


def test_a_fleet_chooses_as_often(judge):
    fleet = tying_fleet(1.0, 1.0, 16)
    alpha, beta = (np.array(side) for side in POSTERIORS[1])
    fleet._memory.pools["alpha"], fleet._memory.pools["beta"] = alpha, beta
    chosen = fleet.step(fleet.open(40_000), RoundBatch(), want=[]).action
    judge(laws.choices(chosen, laws.highest(alpha, beta, ARMS)))


# --- What the checks are worth -------------------------------------------------------------------
def test_p_values_are_what_they_say(judge):
    # Of a right sampler, NumPy's: as many below one in a hundred as there should be, or fewer.
    rng = np.random.default_rng(17)
    found = {name: [] for name in (*ONE_LAW, "runs", "correlation", "pairs")}
    for _ in range(200):
        sample = laws.Sample(rng.beta(1.5, 3.0, 600), 1.5, 3.0)
        for name in ("Kolmogorov-Smirnov", "Anderson-Darling", "mean", "variance"):
            found[name].append(ONE_LAW[name](sample))
        uniform = sample.places.below
        found["runs"].append(laws.runs(uniform))
        found["correlation"].append(laws.correlation(uniform[1:], uniform[:-1]))
        found["pairs"].append(laws.pairs(uniform[1:], uniform[:-1], cells=8))
    for name, p_values in found.items():
        if p_values:
            low = sum(p_value < 0.01 for p_value in p_values)
            judge(float(stats.binom.sf(low - 1, len(p_values), 0.011)), name)
            assert len(set(p_values)) > 1, name


def left_tail_clipped(a, b, count, key):
    """U^(1/a) as a power that cannot be below 1e-50."""
    rng = np.random.default_rng(key)
    first = np.maximum(rng.random(count) ** (1 / a), 1e-50)
    second = np.maximum(rng.random(count) ** (1 / b), 1e-50)
    return first / (first + second)


def shape_off_by_one_percent(a, b, count, key):
    return by_kernel(a * 1.01, b, count, key)


def shapes_swapped(a, b, count, key):
    return by_kernel(b, a, count, key)


def single_precision(a, b, count, key):
    return by_kernel(a, b, count, key).astype(np.float32).astype(float)


def counters_used_twice(a, b, count, key):
    return np.repeat(by_kernel(a, b, count // 2, key), 2)


def never_above_the_median(a, b, count, key):
    return np.minimum(by_kernel(a, b, count, key), stats.beta(a, b).median())


def too_narrow(a, b, count, key):
    return by_kernel(a * 1.02, b * 1.02, count, key)


WRONG = [
    ("Kolmogorov-Smirnov", shape_off_by_one_percent, 2.0, 2.0, 1_000_000),
    ("Anderson-Darling", shape_off_by_one_percent, 2.0, 2.0, 1_000_000),
    ("mean", shape_off_by_one_percent, 2.0, 2.0, 1_000_000),
    ("variance", too_narrow, 2.0, 2.0, 1_000_000),
    ("Kolmogorov-Smirnov", shapes_swapped, 2.0, 2.2, DRAWS),
    ("Anderson-Darling", shapes_swapped, 2.0, 2.2, DRAWS),
    ("mean", shapes_swapped, 1.5, 17.0, DRAWS),
    ("above 1 - 0.001", never_above_the_median, 2.0, 0.3, DRAWS),
    ("Kolmogorov-Smirnov", left_tail_clipped, 1e-3, 1e-3, 2 * DRAWS),
    ("Anderson-Darling", left_tail_clipped, 1e-3, 1e-3, 2 * DRAWS),
    ("below 1e-300", left_tail_clipped, 1e-3, 1e-3, 2 * DRAWS),
    ("below 1e-100", left_tail_clipped, 1e-3, 1e-3, 2 * DRAWS),
    ("below 1e-10", shapes_swapped, 0.04, 0.3, DRAWS),
    ("below 0.001", shapes_swapped, 0.3, 2.0, DRAWS),
    ("below 1e-300", single_precision, 1e-3, 1e-3, DRAWS),
    ("above 1 - 1e-12", single_precision, 2.0, 0.3, 500_000),
    ("above 1 - 1e-10", single_precision, 2.0, 0.3, 500_000),
]  # fmt: skip


@pytest.mark.parametrize(("check", "sampler", "a", "b", "count"), WRONG)
def test_a_wrong_law_is_found(check, sampler, a, b, count):
    wrong, right = (laws.Sample(draw(a, b, count, 18), a, b) for draw in (sampler, by_kernel))
    assert ONE_LAW[check](wrong) < LEVEL
    assert ONE_LAW[check](right) > LEVEL


def test_every_check_of_a_law_was_seen_to_fail():
    assert {row[0] for row in WRONG} == set(ONE_LAW)


def test_draws_that_hang_together_are_found():
    uniform = laws.Places(counters_used_twice(2.0, 2.0, 100_000, 19), 2.0, 2.0).below
    assert laws.runs(uniform) < LEVEL
    assert laws.correlation(uniform[1:], uniform[:-1]) < LEVEL
    assert laws.pairs(uniform[1:], uniform[:-1]) < LEVEL
    # Dependent, but not correlated.
    folded = np.abs(2 * uniform - 1)
    assert laws.correlation(folded, uniform) > LEVEL
    assert laws.pairs(folded, uniform) < LEVEL


def test_draws_that_come_again_are_found():
    assert draws_differ(counters_used_twice(2.0, 2.0, DRAWS, 20)) < LEVEL
    assert draws_differ(single_precision(2.0, 2.0, DRAWS, 20)) < LEVEL


def test_words_that_are_not_random_are_found():
    right = words_of(counters(0, 1 << 16), 21)
    stuck, related, repeated = right.copy(), right.copy(), right.copy()
    stuck[:, 2] |= np.uint32(1 << 7)
    related[:, 1] = related[:, 0] ^ np.uint32(0xFFFF)
    repeated[1::16] = repeated[::16]
    assert words_are_even(stuck) < LEVEL
    assert bits_are_fair(stuck) < LEVEL
    assert words_are_serially_even(related) < LEVEL
    assert words_differ(repeated) < LEVEL


def test_wrong_choices_are_found():
    def by_swapped(alpha, beta, *rest):
        return by_thompson(beta, alpha, *rest)

    def by_one_draw_for_all_arms(alpha, beta, candidates, count, key):
        uniform = np.random.default_rng(key).random(count)
        drawn = [special.betaincinv(alpha[arm], beta[arm], uniform) for arm in candidates]
        return np.array(candidates)[np.argmax(drawn, axis=0)]

    for wrong in (by_swapped, by_one_draw_for_all_arms):
        assert chosen_by_law(wrong, *POSTERIORS[1], (0, 1, 2)) < LEVEL
