"""Regression timings: the batch step and the kernels over sizes, one scalar step."""

import numpy as np
import pytest

from cellium_fast import Fleet, Round, RoundBatch, ToolCall, kernels


def calm_rounds(count, rng):
    fresh = rng.integers(1, 2**63, count).astype(np.uint64)
    return RoundBatch(
        call_offsets=np.arange(count + 1),
        call_tool=np.ones(count, np.uint64),
        call_signature=fresh,
        call_result=fresh,
        call_size=np.full(count, 500, np.uint32),
        text=fresh,
        context_tokens=np.full(count, 1_000),
    )


@pytest.mark.parametrize("count", [1, 1_000, 100_000])
def test_fleet_step(benchmark, count):
    rng = np.random.default_rng(1)
    fleet = Fleet(seed=1)
    ids = fleet.open(count, context_limit=100_000)
    benchmark.pedantic(
        fleet.step,
        setup=lambda: ((ids, calm_rounds(count, rng)), {}),
        rounds=20,
        warmup_rounds=2,
    )
    benchmark.extra_info["sessions"] = count


def test_session_step(benchmark):
    session = Fleet(seed=1).session(context_limit=100_000)
    round = Round([ToolCall("search", {"query": "a" * 90}, "r" * 1_000)], "text", 1_000)
    benchmark(session.step, round)


@pytest.mark.parametrize("shape", [0.5, 2.0, 200.0])
def test_sample_beta(benchmark, shape):
    shapes = np.full(100_000, shape)
    benchmark(kernels.sample_beta, shapes, shapes, 1)


def test_repetition_score(benchmark):
    signatures = np.random.default_rng(1).integers(1, 4, (100_000, 10)).astype(np.uint64)
    benchmark(kernels.repetition_score, signatures)
