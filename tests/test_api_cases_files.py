"""What users have complained about: usage counted twice, broken recordings, slow starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_runs import as_json, call, start

from cellium_fast import Fleet, InputError, Round, context_tokens

# --- B55: cached tokens are in the context once --------------------------------------------------
USAGES: list[tuple[dict[str, Any], float | None]] = [
    ({"prompt_tokens": 38_196, "cached_tokens": 38_153, "completion_tokens": 400}, 38_596),
    ({"total_tokens": 163_978, "cache_read": 819_661}, 163_978),
    ({"total_tokens": 900, "prompt_tokens": 700, "completion_tokens": 100}, 900),
    ({"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 800}}, 900),
    ({"prompt_tokens": 900, "completion_tokens": 50, "cache_read_input_tokens": 800}, 950),
    ({"input_tokens": 900, "input_tokens_details": {"cached_tokens": 800},
      "output_tokens": 50}, 950),
    ({"input_tokens": 9, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 91,
      "output_tokens": 50}, 950),
    ({"input_tokens": 900, "cache_read_input_tokens": None, "output_tokens": 50}, 950),
    ({"output_tokens": 50, "cache_read_input_tokens": 800}, None),
    ({"prompt_tokens": 900.5}, 900.5),
    ({"prompt_tokens": -1}, None), ({"prompt_tokens": "900"}, None),
    ({"prompt_tokens": True}, None),
    ({"prompt_tokens": float("nan")}, None), ({"prompt_tokens": 10**400}, float("inf")),
    ({"prompt_tokens": 10**400, "completion_tokens": 1.5}, float("inf")), ({}, None),
]  # fmt: skip


@pytest.mark.parametrize(("usage", "tokens"), USAGES)
def test_b55_the_size_of_a_context_by_a_usage(usage: dict[str, Any], tokens: float | None) -> None:
    assert context_tokens(usage) == tokens
    assert context_tokens(SimpleNamespace(**usage)) == tokens


@pytest.mark.parametrize("nothing", [None, 5, "text", [], object()])
def test_b55_no_usage_tells_nothing(nothing: Any) -> None:
    assert context_tokens(nothing) is None


@pytest.mark.parametrize(("usage", "window", "saturation"), [
    (USAGES[0][0], 70_000, 0.551), (USAGES[1][0], 300_000, 0.547),
])
def test_b55_saturation(
    usage: dict[str, Any], window: int, saturation: float, tmp_path: Path
) -> None:
    decision = Fleet().session(context_limit=window).step(
        Round(context_tokens=context_tokens(usage)))
    assert decision.features.context_saturation == pytest.approx(saturation, abs=1e-3)
    # And so do recordings.
    messages = [{"role": "user", "content": "go on"},
                {"role": "assistant", "content": "done", "usage": usage}]
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"messages": messages, "context_window": window}))
    result = call("replay", path, "--decisions", tmp_path / "out.jsonl")
    assert result.exit_code == 0, result.stderr
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    found = json.loads(line)["features"]["context_saturation"]
    assert found == pytest.approx(saturation, abs=1e-3)


def test_b55_more_tokens_than_there_can_be_are_refused() -> None:
    with pytest.raises(InputError, match="context_tokens"):
        Fleet().session().step(Round(context_tokens=context_tokens({"prompt_tokens": 10**400})))


# --- B76: broken lines ---------------------------------------------------------------------------
def session_lines(results: list[str]) -> list[str]:
    """A recording of one entry a line: a round, and its result, for each text."""
    header = {"type": "session", "id": "s", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/"}
    lines: list[Any] = [header]
    for number, result in enumerate(results):
        asked = {"type": "toolCall", "id": f"c{number}", "name": "read", "arguments": {"n": number}}
        lines.append({"type": "message", "message": {"role": "assistant", "content": [asked]}})
        lines.append({"type": "message", "message": {
            "role": "toolResult", "toolCallId": f"c{number}", "content": result}})
    return [json.dumps(line) for line in lines]


def run_line(name: str, answer: str = "done") -> str:
    messages = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": answer}]
    return json.dumps({"run_id": name, "messages": messages})


BROKEN = '{"tool":"x","ar'
# The end of each file, and what is said about which of its lines behind the sound ones.
ENDS = [
    (f"{BROKEN}\n", [(1, "not JSON")]),
    (BROKEN, [(1, "not JSON")]),
    ("\n  \n\n", []),
    ("42\n", [(1, "")]),
    ('{"tool":null}\n', [(1, "")]),
    (f'\n42\r\n\r\n{{"tool":null}}\n{BROKEN}', [(2, ""), (4, ""), (5, "not JSON")]),
]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(("end", "problems"), ENDS)
def test_b76_sound_lines_are_replayed_and_the_others_named(
    end: str, problems: list[tuple[int, str]], line_end: str, bom: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    text = "".join(run_line(name) + line_end for name in "abc") + end
    path.write_bytes(bom + text.encode())
    result = call("replay", path, "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert value["total"]["runs"] == value["total"]["rounds"] == 3
    assert value["problems"] == len(problems)
    said = result.stderr.splitlines()
    assert len(said) == len(problems)
    for line, (place, why) in zip(said, problems, strict=True):
        start, _, reason = line.partition(f"runs.jsonl:{3 + place}: ")
        assert start and reason and why in reason, line
    assert f"Problems, named on stderr: {len(problems)}" in call("replay", path).stdout
    strict = call("replay", path, "--json", "--strict")
    assert json.loads(strict.stdout)["total"]["runs"] == 3
    assert strict.exit_code == (2 if problems else 0)
    assert ("--strict" in strict.stderr) == bool(problems)


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(("end", "problems"), ENDS)
def test_b76_sound_rounds_of_a_session_are_replayed(
    end: str, problems: list[tuple[int, str]], line_end: str, bom: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "session.jsonl"
    lines = session_lines(["one", "two", "three"])
    path.write_bytes(bom + ("".join(line + line_end for line in lines) + end).encode())
    value = as_json(path)
    assert (value["total"]["runs"], value["total"]["rounds"]) == (1, 3)
    # What is no entry of a session may be a note of another program, and need not be named.
    assert value["problems"] >= sum(why == "not JSON" for _, why in problems)


def test_b76_a_broken_file_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(run_line("a") + "\n" + BROKEN)
    running = start("replay", path)
    out, err = running.communicate()
    assert running.returncode == 0 and out
    assert b"Traceback" not in err and b"runs.jsonl:2: not JSON" in err


# --- B77: strange characters and long lines ------------------------------------------------------
STRANGE = {
    "line separator": "a\u2028b\u2029c", "next line": "a\u0085b", "NUL": "a\x00b",
    "vertical tab": "a\x0b\x0c\x1cb",
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("escaped", [False, True])
def test_b77_a_record_with_strange_characters_is_one(
    text: str, escaped: bool, tmp_path: Path
) -> None:
    path = tmp_path / "session.jsonl"
    lines = session_lines(["x", "PLACE", "y"])
    written = json.dumps(text, ensure_ascii=escaped)[1:-1]
    path.write_text("\n".join(lines).replace("PLACE", written), encoding="utf-8", newline="")
    value = as_json(path)
    assert (value["total"]["runs"], value["total"]["rounds"], value["problems"]) == (1, 3, 0)


@pytest.mark.parametrize(("written", "problems"), [
    (b"\\ud83d", 0), (b"\\udc00\\ud83d", 0), (b"a\xffb", 1), (b"\xed\xa0\x80", 1),
    (b"\xf0\x9f", 1),
])
def test_b77_bad_characters_are_replaced_and_bad_bytes_told(
    written: bytes, problems: int, tmp_path: Path
) -> None:
    path = tmp_path / "session.jsonl"
    text = "\n".join(session_lines(["x", "PLACE", "y"])).encode()
    path.write_bytes(text.replace(b"PLACE", written))
    result = call("replay", path, "--json")
    value = json.loads(result.stdout)
    assert (value["total"]["runs"], value["total"]["rounds"]) == (1, 3)
    assert value["problems"] == len(result.stderr.splitlines()) == problems
    if problems:
        assert "session.jsonl:5: " in result.stderr and "UTF-8" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="asks for the memory of a process as POSIX")
def test_b77_a_line_of_20_mb_takes_little_time_and_memory(tmp_path: Path) -> None:
    code = (
        "import resource, sys, time\n"
        "from cellium_fast.cli import app\n"
        "def replay(path):\n"
        "    begun = time.process_time()\n"
        "    app(['replay', path, '--jobs', '1', '--json'], standalone_mode=False)\n"
        "    spent = time.process_time() - begun\n"
        "    print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
        "for path in sys.argv[1:]: replay(path)\n"
    )
    paths = [tmp_path / "small.jsonl", tmp_path / "large.jsonl"]
    for path, size in zip(paths, (2, 20_000_000), strict=True):
        path.write_text("\n".join(session_lines(["x", "ab" * (size // 2), "y"])))
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], capture_output=True, check=True, text=True
    )
    assert done.stdout.count('"rounds": 3') >= 2
    (_, before), (spent, after) = (map(float, line.split()) for line in done.stderr.splitlines())
    assert spent < 3 * 1.0      # of this process alone; three times, as for the start below
    # The line as bytes and as text, and what JSON makes of it.
    unit = 1 if sys.platform == "darwin" else 1024
    assert (after - before) * unit < 5 * 20_000_000


# --- B82: the start ------------------------------------------------------------------------------
def test_b82_the_first_step_compiles_nothing() -> None:
    # So there is nothing to warm up: the first step takes what the later ones take, but for what
    # Python loads once.
    code = (
        "import sys, time, cellium_fast as c\n"
        "begun = time.process_time()\n"
        "c.Fleet().session().step(c.Round([c.ToolCall('a', 'b', 'c')], text='d'))\n"
        "f = c.Fleet(); f.step(f.open(1000), c.RoundBatch())\n"
        "assert time.process_time() - begun < 0.3\n"
        "assert not {'numba', 'llvmlite', 'cython', 'Cython'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
