"""Importing and building: quiet, light, and with words that help where something is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(folder)} | variables,
    )


def answer(code: str) -> str:
    """What a fresh process prints; nothing may come with it on stderr."""
    done = run(["-W", "error", "-c", code], ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


STEP = (
    "import cellium_fast as c\n"
    "f = c.Fleet(seed=1, threads=1)\n"
    "f.step(f.open(5000, context_limit=10), c.RoundBatch(context_tokens=[5] * 5000))\n"
    "s = f.session(tools=['a']); s.step(c.Round([c.ToolCall('a', error=True)])); s.close(True)\n"
)


# --- import ---------------------------------------------------------------------------------------
def test_the_import_says_nothing():
    assert answer("import cellium_fast") == ""


@pytest.mark.parametrize("code", ["import cellium_fast", STEP])
def test_neither_import_nor_step_loads_numba(code):
    heavy = "[n for n in ('numba', 'scipy', 'pandas', 'pytest', 'typer', 'rich') if n in m]"
    assert answer(f"{code}\nimport sys\nm = sys.modules\nprint({heavy})") == "[]"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
@pytest.mark.parametrize("code", ["import cellium_fast", STEP])
def test_neither_import_nor_step_starts_a_thread(code):
    assert answer(
        "import os, threading\n"
        "import numpy, pydantic, orjson, yaml, xxhash\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        f"before = count()\n{code}\n"
        "print(count() - before, threading.active_count())"
    ) == "0 1"


def test_threads_work_when_they_are_asked_for_and_needed_and_then_end():
    assert answer(
        "import threading, cellium_fast as c\n"
        "from cellium_fast import pipeline\n"
        "seen = []\n"
        "def watch(*chunk):\n"
        "    seen.append(threading.get_ident())\n"
        "pipeline.STAGES = (*pipeline.STAGES, watch)\n"
        "f = c.Fleet(threads=2); ids = f.open(10_000)\n"
        "for count in (100, 10_000):\n"
        "    f.step(ids[:count], c.RoundBatch())\n"
        "    print(len(set(seen)), threading.active_count(), end=' ')\n"
    ) == "1 1 2 1"


def test_no_global_random_state_is_touched():
    assert answer(
        "import random, numpy as np\n"
        "random.seed(1); np.random.seed(1)\n"
        "left = random.getstate(), np.random.get_state()[1].tolist()\n"
        f"{STEP}"
        "print(left == (random.getstate(), np.random.get_state()[1].tolist()))"
    ) == "True"


def test_everything_in_all_is_there():
    assert answer(
        "import cellium_fast as c; print([n for n in c.__all__ if not hasattr(c, n)])"
    ) == "[]"


# --- an unbuilt checkout --------------------------------------------------------------------------
def test_an_unbuilt_checkout_says_how_to_build_it(tmp_path):
    shutil.copytree(
        ROOT / "cellium_fast", tmp_path / "cellium_fast",
        ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"),
    )
    done = run(["-c", "import cellium_fast"], tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: cellium_fast is not built")
    assert "pip install" in last
    assert "C compiler" in last


# --- no compiler ----------------------------------------------------------------------------------
@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of the checkout with one module to build, so that it is quick.

    Needs what a build needs, setuptools and Cython: without them the tests fail, not skip.
    """
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "cellium_fast").mkdir()
    shutil.copy(ROOT / "cellium_fast" / "__init__.py", tmp_path / "cellium_fast")
    (tmp_path / "src").mkdir()
    for path in ROOT.glob("src/*.pxd"):
        shutil.copy(path, tmp_path / "src")
    shutil.copy(ROOT / "src" / "rules.pyx", tmp_path / "src")
    return tmp_path


@pytest.mark.skipif(os.name == "nt", reason="CC does not choose the compiler there")
@pytest.mark.parametrize("compiler", ["/bin/false", "/nowhere/cc"])
def test_b83_a_build_without_a_compiler_ends_with_what_to_install(checkout, compiler):
    done = run(["setup.py", "build_ext"], checkout, CC=compiler)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert last.startswith("error: cellium-fast needs a C compiler")
    assert "apt install gcc python3-dev" in last
    assert "run the installation again." in last
    assert not list(checkout.rglob("*.so"))


@pytest.mark.skipif(os.name == "nt", reason="CC does not choose the compiler there")
def test_a_compiler_too_old_for_c11_ends_with_what_to_install(checkout):
    old = checkout / "old-cc"
    old.write_text(
        '#!/bin/sh\ncase "$*" in *-std=c11*) echo "unknown option -std=c11" >&2; exit 1;; esac\n'
    )
    old.chmod(0o755)
    done = run(["setup.py", "build_ext"], checkout, CC=str(old))
    assert done.returncode != 0
    assert "a C compiler that knows C11" in done.stderr.strip().splitlines()[-1]


def test_what_decides_nothing_is_loaded_when_first_asked_for(tmp_path):
    code = (
        "import sys, cellium_fast as c; c.Fleet().session().step(c.Round());"
        "assert not {'cellium_fast.render', 'cellium_fast.kernels'} & set(sys.modules);"
        "assert c.kernels.ema([1.0], [0.0], 0.5)[0] == 0.5;"
        "assert all(hasattr(c, name) for name in c.__all__);"
        "print(hasattr(c, 'nothing'))"
    )
    done = run(["-c", code], ROOT)
    assert done.stdout.strip() == "False", done.stderr


def test_a_default_fleet_steps_without_validators_and_thread_pools():
    assert answer(
        "import sys, cellium_fast as c\n"
        "s = c.Fleet().session(context_limit=10); d = s.step(c.Round(context_tokens=10))\n"
        "print(d.action, bool(d.prompt and d.explain()))\n"
        "print(c.Policy.__pydantic_complete__, 'concurrent.futures' in sys.modules)"
    ).split() == ["compress", "True", "False", "False"]
