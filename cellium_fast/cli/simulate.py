"""`cellium-fast simulate`: simulated agents with and without control, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellium_fast.cli.output import console, load_policy, print_json, progress, refuse

if TYPE_CHECKING:
    from cellium_fast.simulate import SimulationResult

MOST = 2**31 - 1    # sessions, and rounds, that `simulate` takes


def simulate_command(
    sessions: Annotated[int, typer.Option(min=1, help="Agents.")] = 1_000,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds that each agent has at most.")
    ] = 60,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the agents and of the control loop, below 2**63.")
    ] = 0,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="Preset, or a .toml, .yaml or .json file."),
    ] = "default",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Run simulated agents under control, and the same agents left alone."""
    chosen = load_policy(policy)
    for option, number in (("--sessions", sessions), ("--rounds", rounds)):
        if number > MOST:
            refuse(f"{option}: wanted a number in [1, {MOST:,}], got {number}")
    if seed >= 2**63:
        refuse(f"--seed: wanted a number below 2**63, got {seed}")

    from cellium_fast.simulate import simulate

    with progress("rounds") as bar:
        task = bar.add_task("Simulating", total=None, count=0)
        result = simulate(
            sessions, rounds, seed=seed, policy=chosen,
            progress=lambda done, total: bar.update(
                task, completed=done, total=total, count=done
            ),
        )
    if as_json:
        print_json({"policy": policy, "seed": seed, **_plain(result)})
    else:
        _print_tables(result)


def _plain(result: SimulationResult) -> dict[str, Any]:
    from dataclasses import asdict

    plain = asdict(result)
    for side in ("controlled", "uncontrolled"):
        plain[side]["by_kind"] = {
            kind: {"sessions": sessions, "success": success}
            for kind, (sessions, success) in plain[side]["by_kind"].items()
        }
    return plain


def _print_tables(result: SimulationResult) -> None:
    from rich import box
    from rich.table import Table

    out = console()
    kinds = Table("agents", box=box.SIMPLE_HEAD)
    for header in ("sessions", "success with control", "success without"):
        kinds.add_column(header, justify="right")
    for kind, (sessions, success) in result.controlled.by_kind.items():
        # Of a few agents none may be of this kind: then there is no share.
        shares = (success, result.uncontrolled.by_kind[kind][1]) if sessions else ()
        cells = [f"{share:.1%}" for share in shares] or ["-", "-"]
        kinds.add_row(kind, f"{sessions:,}", *cells)
    kinds.add_section()
    kinds.add_row(
        "all", f"{result.sessions:,}",
        f"{result.controlled.success:.1%}", f"{result.uncontrolled.success:.1%}",
    )
    out.print(kinds)
    actions = Table("action", box=box.SIMPLE_HEAD)
    actions.add_column("decisions", justify="right")
    actions.add_column("share", justify="right")
    for action, count in result.controlled.actions.items():
        share = count / max(result.controlled.rounds, 1)
        actions.add_row(action, f"{count:,}", f"{share:.1%}")
    out.print(actions)
    out.print(
        f"{result.controlled.rounds:,} rounds with control, {result.uncontrolled.rounds:,} "
        f"without; {result.rounds_per_second:,.0f} rounds/s in the control loop"
    )
