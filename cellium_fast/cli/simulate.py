"""`cellium-fast simulate`: the same simulated agents under several controls, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellium_fast.cli.output import (
    AsJson,
    console,
    load_policy,
    print_json,
    progress,
    refuse,
    whole_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from cellium_fast.policy import Policy
    from cellium_fast.simulate import (
        Control,
        ControlResult,
        Estimate,
        SimulationResult,
        Tables,
    )

MOST = 2**31 - 1    # sessions, and rounds, that `simulate` takes

# For the help text, which imports no numba; a test compares it with the package's.
CONTROLS = "none, cap, cap:ROUNDS, equal_calls_stop, equal_calls_redirect, cellium, default"


def simulate_command(
    sessions: Annotated[int, typer.Option(min=1, help="Agents.")] = 10_000,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds that each agent has at most.")
    ] = 60,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the agents and of the control loop, below 2**63.")
    ] = 0,
    control: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"One of {CONTROLS}; repeatable. Left out: all of them."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="One more control: a preset, or a .toml, .yaml or .json file; repeatable.",
        ),
    ] = None,
    reactions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What differs from the built-in reactions and rates: .toml, .yaml or .json.",
        ),
    ] = None,
    show_reactions: Annotated[
        bool, typer.Option("--show-reactions", help="Print them, as TOML to edit, and leave.")
    ] = False,
    round_price: Annotated[
        float,
        typer.Option(min=0, max=1, help="What a round costs, if a success is worth 1."),
    ] = 0.005,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Write a figure (needs matplotlib).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let simulated agents run under several controls, with the same luck, side by side."""
    for option, number in (("--sessions", sessions), ("--rounds", rounds)):
        if number > MOST:
            refuse(f"{option}: wanted a number in [1, {MOST:,}], got {number}")
    if seed >= 2**63:
        refuse(f"--seed: wanted a number below 2**63, got {seed}")
    policies = {name: load_policy(name) for name in policy or ()}
    tables = _tables(reactions)
    if show_reactions:
        typer.echo(tables.to_toml(), nl=False)
        return
    controls: dict[str, Control | Policy | str] = {**_controls(control), **policies}
    drawn = None if plot is None else _drawer()

    from cellium_fast.simulate import population, simulate

    with whole_file("--plot", plot) as write, progress("rounds") as bar:
        task = bar.add_task("Simulating", total=None, count=0)
        result = simulate(
            sessions, rounds, seed=seed, controls=controls, environment=population(tables),
            round_price=round_price,
            progress=lambda what, done, total: bar.update(
                task, description=f"Simulating: {what}", completed=done, total=total, count=done
            ),
        )
        if write is not None and drawn is not None:
            write(drawn(result))
    if as_json:
        print_json(result.as_json())
    else:
        _print_tables(result)


def _controls(names: list[str] | None) -> dict[str, Control]:
    from cellium_fast.simulate import USUAL, Cap

    if names is None:
        return USUAL
    chosen: dict[str, Control] = {}
    for name in names:
        kind, _, number = name.partition(":")
        if kind == "cap" and number.isdecimal() and 0 < int(number) <= MOST:
            chosen[name] = Cap(int(number))
        elif name in USUAL:
            chosen[name] = USUAL[name]
        else:
            refuse(f"--control: wanted one of {CONTROLS}, got {name!r}")
    return chosen


def _tables(reactions: Path | None) -> Tables:
    from cellium_fast.errors import CelliumError
    from cellium_fast.simulate.tables import Tables

    try:
        return Tables.shipped() if reactions is None else Tables.from_file(reactions)
    except CelliumError as error:
        refuse(f"--reactions: {error}")


def _drawer() -> Callable[[SimulationResult], bytes]:
    try:
        from cellium_fast.simulate.plot import drawn
    except ImportError:
        refuse("--plot: this needs matplotlib: pip install 'cellium-fast[plot]'")
    return drawn




FIGURES = (
    "success", "  more", "rounds a run", "  fewer", "1,000 tokens a run", "worth", "regret",
    "stopped", "interventions", "  helped", "  hurt", "  rescued", "  spoiled", "rounds/s",
)
LEGEND = (
    "more, fewer: than the same agents without control, with 95 % intervals of the paired "
    "differences.",
    "worth: success minus the price of the rounds. regret: worth lost against an agent's best "
    "fixed action in each hidden state.",
    "helped, hurt: interventions after which the agent is worth more, less, than if it had been "
    "left alone instead.",
    "rescued, spoiled: those that made the difference between failure and success, or the reverse.",
)


def _print_tables(result: SimulationResult) -> None:
    from cellium_fast.cli.table import print_columns

    out = console()
    print_columns(
        out, f"{result.sessions:,} agents", FIGURES,
        [(name, _cells(name, one)) for name, one in result.controls.items()], ends=(6, 12),
    )
    out.print()
    _print_states(out, result)
    out.print("", *LEGEND, sep="\n")


def _cells(name: str, control: ControlResult) -> list[str]:
    figures, gain, effect = control.figures, control.gain, control.interventions
    alone = name == "none"
    return [
        f"{figures.success.mean:.1%}",
        "" if alone else _around(gain.success, 100),
        f"{figures.rounds.mean:.2f}",
        "" if alone else _around(gain.rounds, -1),
        f"{figures.tokens.mean / 1_000:,.1f}",
        f"{figures.worth.mean:.3f}",
        _around(control.regret, 1, 3),
        f"{control.ends['stopped'] / sum(control.ends.values()):.1%}",
        f"{effect.count:,}", f"{effect.helped:,}", f"{effect.hurt:,}",
        f"{effect.rescued:,}", f"{effect.spoiled:,}",
        f"{control.rounds_per_second:,.0f}",
    ]


def _around(estimate: Estimate, factor: float, digits: int = 2) -> str:
    """A difference and the half width of its interval."""
    margin = estimate.high - estimate.mean
    spread = "" if margin != margin else f" ±{abs(margin * factor):.{digits}f}"
    return f"{estimate.mean * factor:+.{digits}f}{spread}"


def _print_states(out: Console, result: SimulationResult) -> None:
    """By hidden state: how often agents are in it, its best action, and who tells them that."""
    from cellium_fast.cli.table import print_columns

    alone = {state: sum(told.values()) for state, told in result["none"].told.items()}
    total = max(sum(alone.values()), 1)
    columns = [
        ("rounds", [f"{rounds / total:.1%}" for rounds in alone.values()]),
        ("best action", list(result.best_actions.values())),
    ]
    for name, control in result.controls.items():
        shares = control.told_best.values()
        columns.append((name, ["-" if share is None else f"{share:.0%}" for share in shares]))
    print_columns(out, "told the best action", list(alone), columns)
