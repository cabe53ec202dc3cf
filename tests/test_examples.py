"""The examples run, and come out as they say."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_closed_loop_is_better_with_control(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    module = runpy.run_path(str(EXAMPLES / "closed_loop.py"))
    without, with_control = module["run"](400, False), module["run"](400, True)
    assert without[0] < 0.6 < 0.9 < with_control[0]
    assert with_control == module["run"](400, True)
    assert with_control != module["run"](400, True, seed=8)


def test_the_closed_loop_prints_a_line_each_way(tmp_path):
    program = [sys.executable, "-W", "error", str(EXAMPLES / "closed_loop.py"), "--agents", "60"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        program, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line, start in zip(lines, ("without control: ", "with control: "), strict=True):
        assert line.startswith(start)
        found = re.search(r"([\d.]+)% of 60 agents succeed, in ([\d.]+) rounds each", line)
        assert found
        assert 0 < float(found[1]) <= 100
        assert float(found[2]) >= 10


def test_every_example_has_a_test():
    assert [path.name for path in EXAMPLES.glob("*.py")] == ["closed_loop.py"]
