"""Run the tests in a build that watches itself for bad memory accesses and undefined behaviour.

    python .ci/sanitize.py                    # everything: minutes
    python .ci/sanitize.py --short            # the tests that exercise the kernels most
    python .ci/sanitize.py tests/test_bandit.py -k beta
    python .ci/sanitize.py --threads          # ThreadSanitizer, on the tests with threads

Needs what the tests need, and GCC with its sanitizers (they come with it; Linux). The checkout is
copied to build/sanitize/ and built in place there, so that the build in use stays as it is. First
of all, a module that is wrong on purpose must be caught by the same compiler with the same flags.
Whatever a sanitizer reports ends the run with its report and a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "sanitize"
COPIED = (
    "setup.py", "pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE",
    "MANIFEST.in", "src", "cellium_fast", "tests", "examples", "benchmarks", "docs", ".ci",
    ".github",
)
LEFT_OUT = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "venv")

# GCC counts the conversion of floats among undefined behaviour only when it is asked to.
MEMORY = "address,undefined,float-cast-overflow"
THREADS = "thread"
RUNTIMES = {MEMORY: ("libasan.so", "libubsan.so"), THREADS: ("libtsan.so",)}

SHORT = (
    "tests/test_lanes.py", "tests/test_beta_variants.py", "tests/test_columns.py",
    "tests/test_ingest.py", "tests/test_ingest_strange.py", "tests/test_text.py",
    "tests/test_evidence_random.py", "tests/test_philox.py", "tests/test_kernels.py",
    "tests/test_learning.py", "tests/test_hostile.py", "tests/test_traces_chat.py",
    "tests/test_block.py", "tests/test_stages.py", "tests/test_policy_choice.py",
    "tests/test_propensity.py",
)
WITH_THREADS = ("tests/test_fleet.py", "tests/test_pipeline.py", "-k", "thread")

# What must be caught: Python code that calls a wrong function, and a word of the report.
FAULTS = {
    MEMORY: {
        "past_the_end": "heap-buffer-overflow", "after_free": "heap-use-after-free",
        "overflow": "signed integer overflow", "shift": "shift exponent",
        "misaligned": "misaligned address", "cast": "outside the range of representable values",
    },
    THREADS: {"race": "data race"},
}


def main() -> int:
    """Build, see that faults are caught, and run the tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true")
    form.add_argument("--threads", action="store_true")
    chosen, tests = parser.parse_known_args()
    kind = THREADS if chosen.threads else MEMORY
    if chosen.threads:
        tests = [*WITH_THREADS, *tests]
    elif chosen.short:
        tests = [*SHORT, *tests]

    folder = PLACE / ("threads" if chosen.threads else "memory")
    environment = watched(kind, folder)
    see_that_faults_are_caught(kind, folder, environment)
    copy_checkout(folder)
    build(kind, folder)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests],
        cwd=folder, env=environment, check=False,
    )
    return done.returncode


def watched(kind: str, folder: Path) -> dict[str, str]:
    """The environment of a Python that loads the sanitizers before everything else."""
    runtimes = []
    for name in RUNTIMES[kind]:
        path = compiler_says(f"-print-file-name={name}")
        if not os.path.isabs(path):
            sys.exit(f"error: {compiler()} has no {name}; install GCC with its sanitizers "
                     "(Debian or Ubuntu: apt install gcc; Fedora: dnf install libasan libubsan)")
        runtimes.append(path)
    # Python and NumPy keep memory until the end, which is not a leak worth a report.
    settings = "abort_on_error=0:exitcode=99"
    return os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:{settings}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:{settings}",
        "TSAN_OPTIONS": f"halt_on_error=1:report_signal_unsafe=0:{settings}",
        "PYTHONMALLOC": "malloc",       # or freed objects stay readable in Python's own pools
        "PYTHONPATH": str(folder),
    }


def compiler() -> str:
    """The C compiler that setup.py would take."""
    return os.environ.get("CC", "gcc")


def compiler_says(*options: str) -> str:
    """What the compiler answers."""
    try:
        done = subprocess.run(
            [compiler(), *options], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: the compiler {compiler()} does not run: {error}")
    return done.stdout.strip()


def copy_checkout(folder: Path) -> None:
    """Copy what is built and tested; what was built there before is kept for what is unchanged."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            stale = {path.relative_to(target) for path in target.rglob("*.*")} - {
                path.relative_to(source) for path in source.rglob("*.*")
            }
            for path in stale:
                if path.suffix not in (".so", ".pyc"):
                    (target / path).unlink()
            shutil.copytree(source, target, ignore=LEFT_OUT, dirs_exist_ok=True)
        elif source.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def build(kind: str, folder: Path) -> None:
    """Build in place, with the sanitizers compiled in."""
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=folder, env=os.environ | {"CELLIUM_SANITIZE": kind, "CC": compiler()}, check=True,
    )


def see_that_faults_are_caught(kind: str, folder: Path, environment: dict[str, str]) -> None:
    """Run each function of the wrong module; one that nobody notices is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    faults = folder / "faults.so"
    source = ROOT / ".ci" / "faults.c"
    subprocess.run(
        [compiler(), "-shared", "-fPIC", "-O0", "-g", "-pthread", f"-fsanitize={kind}",
         "-fno-sanitize-recover=all", "-o", str(faults), str(source)],
        check=True,
    )
    for name, word in {"nothing": "", **FAULTS[kind]}.items():
        done = subprocess.run(
            [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(faults)!r}).{name}()"],
            env=environment, capture_output=True, text=True, check=False,
        )
        caught = done.returncode != 0 and word in done.stderr
        if caught != bool(word):
            sys.exit(f"error: the sanitizers do not work here: {name} of .ci/faults.c ended with "
                     f"code {done.returncode}\n{done.stderr}")
    print(f"the sanitizers catch {', '.join(FAULTS[kind])}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
