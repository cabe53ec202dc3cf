"""What the sdist and the wheel hold, built from a checkout without git."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WATCHED = "san" in os.environ.get("LD_PRELOAD", "")     # a sanitizer: see .ci/sanitize.py
LEFT_OUT = shutil.ignore_patterns(
    "build", "dist", "*.egg-info", "*.so", "*.pyd", "__pycache__", "venv", ".venv", ".git",
    ".*_cache", ".hypothesis", ".benchmarks",
)
FOLDERS = {"src", "cellium_fast", "tests", "examples", "benchmarks", "docs", ".ci"}
FILES = {
    "setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "ARCHITECTURE.md",
    "CONTRIBUTING.md", "LICENSE", "PKG-INFO",
}


def backend(call: str, folder: Path) -> None:
    """Call the build backend as pip does, without a package index and without git."""
    code = f"from setuptools import build_meta; build_meta.{call}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False,
        timeout=900, env=os.environ | {"GIT_DIR": str(folder / "no-git")},
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def sdist(tmp_path_factory) -> Path:
    """The sdist, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "checkout", ignore=LEFT_OUT)
    # What a build in place leaves behind must not be taken along.
    (folder / "checkout" / "src" / "rules.c").touch()
    (folder / "checkout" / "cellium_fast" / "_rules.so").touch()
    backend("build_sdist('..')", folder / "checkout")
    (made,) = folder.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        # As newer versions of Python do unasked.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / made.name.removesuffix(".tar.gz")


def wheel_of(sdist: Path, folder: Path, modules: str) -> zipfile.ZipFile:
    """A wheel built from the sdist, with the compiled modules whose names match."""
    shutil.copytree(sdist, folder / "sdist")
    for path in (folder / "sdist" / "src").glob("*.pyx"):
        if not re.fullmatch(modules, path.stem):
            path.unlink()
    backend("build_wheel('..')", folder / "sdist")
    (made,) = folder.glob("*.whl")
    return zipfile.ZipFile(made)


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory):
    """A wheel with one compiled module, so that it is quick."""
    with wheel_of(sdist, tmp_path_factory.mktemp("wheel"), "rules") as archive:
        yield archive


def files_under(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_b83_the_sdist_holds_all_that_is_built_and_tested(sdist):
    inside = files_under(sdist)
    for folder in ("src", "tests", "cellium_fast", "examples", "benchmarks", "docs"):
        wanted = {
            path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix not in (".so", ".pyd", ".c")
            and path.parent.name != "__pycache__"       # of Python's and of Numba's
        }
        assert wanted and wanted <= inside, folder
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "CONTRIBUTING.md"} <= inside


def test_the_sdist_holds_nothing_else(sdist):
    inside = files_under(sdist)
    tops = {path.split("/")[0] for path in inside if not path.startswith("cellium_fast.egg-info/")}
    assert tops <= FOLDERS | FILES
    assert not [path for path in inside if re.search(r"\.(so|pyd|pyc|o|log)$", path)]
    # None that Cython made.
    by_hand = {".ci/faults.c", "tests/crash_points.c"}
    assert {path for path in inside if path.endswith(".c")} == by_hand


def test_the_wheel_holds_the_package_and_its_licence_only(wheel):
    inside = wheel.namelist()
    assert {path.split("/")[0] for path in inside} == {
        "cellium_fast", "cellium_fast-0.1.0.dist-info"
    }
    endings = {Path(path).suffix for path in inside if path.startswith("cellium_fast/")}
    assert endings <= {".py", ".pyi", ".typed", ".so", ".pyd", ".toml"}
    assert not [path for path in inside if re.search("tests?/|benchmarks/|examples/", path)]
    stubs = {path.name for path in (ROOT / "cellium_fast").glob("*.pyi")}
    assert {Path(path).name for path in inside if path.endswith(".pyi")} == stubs
    assert "cellium_fast/py.typed" in inside
    licence = wheel.read("cellium_fast-0.1.0.dist-info/licenses/LICENSE")
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_every_python_file_of_the_package_is_in_the_wheel(wheel):
    sources = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "cellium_fast").rglob("*.py")
    }
    assert sources == {path for path in wheel.namelist() if path.endswith(".py")}


