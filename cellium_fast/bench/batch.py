"""Measures of the batch step: speed, memory, age, threads, and the same step in NumPy."""

from __future__ import annotations

import numpy as np

from cellium_fast.arguments import usable_cpus
from cellium_fast.bench.measures import NotMeasured, Result, Sizes
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES, NumpyFleet
from cellium_fast.bench.populations import (
    CONTEXT_LIMIT,
    SETTLED,
    Herd,
    Population,
    bytes_a_session,
)
from cellium_fast.bench.timing import Contender, Spread, interleaved
from cellium_fast.fleet import Fleet

YOUNG = 100         # rounds


def step(sizes: Sizes) -> Result:
    """A step of a fleet that the caches of a large machine can hold."""
    herd = Herd(Population("usual", sizes.fleet))
    taken = interleaved({"step": _step_of(herd)}, sizes.repeats, clock=sizes.clock)
    return Result(taken["step"], note=_herd_note(herd))


def step_beside_copy(sizes: Sizes) -> Result:
    """A step of a fleet that no cache holds, against copying its state once."""
    herd = Herd(Population("usual", sizes.large_fleet))
    contenders = {"step": _step_of(herd), "copy": _copy_of(herd)}
    taken = interleaved(contenders, sizes.repeats, clock=sizes.clock)
    return Result(taken["step"], taken["copy"], note=_herd_note(herd))


def copy(sizes: Sizes) -> Result:
    """Copying the same state: what memory allows."""
    herd = Herd(Population("usual", sizes.large_fleet), settled=0)
    taken = interleaved({"copy": _copy_of(herd)}, sizes.repeats, clock=sizes.clock)
    count, size = sizes.large_fleet, herd.fleet._memory.sessions.itemsize
    speed = size / taken["copy"].median / 1e9
    return Result(
        taken["copy"], note=f"{count:,} records of {size} bytes; {speed:.1f} GB/s read and written"
    )


def memory(sizes: Sizes) -> Result:
    """Bytes that a fleet keeps for each session."""
    fleet = Fleet(threads=1)
    fleet.open(sizes.fleet)
    kept = bytes_a_session(fleet)
    total = sum(kept.values())
    parts = ", ".join(f"{name.lstrip('_')} {size:g}" for name, size in kept.items())
    return Result(
        Spread(total, total, total),
        note=f"everything the fleet's memory keeps for an open session, private posterior "
             f"included: {parts}",
    )


def age(sizes: Sizes) -> Result:
    """A step of old sessions against one of young ones."""
    old = Herd(Population("usual", sizes.old_fleet), settled=sizes.age)
    young = Herd(Population("usual", sizes.old_fleet), settled=YOUNG)
    contenders = {"old": _step_of(old), "young": _step_of(young)}
    taken = interleaved(contenders, 10 * sizes.repeats, clock=sizes.clock)
    return Result(
        taken["old"], taken["young"],
        note=f"{sizes.old_fleet:,} sessions from their round {sizes.age:,} on, against as many "
             f"from {YOUNG} on",
    )


def threads(sizes: Sizes) -> Result:
    """Two threads against one."""
    if usable_cpus() < 2:
        raise NotMeasured("this process may use one CPU only")
    herds = {
        count: Herd(Population("usual", sizes.large_fleet), threads=count) for count in (1, 2)
    }
    contenders = {str(count): _step_of(herd) for count, herd in herds.items()}
    taken = interleaved(contenders, sizes.repeats)      # by the clock, whatever the sizes say
    return Result(taken["2"], taken["1"], note=_herd_note(herds[2]))


def numpy_step(sizes: Sizes) -> Result:
    """The step against the same step in NumPy, under the policy that is stated there."""
    herd = Herd(Population("usual", sizes.fleet), settled=0, policy=SIXTEEN_RULES)
    twin = NumpyFleet(sizes.fleet, CONTEXT_LIMIT)
    for _ in range(SETTLED):
        herd.prepare()
        herd.step()
        twin.step(herd.rounds)
    taken = interleaved(
        {
            "step": _step_of(herd),
            # The round that the fleet has just decided on.
            "NumPy": Contender(lambda: twin.step(herd.rounds), things=sizes.fleet),
        },
        sizes.repeats, clock=sizes.clock,
    )
    return Result(
        taken["step"], taken["NumPy"],
        note=f"{_herd_note(herd)}; both under the sixteen rules without evidence over the session, "
             "which the step works out all the same",
    )


def _step_of(herd: Herd) -> Contender:
    return Contender(herd.step, herd.prepare, len(herd.ids))


def _copy_of(herd: Herd) -> Contender:
    sessions = herd.fleet._memory.sessions
    state = np.ascontiguousarray(sessions[: len(herd.ids)]).view(np.uint8)
    target = np.zeros_like(state)
    return Contender(lambda: np.copyto(target, state), things=len(herd.ids))


def _herd_note(herd: Herd) -> str:
    return f"{len(herd.ids):,} sessions, {herd.tie_breaks():.1%} tied"
