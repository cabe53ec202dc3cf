"""The documentation agrees with the code: its tables, its examples, the files it names."""

import ast
import contextlib
import doctest
import importlib
import pkgutil
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import cellium_fast
from cellium_fast import Policy, _records, _rules

ROOT = Path(__file__).parent.parent
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
POLICIES = {"default": Policy(), "cellium": Policy.preset("cellium")}

RULE_COLUMNS = ["bit", "rule", "fires when", "`default`", "`cellium`"]
SWITCHES = ("enabled", "actions", "alone", "after_redirect")    # what a row says in words
PARAMETER_COLUMNS = ["parameter", "`default`", "`cellium`", "meaning"]


# --- tables --------------------------------------------------------------------------------------
def rows_of(columns: list[str]) -> list[list[str]]:
    """The rows of all tables with this head."""
    rows, head = [], None
    for line in [*SEMANTICS.splitlines(), ""]:
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if head is None:
            head = cells
        elif head == columns and not set("".join(cells)) <= set("- "):
            assert len(cells) == len(columns), line
            rows.append(cells)
    assert rows, columns
    return rows


def value_of(text: str) -> object:
    """A value as a table writes it."""
    words = {"yes": True, "no": False, "never": None}
    if text in words:
        return words[text]
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def same(written: object, real: object) -> bool:
    return written == real and isinstance(written, bool) == isinstance(real, bool)


def leaves(model: BaseModel, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in model:
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def parameters_of_rules() -> set[str]:
    return {path for path, _ in leaves(Policy()) if path.startswith("rules.")}


def test_tables_of_parameters_are_the_policies() -> None:
    rows = rows_of(PARAMETER_COLUMNS)
    written = [row[0].strip("`") for row in rows]
    assert len(set(written)) == len(written)
    real = {name: dict(leaves(policy)) for name, policy in POLICIES.items()}
    assert set(written) == set(real["default"]) - parameters_of_rules()
    for (_, default, cellium, _), path in zip(rows, written, strict=True):
        assert same(value_of(default), real["default"][path]), path
        assert same(value_of(cellium), real["cellium"][path]), path


def test_the_table_of_rules_has_every_rule_at_its_bit() -> None:
    rows = rows_of(RULE_COLUMNS)
    assert [row[1].strip("`") for row in rows] == list(_rules.RULES)
    assert [int(row[0]) for row in rows] == list(range(len(_rules.RULES)))


@pytest.mark.parametrize("name", POLICIES)
def test_the_table_of_rules_is_the_policy(name: str) -> None:
    for row in rows_of(RULE_COLUMNS):
        rule = getattr(POLICIES[name].rules, row[1].strip("`"))
        effect, _, values = row[RULE_COLUMNS.index(f"`{name}`")].partition("; ")
        pairs = [pair.split("=") for pair in values.split(", ")] if values else []
        written = {parameter: value_of(value) for parameter, value in pairs}
        real = {
            parameter: value for parameter, value in rule
            if parameter not in SWITCHES
        }
        assert written.keys() == real.keys(), row
        assert all(same(written[parameter], real[parameter]) for parameter in real), row
        assert (effect == "off") is not rule.enabled, row
        if rule.enabled:
            actions = ", ".join(map(str, rule.actions))
            alone = " alone" if getattr(rule, "alone", False) else ""
            waits = " after a redirect" if getattr(rule, "after_redirect", False) else ""
            assert effect == actions + alone + waits, row


def test_the_conditions_of_rules_name_all_their_parameters() -> None:
    bold = {row[1].strip("`"): set(re.findall(r"\*\*(\w+)\*\*", row[2]))
            for row in rows_of(RULE_COLUMNS)}
    for rule, begins, ends in (
        ("progressing", "Rule 15 looks at", "\n\nRule 29"),
        ("loop_suspected", "Rule 29 is", "\n\nWith `ema_alpha`"),
    ):
        text, end, _ = SEMANTICS.partition(begins)[2].partition(ends)
        assert end, rule
        bold[rule] = set(re.findall(r"\*\*(\w+)\*\*", text))
    for path in parameters_of_rules():
        _, rule, parameter = path.split(".")
        if parameter not in SWITCHES:
            assert parameter in bold[rule], path
    for name in SWITCHES:
        assert f"`{name}`" in SEMANTICS


def test_every_feature_is_in_a_table() -> None:
    tables = (["feature", "range", "value"], ["feature", "value"])
    described = [row[0].strip("`") for columns in tables for row in rows_of(columns)]
    for name in _records.FEATURES.names or ():
        assert described.count(name) == 1, name


# --- examples ------------------------------------------------------------------------------------
def blocks() -> Iterator[Any]:
    for page in PAGES:
        found = re.finditer(
            r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        for number, block in enumerate(found, 1):
            yield pytest.param(block[1], id=f"{page.name}-{number}")


@pytest.mark.parametrize("block", list(blocks()))
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__docs__"}
    if block.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(block, names, "block", None, None)
        assert doctest.DocTestRunner().run(test).failed == 0
    else:
        exec(compile(block, "block", "exec"), names)


def fail(name: str) -> None:
    raise AssertionError(f"{name} cannot be imported")


MODULES = [
    cellium_fast.__name__,
    *(one.name for one in pkgutil.walk_packages(cellium_fast.__path__, "cellium_fast.", fail)),
]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.find_spec(name)
    assert spec and spec.origin
    source = Path(spec.origin).read_text("utf-8") if spec.origin.endswith(".py") else ""
    examples = re.findall(r"^ *>>> .*", source, re.MULTILINE)
    assert not [line for line in examples if "SKIP" in line]
    if name.endswith(".__main__"):
        assert not examples  # to import it is to run the command
        return
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert runner.failures == 0
    if source:
        assert runner.tries == len(examples), "an example stands where doctest does not look"


# --- files ---------------------------------------------------------------------------------------
def repository_files() -> list[Path]:
    """What git tracks or would track; without git, all but what is built or hidden."""
    if shutil.which("git"):
        found = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )
        paths = [ROOT / name for name in found.stdout.split("\0") if name]
        if found.returncode == 0 and paths:
            return sorted({path for path in paths if path.is_file()})
    built = re.compile(r"^(build|dist|__pycache__|\..*|.*\.(egg-info|so|pyd|c|pyc))$")
    return sorted(
        path for path in ROOT.rglob("*")
        if path.is_file() and not any(map(built.match, path.relative_to(ROOT).parts))
    )


def texts() -> Iterator[tuple[Path, str]]:
    for path in repository_files():
        with contextlib.suppress(UnicodeDecodeError):
            yield path.relative_to(ROOT), path.read_text("utf-8")


def test_no_file_names_the_place_it_was_written_at() -> None:
    place = re.compile(r"(?<![\w.~/-])/[w]ork/")
    assert not [path for path, text in texts() if place.search(text)]


def test_pages_that_files_name_are_in_the_repository() -> None:
    files = repository_files()
    pages = {path.name for path in files if path.suffix == ".md"}
    recordings = (Path("examples", "runs"), Path("tests", "data"))
    for path, text in texts():
        if not any(path.is_relative_to(folder) for folder in recordings):
            named = set(re.findall(r"(?<![\w-])[A-Z]\w+\.md\b", text))
            assert named <= pages, path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        if "://" in name:
            continue
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target
    folders = "src|cellium_fast|tests|docs|examples|benchmarks"
    for name in re.findall(rf"`((?:{folders})/[\w./]*)`", text):
        assert (ROOT / name).exists(), name


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
