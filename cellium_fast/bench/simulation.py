"""A measure of the simulator: agents and their control in a closed loop."""

from __future__ import annotations

from cellium_fast.bench.measures import Result, Sizes
from cellium_fast.bench.timing import WARM_UPS, Spread
from cellium_fast.simulate import Alone, UnderPolicy, population
from cellium_fast.simulate.controls import Setting
from cellium_fast.simulate.loop import Runs, run

MOST_AGENTS = 20_000    # whose sessions a cache can hold
ROUNDS = 60             # that an agent has at most
SEED = 7


def closed_loop(sizes: Sizes) -> Result:
    """Agents of the built-in population through all their rounds, under `default` and alone.

    A round is: the agent plays it, the fleet takes it in, learns and decides, and whose run is over
    is parted from the others. Sessions are opened and closed once in a run: the note says what is
    left with that.
    """
    environment = population()
    agents = min(sizes.fleet, MOST_AGENTS)
    setting = Setting(agents, ROUNDS, SEED, environment.context_limit)
    under_control: list[Runs] = []
    alone: list[Runs] = []
    for turn in range(WARM_UPS + sizes.repeats):
        for control, taken in ((UnderPolicy("default"), under_control), (Alone, alone)):
            runs = run(environment, control, setting, clock=sizes.clock)
            if turn >= WARM_UPS:
                taken.append(runs)
    played = int(under_control[0].rounds.sum())
    whole = Spread.of([runs.seconds for runs in under_control]).as_rate(played)
    return Result(
        _rate(under_control), _rate(alone),
        note=f"{agents:,} agents, {played:,} rounds; with opening and closing their sessions "
             f"{whole.median / 1e3:,.0f} k rounds/s ({whole.low / 1e3:,.0f} to "
             f"{whole.high / 1e3:,.0f})",
    )


def _rate(measured: list[Runs]) -> Spread:
    seconds = Spread.of([runs.seconds - runs.opening for runs in measured])
    return seconds.as_rate(int(measured[0].rounds.sum()))
