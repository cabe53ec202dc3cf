"""What the regression timings share: sizes, and how often each is timed."""

from collections.abc import Callable

import pytest

SIZES = (1, 1_000, 100_000, 1_000_000)
RUNS = {1: 200, 1_000: 100, 100_000: 15, 1_000_000: 3}


@pytest.fixture(params=SIZES, ids=lambda size: f"{size:_}")
def size(request):
    """How many sessions, rows, draws or rounds."""
    return request.param


@pytest.fixture
def timed(benchmark):
    """Times `run(*prepare())`, more often the smaller it is, and notes the time of one thing."""

    def take(run: Callable, size: int, prepare: Callable[[], tuple] = tuple, **noted) -> None:
        runs = next(runs for least, runs in reversed(RUNS.items()) if size >= least)
        benchmark.pedantic(
            run, setup=lambda: (prepare(), {}), rounds=runs, warmup_rounds=1, iterations=1
        )
        benchmark.extra_info.update(size=size, **noted)
        if not benchmark.disabled:
            benchmark.extra_info["ns_each"] = benchmark.stats.stats.median * 1e9 / size

    return take
