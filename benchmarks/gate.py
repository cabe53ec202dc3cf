"""Say whether one build of the package is slower than another, in one job on one machine.

    python benchmarks/gate.py BASE HEAD

BASE and HEAD are folders that hold a built `cellium_fast`: checkouts after
`python setup.py build_ext --inplace`, or folders that wheels were unpacked into. Python processes
of both take turns (base, head, head, base, ...); each takes the measures below several times, in
CPU time of one thread. Of each measure the smallest times are compared: whatever else the machine
does can only add to a time. A measure is slower if its smallest time is longer by more than the
limit, and by more than the noise floor of a clock and of the machine's memory. What looks slower is
measured again, so that one unlucky run is no alarm. Exit code: 0, 1 if a measure is slower, 2 for
a folder that cannot be measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT = 1.25            # times as long
FLOOR = 30e-6           # seconds of a run, in which a thousand things or more are done
ROUNDS = 12             # processes of each build
ATTEMPTS = 3            # times that what looks slower is measured, all in all
REPEATS = 9             # runs of a measure in a process
SIDES = ("base", "head")

Samples = dict[str, list[float]]


# --- What is measured -----------------------------------------------------------------------------
def workloads() -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Name, what is timed, and what is called before each time. Public API only."""
    import numpy as np

    from cellium_fast import Fleet, HardConstraintRenderer, Round, RoundBatch, ToolCall, kernels

    chance = np.random.default_rng(7)

    def columns(count: int) -> Callable[[], RoundBatch]:
        """Rounds of one call each; a part of the sessions repeats itself, a part nearly full."""
        loops = chance.random(count) < 0.2
        tokens = np.where(chance.random(count) < 0.3, 110_000, 40_000)
        call = chance.integers(1, 2**63, (3, count)).astype(np.uint64)
        tool = chance.integers(1, 5, count).astype(np.uint64)
        failed = (chance.random(count) < 0.05).astype(np.uint8)

        def following() -> RoundBatch:
            call[:] += np.where(loops, np.uint64(0), np.uint64(0x9E3779B97F4A7C15))
            return RoundBatch(
                call_offsets=np.arange(count + 1), call_tool=tool, call_signature=call[0],
                call_result=call[1], call_flags=failed, text=call[2], context_tokens=tokens,
            )

        return following

    def batch_step(count: int) -> tuple[Callable[[], object], Callable[[], object]]:
        fleet, following = Fleet(seed=7, threads=1), columns(count)
        ids = fleet.open(count, context_limit=128_000)
        rounds = [following()]

        def prepare() -> None:
            rounds[0] = following()

        def run() -> None:
            fleet.step(ids, rounds[0], want=("action", "candidates", "rules", "reward"))

        for _ in range(14):     # until the windows are full
            prepare()
            run()
        return run, prepare

    def nothing() -> None:
        pass

    for count in (10_000, 100_000):
        yield f"step-{count}", *batch_step(count)

    given = [
        Round([ToolCall("search", {"query": f"{number:04}" * 20}, f"{number:04}" * 200)],
              f"Let me search for {number}.", 1_000)
        for number in range(1_000)
    ]
    session = Fleet(seed=7, threads=1).session(context_limit=128_000)

    def scalar() -> None:
        for one in given:
            session.step(one)

    yield "session-1000", scalar, nothing
    yield "pack-1000", lambda: RoundBatch.from_rounds(given), nothing

    shapes, out = 2.0 + 200.0 * chance.random(100_000), np.empty(100_000)
    yield "beta-100000", lambda: kernels.sample_beta(shapes, shapes, 7, out=out), nothing

    fleet, following = Fleet(seed=7, threads=1), columns(20_000)
    ids = fleet.open(20_000, context_limit=128_000)
    for _ in range(14):
        decisions = fleet.step(ids, following())
    renderer = HardConstraintRenderer()
    yield "render-20000", lambda: renderer.render_many(decisions, repeat=True), nothing


def take(repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of each measure in this process: the smallest of some runs after a first one."""
    smallest = {}
    for name, run, prepare in workloads():
        times = []
        gc.collect()
        gc.disable()
        for _ in range(1 + repeats):
            prepare()
            began = time.thread_time_ns()
            run()
            times.append((time.thread_time_ns() - began) / 1e9)
        gc.enable()
        smallest[name] = min(times[1:])
    return smallest


def sample(folder: Path) -> dict[str, float]:
    """The times of a build, from a Python process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", __file__, "--take", str(folder)],
        env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{folder} cannot be measured:\n{done.stderr.strip()}")
    times: dict[str, float] = json.loads(done.stdout)
    return times


# --- What is decided ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Comparison:
    """The smallest times of one measure, in seconds."""

    name: str
    base: float
    head: float

    @property
    def slower(self) -> bool:
        """Whether head is slower by more than the limit, and by more than noise."""
        return self.head > self.base * LIMIT and self.head - self.base > FLOOR


def compared(base: Samples, head: Samples) -> list[Comparison]:
    """The measures that both builds have."""
    return [
        Comparison(name, min(base[name]), min(head[name])) for name in base if name in head
    ]


def gate(
    take_turn: Mapping[str, Callable[[], dict[str, float]]], rounds: int = ROUNDS,
    attempts: int = ATTEMPTS,
) -> tuple[list[Comparison], dict[str, Samples]]:
    """Measure until nothing looks slower, or it looked so in every attempt.

    `take_turn` gives the times of one process, for "base" and for "head".
    """
    samples: dict[str, Samples] = {side: {} for side in SIDES}
    for _ in range(attempts):
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                for name, seconds in take_turn[side]().items():
                    samples[side].setdefault(name, []).append(seconds)
        found = compared(samples["base"], samples["head"])
        if not any(one.slower for one in found):
            break
    return found, samples


def table(found: Sequence[Comparison]) -> str:
    """The measures as lines of text."""
    lines = [f"{'measure':<14} {'base':>10} {'head':>10}  head / base"]
    for one in found:
        verdict = "   SLOWER" if one.slower else ""
        lines.append(
            f"{one.name:<14} {one.base * 1e3:>7.3f} ms {one.head * 1e3:>7.3f} ms "
            f"{one.head / one.base:>12.2f}{verdict}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="processes of each build")
    parser.add_argument("--samples", type=Path, help="write all times to this JSON file")
    given = parser.parse_args(arguments)
    sides = {"base": given.base.resolve(), "head": given.head.resolve()}
    for folder in sides.values():
        if not (folder / "cellium_fast" / "__init__.py").is_file():
            print(f"error: {folder} holds no cellium_fast", file=sys.stderr)
            return 2
    try:
        found, samples = gate(
            {side: lambda folder=folder: sample(folder) for side, folder in sides.items()},
            given.rounds,
        )
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.samples:
        given.samples.write_text(json.dumps(samples))
    print(table(found))
    return int(any(one.slower for one in found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--take"]:
        import cellium_fast

        wanted, used = Path(sys.argv[2]), Path(cellium_fast.__file__).parent.parent
        if used != wanted:
            sys.exit(f"took the package from {used}")
        print(json.dumps(take()))
    else:
        sys.exit(main())
