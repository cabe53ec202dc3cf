"""A measure of the simulator: agents and their control in a closed loop."""

from __future__ import annotations

from functools import partial

from cellium_fast.bench.measures import Result, Sizes
from cellium_fast.bench.timing import Contender, interleaved
from cellium_fast.simulate import Alone, Control, UnderPolicy, population
from cellium_fast.simulate.controls import Setting
from cellium_fast.simulate.loop import run

ROUNDS = 60         # that an agent has at most
SEED = 7


def closed_loop(sizes: Sizes) -> Result:
    """Agents of the built-in population through all their rounds, under `default` and alone.

    Everything counts from the agents' beginning to the end of the last run: what they do, opening
    and closing their sessions, deciding, learning.
    """
    environment = population()
    setting = Setting(sizes.fleet, ROUNDS, SEED, environment.context_limit)
    controls: dict[str, Control] = {"default": UnderPolicy("default"), "none": Alone}
    played = {
        name: int(run(environment, control, setting).rounds.sum())
        for name, control in controls.items()
    }
    taken = interleaved(
        {
            name: Contender(partial(run, environment, control, setting), things=played[name])
            for name, control in controls.items()
        },
        sizes.repeats, clock=sizes.clock,
    )
    return Result(
        taken["default"].as_rate(), taken["none"].as_rate(),
        note=f"{sizes.fleet:,} agents, {played['default']:,} rounds, opening and closing included",
    )
