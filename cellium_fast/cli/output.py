"""What the commands share: consoles, progress, JSON, policies by name or file, refusals.

Nothing here imports the package's kernels or rich at its top, so that `--help` need not wait.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from cellium_fast.decision import Decision
    from cellium_fast.policy import Policy
    from cellium_fast.replay import RunName

NOTHING_READ = 1     # or a result could not be written
WRONG_USAGE = 2
NOT_SOUND = 2       # what was read, by someone who asked for that

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

# A pipe has no width. This one keeps every column of the tables whole.
PIPE_WIDTH = 160


def printable(text: str) -> str:
    """Text from outside with every character that could steer a terminal replaced.

    Unlike `cellium_fast.explain.safe_text` it shortens and rewords nothing, so that names and
    paths can be copied.

    >>> printable("a\\x1b[31mb")
    'a\ufffd[31mb'
    """
    return "".join(
        character if character.isprintable() else "\ufffd" for character in text
    )


def say(message: str) -> None:
    """Write one line to stderr."""
    typer.echo(printable(message.replace("\n", " ")), err=True)


def refuse(message: str, code: int = WRONG_USAGE) -> NoReturn:
    """Say what is wrong on stderr and leave."""
    say(f"cellium-fast: {message}")
    raise typer.Exit(code)


def console() -> Console:
    """Return the console of stdout. It takes all text literally: files may hold rich markup."""
    from rich.console import Console

    width = shutil.get_terminal_size((PIPE_WIDTH, 0)).columns   # COLUMNS goes first, if above 0
    return Console(width=width, markup=False, highlight=False, emoji=False)


@contextmanager
def progress(unit: str) -> Iterator[Progress]:
    """Give a progress bar on stderr that shows only on a terminal.

    `unit` names what is counted; tasks have a field `count` of it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.fields[count]:,}} {unit}"),
        TimeElapsedColumn(),
        console=Console(stderr=True, markup=False, highlight=False, emoji=False),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with bar:
        yield bar


def print_json(value: Any) -> None:
    """Write a value to stdout as one JSON object."""
    typer.echo(to_json(value, indent=True).decode(), nl=False)


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """Return a value, NumPy's included, as JSON that ends its line."""
    import orjson

    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(value, option=options | orjson.OPT_INDENT_2 if indent else options)


def plain_decision(name: RunName, decision: Decision) -> dict[str, Any]:
    """Return all that is worth keeping of a decision on a recorded run, for JSON."""
    from cellium_fast.explain import evidence

    return {
        "source": name.source,
        "path": plain_path(name.path),
        "run": name.run,
        "round": decision.features.round,
        "action": str(decision.action),
        "candidates": [str(action) for action in decision.candidates],
        "rules": decision.rules,
        "cause": str(decision.cause),
        "tiebreak": decision.tiebreak,
        "propensity": decision.propensity,
        "reward": decision.reward,
        "features": decision.features._asdict(),
        "evidence": evidence(decision),
    }


def plain_path(path: Path) -> str:
    """Return a path for JSON, which cannot say bytes that are no text."""
    return os.fsencode(path).decode(errors="replace")


def load_policy(name: str) -> Policy:
    """Return the policy of a preset's name or a file; leave with a message if it is neither."""
    from cellium_fast.errors import CelliumError
    from cellium_fast.policy import PRESETS, Policy

    try:
        if name in PRESETS:
            return Policy.preset(name)
        if Path(name).suffix or os.sep in name or os.path.exists(name):
            return Policy.from_file(name)
    except CelliumError as error:
        refuse(f"--policy: {error}")
    presets = ", ".join(PRESETS)
    refuse(f"--policy: wanted {presets} or a .toml, .yaml or .json file, got {name!r}")


@contextmanager
def whole_file(option: str, path: Path | None) -> Iterator[Callable[[bytes], None] | None]:
    """Give a function that writes to the file, which appears only once everything is written.

    What is written stands beside it under another name until then, and is removed on an error
    or an interrupt. A path that cannot be written is refused before anything is done.
    `None` gives `None`.
    """
    if path is None:
        yield None
        return
    direct = path.exists() and not path.is_file()  # a device or a pipe
    target = path if direct else Path(os.path.realpath(path))
    part = target if direct else target.with_name(f"{target.name}.part{os.getpid()}")
    file = _opened(option, path, target, part)

    def refused(error: OSError) -> NoReturn:
        refuse(f"{option}: {path}: {error.strerror or error}", NOTHING_READ)

    def write(data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            refused(error)

    try:
        yield write
        try:
            file.close()
            if not direct:
                os.replace(part, target)
        except OSError as error:
            refused(error)
    finally:
        # What could not be written before cannot be written now, and has been told.
        with suppress(OSError):
            file.close()
        if not direct:
            part.unlink(missing_ok=True)


def _opened(option: str, path: Path, target: Path, part: Path) -> BinaryIO:
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "is a directory")
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(0, "may not be written")
        return part.open("wb")
    except OSError as error:
        refuse(f"{option}: {path}: {error.strerror or error}")
