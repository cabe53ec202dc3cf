"""The examples run, and come out as they say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(folder, *program, **environment):
    """What a Python program prints whose cache of compiled code is in this folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *program], cwd=EXAMPLES, text=True, check=False,
        capture_output=True, env={**os.environ, "NUMBA_CACHE_DIR": str(folder), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_closed_loop_is_better_with_control(tmp_path):
    program = (
        "import json, closed_loop\n"
        "kinds = ((False, 7), (True, 7), (True, 7), (True, 8))\n"
        "print(json.dumps([list(map(float, closed_loop.run(400, *kind))) for kind in kinds]))"
    )
    without, controlled, again, other = json.loads(printed(tmp_path, "-c", program))
    assert without[0] < 0.6
    assert controlled[0] > 0.9
    assert controlled == again
    assert controlled != other


def test_the_closed_loop_prints_a_line_each_way(tmp_path):
    program = ("closed_loop.py", "--agents", "60")
    lines = printed(tmp_path, *program, NUMBA_DISABLE_JIT="1").splitlines()
    assert len(lines) == 2
    for line, start in zip(lines, ("without control: ", "with control: "), strict=True):
        assert line.startswith(start)
        found = re.search(r"([\d.]+)% of 60 agents succeed, in ([\d.]+) rounds each", line)
        assert found
        assert 0 < float(found[1]) <= 100
        assert float(found[2]) >= 10


def test_every_example_has_a_test():
    assert [path.name for path in EXAMPLES.glob("*.py")] == ["closed_loop.py"]
