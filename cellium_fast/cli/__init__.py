"""The command `cellium-fast`: one module of this package is one command.

Exit codes: 0 done; 1 nothing could be read, or a result not be written; 2 wrong usage; 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from cellium_fast.cli.replay import HELP, replay_command
from cellium_fast.cli.simulate import simulate_command

app = typer.Typer(
    name="cellium-fast",
    help="A compiled control loop for LLM agents: one agent or a million in one process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("replay", help=HELP)(replay_command)
app.command("simulate")(simulate_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cellium_fast import __version__

        typer.echo(f"cellium-fast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and leave."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character of a file is no reason to stop.
            stream.reconfigure(errors="replace")
    app()
