"""Measures of durable fleets: what the journal adds to a step, and how fast it is replayed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cellium_fast.bench.measures import Result, Sizes
from cellium_fast.bench.populations import CONTEXT_LIMIT, SEED, Herd, Population
from cellium_fast.bench.single import rounds_of_objects, steps_of
from cellium_fast.bench.timing import Contender, Spread, interleaved
from cellium_fast.durable import DurableFleet
from cellium_fast.fleet import Fleet

SYNCED_ROUNDS = 20      # a turn: each waits for the disk


def batch_step(sizes: Sizes) -> Result:
    """A step of a fleet with a journal, against one without."""
    with _directory() as directory:
        fleet = _durable(directory, "never")
        plain = Herd(Population("usual", sizes.fleet))
        herd = Herd(Population("usual", sizes.fleet), fleet=fleet)
        before = fleet._journal.end
        herd.prepare()
        herd.step()
        size = (fleet._journal.end - before) / sizes.fleet
        taken = interleaved(
            {
                "journal": Contender(herd.step, herd.prepare, sizes.fleet),
                "none": Contender(plain.step, plain.prepare, sizes.fleet),
            },
            sizes.repeats, clock=sizes.clock,
        )
        fleet.shut()
    return Result(
        taken["journal"], taken["none"],
        note=f'{sizes.fleet:,} sessions, {size:.0f} bytes a round; fsync="never"',
    )


def session_step(sizes: Sizes) -> Result:
    """A step of one session with a journal, against one without."""
    with _directory() as directory, ExitStack() as stack:
        fleets = {
            fsync: stack.enter_context(_durable(directory / fsync, fsync))
            for fsync in ("never", "interval", "step")
        }
        sessions = {"none": Fleet(seed=SEED, threads=1).session(context_limit=CONTEXT_LIMIT)}
        for fsync, fleet in fleets.items():
            sessions[fsync] = fleet.session(context_limit=CONTEXT_LIMIT)
        rounds = rounds_of_objects()
        taken = interleaved(
            {
                name: steps_of(
                    session, rounds, SYNCED_ROUNDS if name == "step" else sizes.scalar_rounds
                )
                for name, session in sessions.items()
            },
            sizes.repeats, clock=sizes.clock,
        )
        journal = fleets["never"]._journal
        size = journal.end / journal.number
    interval, step = taken["interval"].median * 1e6, taken["step"].median * 1e6
    return Result(
        taken["never"], taken["none"],
        note=f'fsync="never", {size:.0f} bytes a round; {interval:.2f} µs with "interval", '
             f'{step:,.0f} µs with "step", which waits for this disk',
    )


def replay(sizes: Sizes) -> Result:
    """Recovering single rounds: the seconds of one."""
    with _directory() as directory:
        with _durable(directory, "never") as fleet:
            played = rounds_of_objects()
            session = fleet.session(context_limit=CONTEXT_LIMIT)
            for number in range(sizes.replayed_rounds):
                session.step(played[number % len(played)])
        seconds = []
        for _ in range(sizes.replays):
            began = time.perf_counter()
            _durable(directory, "never").shut()
            seconds.append(time.perf_counter() - began)
    return Result(
        Spread.of(seconds).as_rate(sizes.replayed_rounds),
        note=f"{sizes.replayed_rounds:,} rounds, with loading and opening; of {sizes.replays}",
    )


def _durable(directory: Path, fsync: str) -> DurableFleet:
    return Fleet.open_durable(
        directory, seed=SEED, threads=1, policies={"measured": "default"}, compact_bytes=None,
        fsync=fsync,  # type: ignore[arg-type]
    )


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cellium-fast-") as directory:
        yield Path(directory)
