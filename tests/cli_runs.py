"""Commands to start, and recordings for them to read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer.testing

from cellium_fast.cli import app

EXAMPLES = Path(__file__).parent.parent / "examples" / "runs"
ESCAPE = "\x1b"


def call(*arguments: object) -> typer.testing.Result:
    result = typer.testing.CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def start(*arguments: object, **settings: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cellium_fast", *map(str, arguments)]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.Popen(command, **settings)


def as_json(*arguments: object) -> dict[str, Any]:
    result = call("replay", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def chat_run(name: str, answers: list[str], **fields: Any) -> dict[str, Any]:
    """A run whose rounds are answers without calls."""
    messages = [{"role": "user", "content": "go on"}]
    messages += [{"role": "assistant", "content": answer} for answer in answers]
    return {"run_id": name, "messages": messages, **fields}


def calling_run(name: str, tools: list[str], result: str = "nothing", **fields: Any) -> Any:
    """A run that calls one tool a round, with the same arguments and the same result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go on"}]
    for number, tool in enumerate(tools):
        function = {"name": tool, "arguments": "{}"}
        asked = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return {"run_id": name, "messages": messages, **fields}


def write(path: Path, *runs: dict[str, Any] | str) -> Path:
    lines = (run if isinstance(run, str) else json.dumps(run) for run in runs)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
