"""The command `cellium-fast`: one module of this package is one command.

Exit codes: 0 done; 1 nothing could be read, a result not be written, memory ran out, or `recover`
found something; 2 wrong usage, or files that are not sound with --strict; 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from cellium_fast.cli.bench import HELP as BENCH_HELP
from cellium_fast.cli.bench import bench_command
from cellium_fast.cli.evaluate import HELP as EVALUATE_HELP
from cellium_fast.cli.evaluate import evaluate_command
from cellium_fast.cli.output import NOTHING_READ, WRONG_USAGE, say
from cellium_fast.cli.recover import HELP as RECOVER_HELP
from cellium_fast.cli.recover import recover_command
from cellium_fast.cli.replay import HELP as REPLAY_HELP
from cellium_fast.cli.replay import replay_command
from cellium_fast.cli.simulate import simulate_command
from cellium_fast.cli.tune import HELP as TUNE_HELP
from cellium_fast.cli.tune import tune_command
from cellium_fast.errors import CelliumError

app = typer.Typer(
    name="cellium-fast",
    help="A compiled control loop for LLM agents: one agent or a million in one process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("replay", help=REPLAY_HELP)(replay_command)
app.command("evaluate", help=EVALUATE_HELP)(evaluate_command)
app.command("tune", help=TUNE_HELP)(tune_command)
app.command("simulate")(simulate_command)
app.command("recover", help=RECOVER_HELP)(recover_command)
app.command("bench", help=BENCH_HELP)(bench_command)


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
    """Run the command line. What goes wrong is one line on stderr, never a traceback."""
    if sys.stderr is None:      # closed by the shell, as stdout below
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for as long as the process runs
    if sys.stdout is None:
        _leave("stdout is closed", NOTHING_READ)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character of a file is no reason to stop.
            stream.reconfigure(errors="replace")
    try:
        app()
    except CelliumError as error:
        _leave(str(error), WRONG_USAGE)
    except MemoryError:
        _leave("there is not enough memory", NOTHING_READ)
    except OSError as error:
        # Files are opened where their errors are told; what is left are the streams.
        _leave(f"{error.filename or 'stdout'}: {error.strerror or error}", NOTHING_READ)


def _leave(message: str, code: int) -> NoReturn:
    with suppress(OSError):     # stderr may be the stream that cannot be written
        say(f"cellium-fast: {message}")
    # Python would write what is left in the buffers once more, and complain.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
