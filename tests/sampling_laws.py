"""Tests of a sampler, as p-values: how likely is what was drawn, or anything stranger, by chance.

What is compared with the Beta law are uniforms: a draw's place in the law, `Places`. Under a right
sampler they are uniform on (0, 1), whatever the shapes.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from scipy import special, stats

SMALLEST = 1e-300       # below, double precision runs out of exponents
LARGEST = 1 - 2.0**-40  # above, it runs out of places: the last dozen bits of 1 - x are missing


class Sample:
    """Draws from Beta(a, b), (N,) float64."""

    def __init__(self, drawn, a, b):
        self.drawn, self.a, self.b = drawn, a, b

    @cached_property
    def places(self):
        """Their `Places`."""
        return Places(self.drawn, self.a, self.b)


class Places:
    """The places of draws from Beta(a, b) in their law, counted from below and from above.

    What rounds to the same number has no place of its own: at the ends, where that is no longer
    rare, a place is chosen at random among those that it could be.
    """

    def __init__(self, drawn, a, b, seed=0):
        self._law = a, b
        self._chance = np.random.default_rng(seed).random(len(drawn))
        self._inside = np.clip(drawn, SMALLEST, LARGEST)
        self._bottom, self._top = drawn < SMALLEST, drawn > LARGEST

    @cached_property
    def below(self):
        """(N,) uniforms."""
        found = special.betainc(*self._law, self._inside)
        top = 1 - self._chance[self._top] * special.betaincc(*self._law, LARGEST)
        found[self._bottom] *= self._chance[self._bottom]
        found[self._top] = top
        return found

    @cached_property
    def above(self):
        """(N,) uniforms, 1 - `below` in full precision."""
        found = special.betaincc(*self._law, self._inside)
        found[self._bottom] = 1 - self.below[self._bottom]
        found[self._top] *= self._chance[self._top]
        return found


# --- One law -------------------------------------------------------------------------------------
def kolmogorov_smirnov(below):
    """Of the largest distance between the distribution functions."""
    return float(stats.kstest(below, stats.uniform.cdf, method="asymp").pvalue)


def anderson_darling(below, above):
    """Of the distance that gives weight to the ends; `above` is 1 - `below` in full precision.

    The statistic is the sum of Z^2 / (j (j + 1)) over j, of normals Z (T. W. Anderson, D. A.
    Darling, "Asymptotic theory of certain goodness of fit criteria based on stochastic
    processes", Annals of Mathematical Statistics 23, 1952). Far out that is the first term, with
    the others as a factor: the product of (1 - 2 / (j (j + 1)))^(-1/2) for j > 1, sqrt(3).
    """
    order = np.argsort(below)
    count = len(order)
    tiny = np.finfo(float).tiny
    below, above = np.maximum(below[order], tiny), np.maximum(above[order][::-1], tiny)
    weights = 2 * np.arange(1, count + 1) - 1
    statistic = -count - float(np.sum(weights * (np.log(below) + np.log(above)))) / count
    return min(1.0, math.sqrt(3) * float(stats.chi2.sf(2 * max(statistic, 0.0), 1)))


def moments(a, b):
    """Mean, variance, skewness and excess kurtosis of Beta(a, b)."""
    total = a + b
    mean, variance = a / total, a / total * b / total / (total + 1)
    skewness = 2 * (b - a) * math.sqrt(total + 1) / ((total + 2) * math.sqrt(a * b))
    kurtosis = 6 * ((a - b) ** 2 * (total + 1) - a * b * (total + 2))
    return mean, variance, skewness, kurtosis / (a * b * (total + 2) * (total + 3))


def of_mean(values, mean, variance, is_normal):
    """Of the mean of numbers in [0, 1] whose law has this mean and variance.

    By the normal law where their sum is normal far into the tails; else by Bernstein's
    inequality, which bounds the p-value of whatever numbers.
    """
    error = abs(float(np.mean(values)) - mean)
    if is_normal:
        return float(2 * stats.norm.sf(error / math.sqrt(variance / len(values))))
    exponent = len(values) * error**2 / (2 * (variance + error / 3))
    return min(1.0, 2 * math.exp(-exponent))


def mean_of(sample):
    """Of the mean, by its exact standard error."""
    mean, variance, skewness, _ = moments(sample.a, sample.b)
    is_normal = abs(skewness) < 0.02 * math.sqrt(len(sample.drawn))
    return of_mean(sample.drawn, mean, variance, is_normal)


def variance_of(sample):
    """Of the mean squared distance from the mean, by its exact standard error."""
    mean, variance, _, kurtosis = moments(sample.a, sample.b)
    spread = variance**2 * (kurtosis + 2)
    return of_mean((sample.drawn - mean) ** 2, variance, spread, abs(kurtosis) < 1.5)


def share(happened, probability):
    """Of a count, by the binomial law."""
    count = int(np.count_nonzero(happened))
    return float(stats.binomtest(count, len(happened), min(probability, 1.0)).pvalue)


# --- Independence --------------------------------------------------------------------------------
def correlation(one, other):
    """Of the correlation of two (N,) columns of uniforms."""
    found = float(np.mean((one - 0.5) * (other - 0.5))) * 12
    return float(2 * stats.norm.sf(abs(found) * math.sqrt(len(one))))


def pairs(one, other, cells=16):
    """Of how often two (N,) columns of uniforms fall into each of so many squared cells."""
    cell = (one * cells).astype(np.int64) * cells + (other * cells).astype(np.int64)
    return even(np.minimum(cell, cells * cells - 1), cells * cells)


def runs(uniform):
    """Of the number of runs above and below one half (Wald and Wolfowitz), one after the other."""
    above = uniform > 0.5
    changes = int(np.count_nonzero(above[1:] != above[:-1]))
    return float(stats.binomtest(changes, len(above) - 1, 0.5).pvalue)


def even(cell, cells):
    """Of how often each cell was met, if all are as likely as each other."""
    return float(stats.chisquare(np.bincount(cell, minlength=cells)).pvalue)


def choices(chosen, probabilities):
    """Of how often each action was chosen; `probabilities` by code."""
    possible = [code for code, one in enumerate(probabilities) if one > 0]
    counts = np.bincount(chosen, minlength=len(probabilities))
    if counts.sum() != counts[possible].sum():
        return 0.0
    expected = np.array([probabilities[code] for code in possible]) * len(chosen)
    return float(stats.chisquare(counts[possible], expected).pvalue)


def duplicates(values, likelihood):
    """Of how many of N values stand there already; `likelihood` of two to be equal by chance."""
    again = len(values) - len(np.unique(values))
    expected = len(values) * (len(values) - 1) / 2 * likelihood
    return float(min(1.0, 2 * min(stats.poisson.sf(again - 1, expected),
                                  stats.poisson.cdf(again, expected))))  # fmt: skip


def highest(alpha, beta, candidates):
    """The probability of each arm that its draw is the highest: what Thompson sampling chooses."""
    found = [0.0] * len(alpha)
    for arm in candidates:
        others = [other for other in candidates if other != arm]
        # By the place of the arm's own draw in its law.
        place = (np.arange(4_000) + 0.5) / 4_000
        drawn = special.betaincinv(alpha[arm], beta[arm], place)
        below = [special.betainc(alpha[other], beta[other], drawn) for other in others]
        found[arm] = float(np.mean(np.prod(below, axis=0)))
    total = sum(found)
    return [one / total for one in found]