def test_the_wheel_says_what_it_is(wheel):
    said = Parser().parsestr(wheel.read("cellium_fast-0.1.0.dist-info/METADATA").decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert said["License-Expression"] == "Apache-2.0"
    assert said.get_all("License-File") == ["LICENSE"]
    assert said["Requires-Python"] == ">=3.11"
    assert {"Typing :: Typed", "Programming Language :: Cython"} <= set(said.get_all("Classifier"))
    needed = [one for one in said.get_all("Requires-Dist") if "extra ==" not in one]
    assert sorted(needed) == sorted(project["dependencies"])
    assert said.get_payload().startswith("# cellium_fast")
    entry = wheel.read("cellium_fast-0.1.0.dist-info/entry_points.txt").decode()
    assert "cellium-fast = cellium_fast.cli:main" in entry


def test_every_dependency_has_its_oldest_version():
    done = subprocess.run(
        [sys.executable, ".ci/oldest.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["tune"], *extras["plot"], *extras["zstd"]]
    assert done.stdout.replace("==", ">=").split() == [one.split(";")[0] for one in needed]


@pytest.mark.long
def test_b84_the_whole_wheel_steps_with_warnings_as_errors(sdist, tmp_path):
    with wheel_of(sdist, tmp_path, ".*") as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        "import cellium_fast as c; print(c.Fleet().session().step(c.Round()).action, c.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        check=False, env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
    )
    assert done.stdout.split()[:1] == ["continue"], done.stderr
    assert str(tmp_path) in done.stdout


# --- Where nothing can be written -----------------------------------------------------------------
@pytest.mark.skipif(os.name == "nt", reason="a process needs more of its environment there")
def test_b79_a_step_works_where_no_cache_can_be_written(tmp_path):
    package = tmp_path / "cellium_fast"
    shutil.copytree(
        ROOT / "cellium_fast", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in {path.parent for path in package.rglob("*.py")}:
        (folder / "__pycache__").touch()    # a file in its place; modes do not hold the superuser
    (tmp_path / "file").touch()
    code = (
        "import cellium_fast as c\n"
        "f = c.Fleet(threads=1)\n"
        "f.step(f.open(1000), c.RoundBatch())\n"
        "f.session().step(c.Round([c.ToolCall('a')]))\n"
        "print(c.__file__)"
    )
    kept = {name: os.environ[name] for name in os.environ if name.startswith("LD_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False,
        cwd=tmp_path, env=kept | {
            "HOME": "/nonexistent", "PYTHONPATH": str(tmp_path),
            "NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache"),
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(package / "__init__.py")


# --- Starting -------------------------------------------------------------------------------------
@pytest.mark.skipif(WATCHED, reason="a build with sanitizers starts slowly")
@pytest.mark.parametrize(("code", "most"), [
    ("import cellium_fast", 0.3),
    ("import sys\nfrom cellium_fast.cli import main\n"
     "sys.argv = ['cellium-fast', '--help']\n"
     "try:\n    main()\nexcept SystemExit:\n    pass", 0.5),
], ids=["import", "help"])
def test_b82_starting_is_quick_and_loads_no_numba(code, most):
    """In CPU time beyond Python's own start, the best of several.

    Other processes slow this one down on shared processors: twice the limit fails.
    """
    most *= 2
    code = (
        f"import time\nbegan = time.process_time()\n{code}\ntook = time.process_time() - began\n"
        "import sys\nprint('numba' in sys.modules, took)"
    )
    best = most + 1.0
    for _ in range(12):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        loaded, took = done.stdout.split()[-2:]
        assert loaded == "False"
        best = min(best, float(took))
        if best < most:
            break
    assert best < most
