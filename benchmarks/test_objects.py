"""Regression timings where Python objects and texts come in or go out."""

from itertools import cycle, islice

import pytest

from cellium_fast import Fleet, HardConstraintRenderer, RoundBatch, traces
from cellium_fast.bench.populations import CONTEXT_LIMIT, Herd, Population
from cellium_fast.bench.single import rounds_of_objects
from cellium_fast.bench.texts import write_conversations
from cellium_fast.replay import replay

ARGUMENTS = ("values", "text")


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_session_step(benchmark, arguments):
    session = Fleet(threads=1).session(context_limit=CONTEXT_LIMIT)
    rounds = cycle(rounds_of_objects(as_text=arguments == "text"))
    benchmark(lambda: session.step(next(rounds)))


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_pack_rounds(timed, size, arguments):
    different = rounds_of_objects(as_text=arguments == "text")
    rounds = list(islice(cycle(different), size))
    timed(lambda: RoundBatch.from_rounds(rounds), size)


@pytest.mark.parametrize("population", ["calm", "looping", "tied", "mixed"])
def test_render_many(timed, size, population):
    decisions = Herd(Population(population, size, named=True), want=None).decisions
    renderer = HardConstraintRenderer()
    timed(lambda: renderer.render_many(decisions), size)


@pytest.mark.parametrize("conversations", [1, 100, 1_000])
def test_replay(benchmark, conversations, tmp_path):
    path = tmp_path / "conversations.jsonl"
    written = write_conversations(path, conversations)
    result = benchmark.pedantic(
        lambda: replay(traces.read(path)), rounds=5, warmup_rounds=1, iterations=1
    )
    benchmark.extra_info.update(bytes=written, rounds=result.rounds)
