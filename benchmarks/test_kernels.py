"""Regression timings of the kernels on arrays of every size."""

import numpy as np
import pytest

from cellium_fast import Action, kernels

ARMS = len(Action)
KEY = 7

# One candidate: nothing to draw. Two, as most ties have. All five.
CANDIDATES = {"calm": 0b00001, "looping": 0b00100, "tied": 0b01001, "all arms": 0b11111}


@pytest.fixture
def chance():
    return np.random.default_rng(KEY)


def test_ema(timed, size, chance):
    values, state = chance.random((2, size))
    out = np.empty(size)
    timed(lambda: kernels.ema(values, state, 0.3, out=out), size)


@pytest.mark.parametrize("population", ["calm", "looping"])
def test_repetition_score(timed, size, chance, population):
    different = 2**63 if population == "calm" else 2
    signatures = chance.integers(1, different, (size, 10)).astype(np.uint64)
    out = np.empty(size)
    timed(lambda: kernels.repetition_score(signatures, out=out), size)


@pytest.mark.parametrize("shape", [0.5, 2.0, 200.0])
def test_sample_beta(timed, size, shape):
    shapes, out = np.full(size, shape), np.empty(size)
    timed(lambda: kernels.sample_beta(shapes, shapes, KEY, out=out), size)


@pytest.mark.parametrize("population", CANDIDATES)
def test_thompson(timed, size, chance, population):
    alpha, beta = 2.0 + 100.0 * chance.random((2, size, ARMS))
    candidates = np.full(size, CANDIDATES[population], np.uint8)
    bias, ids = np.zeros((size, ARMS)), np.arange(size, dtype=np.uint64)
    out = np.empty(size, np.uint8)
    timed(lambda: kernels.thompson(alpha, beta, candidates, bias, KEY, ids, 1, out=out), size)


def test_nstep_returns(timed, size, chance):
    rewards = chance.random((size, 10))
    out = np.empty((size, 10))
    timed(lambda: kernels.nstep_returns(rewards, 3, out=out), size)


def test_decay(timed, size, chance):
    alpha, beta = 2.0 + 100.0 * chance.random((2, size))
    out = np.empty(size), np.empty(size)
    timed(lambda: kernels.decay(alpha, beta, 0.99, 2.0, out=out), size)
