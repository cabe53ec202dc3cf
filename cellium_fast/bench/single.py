"""Measures of one session: objects in, a decision out; the plain reference; a cold start."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cellium_fast
from cellium_fast import Fleet, Round, RoundBatch, Session, ToolCall, _records
from cellium_fast.bench import batch
from cellium_fast.bench.measures import NotMeasured, Result, Sizes
from cellium_fast.bench.populations import CONTEXT_LIMIT, SEED, SETTLED, Herd, Population
from cellium_fast.bench.timing import Contender, Spread, interleaved

ARGUMENTS, RESULT = 100, 1_000      # characters
ROUNDS = 64     # different rounds, one after the other
ORIGINAL_ROUND = 113e-6     # seconds, the original loop's fastest published figure

# Prints seconds: NumPy and pydantic, this package, a first decision.
COLD_START = """
from time import perf_counter
times = [perf_counter()]
import numpy
from pydantic import BaseModel, Field, model_validator
times.append(perf_counter())
import cellium_fast
times.append(perf_counter())
session = cellium_fast.Fleet(threads=1).session(context_limit=128_000)
session.step(cellium_fast.Round([cellium_fast.ToolCall("search", {"query": "x"}, "found")])).action
times.append(perf_counter())
print(*(end - begin for begin, end in zip(times, times[1:])))
"""


def session_step(sizes: Sizes) -> Result:
    """A round of Python objects in, a decision out."""
    contenders = {
        name: steps_of(
            Fleet(seed=SEED, threads=1).session(context_limit=CONTEXT_LIMIT),
            rounds_of_objects(as_text=as_text), sizes.scalar_rounds,
        )
        for name, as_text in (("values", False), ("text", True))
    }
    taken = interleaved(contenders, sizes.repeats, clock=sizes.clock)
    as_text = taken["text"].median * 1e6
    return Result(
        taken["values"],
        note=f"arguments of {ARGUMENTS} characters as a dict ({as_text:.2f} µs as JSON text), "
             f"results of {RESULT:,}",
    )


def import_time(sizes: Sizes) -> Result:
    """Import, beyond NumPy and pydantic."""
    others, ours, _ = _cold_starts(sizes.starts)
    return Result(
        ours, others,
        note="pydantic with what it loads to define a model; fresh processes, bytecode compiled "
             f"and files in the cache; median of {sizes.starts}",
    )


def first_decision(sizes: Sizes) -> Result:
    """From a fresh import to the first decision."""
    *_, first = _cold_starts(sizes.starts)
    return Result(first, note=f"fleet, session and step in fresh processes; of {sizes.starts}")


def plain_reference(sizes: Sizes) -> Result:
    """A step in a batch, against the plain Python reference of the tests."""
    herd = Herd(Population("usual", sizes.fleet))
    plain = _PlainReference(sizes.plain_rounds)
    taken = interleaved(
        {
            "step": Contender(herd.step, herd.prepare, sizes.fleet),
            "plain": Contender(plain.step, plain.prepare, sizes.plain_rounds),
        },
        sizes.repeats, clock=sizes.clock,
    )
    return Result(taken["step"], taken["plain"], note="reference: one session at a time")


def original_loop(sizes: Sizes) -> Result:
    """A step in a batch, against the original loop's own figure."""
    result = batch.step(sizes)
    known = Spread(ORIGINAL_ROUND, ORIGINAL_ROUND, ORIGINAL_ROUND)
    return Result(
        result.figure, known,
        note="baseline quoted, not measured here: the original's fastest round; it grows to "
             "424 µs with a session's age",
    )


def rounds_of_objects(*, as_text: bool = False, tokens: int = 1_000) -> list[Round]:
    """Different rounds of one call each: arguments as a dict or as JSON text."""
    rounds = []
    for number in range(ROUNDS):
        query = f"{number:04}".ljust(ARGUMENTS - len('{"query":""}'), "a")
        arguments: Any = f'{{"query":"{query}"}}' if as_text else {"query": query}
        result = f"{number:04}".ljust(RESULT, "r")
        rounds.append(Round(
            [ToolCall("search", arguments, result)], f"Let me search for {number}.", tokens
        ))
    return rounds


def steps_of(session: Session, rounds: list[Round], count: int) -> Contender:
    """So many steps of one session, of these rounds over and over."""
    played = [rounds[number % len(rounds)] for number in range(count)]

    def run() -> None:
        step = session.step
        for round in played:
            step(round)

    return Contender(run, things=count)


def _cold_starts(starts: int) -> tuple[Spread, Spread, Spread]:
    """Seconds of each part of `COLD_START`, in processes of their own."""
    taken = []
    for start in range(starts + 1):
        done = subprocess.run(
            [sys.executable, "-c", COLD_START], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"a fresh Python failed:\n{done.stderr}")
        if start:       # the first one fills the caches
            taken.append(list(map(float, done.stdout.split())))
    others, ours, first = (Spread.of(part) for part in zip(*taken, strict=True))
    return others, ours, first


class _PlainReference:
    """Sessions of `tests/reference.py` that share a pool, and a population that plays them."""

    def __init__(self, count: int) -> None:
        with _plain_reference() as module:
            self._reference: Any = module
        self._population = Population("usual", count)
        self._pool = self._reference.new_posterior()
        self._sessions = [
            self._reference.open_session(
                self._reference.policy("default"), CONTEXT_LIMIT, posterior=self._pool
            )
            for _ in range(count)
        ]
        self._chance = random.Random(SEED)
        for _ in range(SETTLED):
            self.prepare()
            self.step()

    def prepare(self) -> None:
        """Let the sessions play their next round."""
        self._rounds = _described(self._population.next_round())

    def step(self) -> None:
        """Decide after that round."""
        for session, round in zip(self._sessions, self._rounds, strict=True):
            self._reference.step(session, round, self._draw)
        self._reference.end_call(self._pool)

    def _draw(self, arm: int) -> float:
        return self._chance.betavariate(self._pool["alpha"][arm], self._pool["beta"][arm])


def _described(batch: RoundBatch) -> list[dict[str, Any]]:
    """The rounds of a population, of one call each, as the plain reference takes them."""
    columns = (batch.call_tool, batch.call_signature, batch.call_result, batch.call_flags,
               batch.call_size, batch.text, batch.context_tokens)
    rows = zip(*(column.tolist() for column in columns if column is not None), strict=True)
    return [
        {
            "calls": [{"tool": tool, "signature": signature, "result": result, "size": size,
                       "error": flags & _records.CALL_ERROR != 0,
                       "empty": flags & _records.CALL_EMPTY != 0}],
            "text": text, "context_tokens": tokens,
        }
        for tool, signature, result, flags, size, text, tokens in rows
    ]


@contextmanager
def _plain_reference() -> Iterator[ModuleType]:
    tests = Path(cellium_fast.__file__).parent.parent / "tests"
    if not (tests / "reference.py").is_file():
        raise NotMeasured("tests/reference.py is not here: it is in a checkout only")
    sys.path.insert(0, str(tests))
    try:
        yield importlib.import_module("reference")
    finally:
        sys.path.remove(str(tests))
