"""The stubs of the compiled modules say what the modules have, and types are as promised."""

import ast
import importlib
import importlib.util
import inspect
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import cellium_fast
from cellium_fast import Fleet, Round, ToolCall, _records, _spans, _step

PACKAGE = Path(cellium_fast.__file__).parent
CASES = Path(__file__).with_name("typing_cases.py")
MODULES = sorted(
    path.name.split(".")[0] for path in PACKAGE.iterdir() if path.suffix in (".so", ".pyd")
)
STUBS = {path.stem: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.glob("*.pyi"))}
WORDS = {"f": "float", "i": "int", "u": "int", "b": "bool"}  # by the kind of a dtype

Class = ast.ClassDef
Function = ast.FunctionDef


def is_imported(value: object, module: ModuleType) -> bool:
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__name__", "")
    return isinstance(value, ModuleType) or (
        home not in (None, module) and getattr(home, name, None) is value
    )


def public_names(module: ModuleType) -> dict[str, object]:
    return {
        name: value for name, value in vars(module).items()
        if not name.startswith("_") and not is_imported(value, module)
    }


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that a stub, or a class in it, declares."""
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, Class | Function):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
        elif isinstance(node, ast.Assign):      # a type variable
            assert ast.unparse(node.targets[0]).startswith("_"), ast.dump(node)
        else:
            assert isinstance(node, ast.Import | ast.ImportFrom), ast.dump(node)
    return names


def parameters(node: Function) -> list[tuple[str, bool, bool]]:
    """Name, keyword-only, optional, of each parameter that a stub gives a function."""
    assert not node.args.kwarg, node.name
    plain = [*node.args.posonlyargs, *node.args.args]
    optional = [False] * (len(plain) - len(node.args.defaults)) + [True] * len(node.args.defaults)
    found = [(one.arg, False, has) for one, has in zip(plain, optional, strict=True)]
    if node.args.vararg:
        found.append((node.args.vararg.arg, False, False))
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return found + [(one.arg, True, default is not None) for one, default in named]


def real_parameters(function: object) -> list[tuple[str, bool, bool]]:
    assert callable(function)
    return [
        (one.name, one.kind is one.KEYWORD_ONLY, one.default is not one.empty)
        for one in inspect.signature(function).parameters.values()
    ]


def feature_fields() -> dict[str, str]:
    record = declared(STUBS["_step"].body)["FeatureRecord"]
    assert isinstance(record, Class)
    return {
        name: ast.unparse(node.annotation) for name, node in declared(record.body).items()
        if isinstance(node, ast.AnnAssign)
    }


def test_every_compiled_module_has_a_stub() -> None:
    assert MODULES
    assert sorted(STUBS) == MODULES


@pytest.mark.parametrize("name", MODULES)
def test_a_stub_has_the_public_names_of_its_module(name: str) -> None:
    module = importlib.import_module(f"cellium_fast.{name}")
    assert sorted(declared(STUBS[name].body)) == sorted(public_names(module))


@pytest.mark.parametrize("name", MODULES)
def test_a_stub_has_the_parameters_of_its_functions(name: str) -> None:
    module = importlib.import_module(f"cellium_fast.{name}")
    for item, node in declared(STUBS[name].body).items():
        if isinstance(node, Function):
            assert parameters(node) == real_parameters(getattr(module, item)), item
        else:
            assert isinstance(node, Class) == isinstance(getattr(module, item), type), item


@pytest.mark.parametrize("name", MODULES)
def test_a_stub_has_the_members_of_its_classes(name: str) -> None:
    module = importlib.import_module(f"cellium_fast.{name}")
    for item, node in declared(STUBS[name].body).items():
        if not isinstance(node, Class) or issubclass(getattr(module, item), tuple):
            continue
        real = {
            member: value for member, value in vars(getattr(module, item)).items()
            if not member.startswith("_")
        }
        members = {
            member: stub for member, stub in declared(node.body).items()
            if not member.startswith("_")
        }
        assert sorted(members) == sorted(real), item
        for member, stub in members.items():
            if isinstance(stub, ast.AnnAssign):     # can be set, too, or is the class's own
                of_class = ast.unparse(stub.annotation).startswith("ClassVar")
                assert inspect.isgetsetdescriptor(real[member]) != of_class, member
                continue
            assert isinstance(stub, Function)
            is_property = [ast.unparse(one) for one in stub.decorator_list] == ["property"]
            assert is_property == inspect.isgetsetdescriptor(real[member]), member
            if not is_property:
                assert parameters(stub) == real_parameters(real[member]), member


def test_constants_have_the_types_of_their_stubs() -> None:
    kinds = {
        "int": int, "tuple[str, ...]": tuple, "np.dtype[np.void]": np.dtype,
        "Stage": _spans.Stage, "dict[int, str]": dict,
    }
    for name, tree in STUBS.items():
        module = importlib.import_module(f"cellium_fast.{name}")
        for item, node in declared(tree.body).items():
            if isinstance(node, ast.AnnAssign):
                assert isinstance(node.annotation, ast.Subscript), item  # Final[...]
                kind = ast.unparse(node.annotation.slice)
                assert isinstance(getattr(module, item), kinds[kind]), item


def test_the_feature_record_has_the_fields_of_its_dtype() -> None:
    fields = feature_fields()
    assert tuple(fields) == _records.FEATURES.names == _step.FeatureRecord._fields
    for name, kind in fields.items():
        dtype = _records.FEATURES[name]
        if dtype.shape == ():
            assert kind == WORDS[dtype.kind], name


def test_a_feature_record_holds_what_its_stub_says() -> None:
    fleet = Fleet()
    one = fleet.session().step(Round([ToolCall("look", result="x")]))
    batch = fleet.step(fleet.open(1), [Round([ToolCall("look", result="x")])])[0]
    for features in (one.features, batch.features, fleet.session().decision.features):
        for name, kind in feature_fields().items():
            value = getattr(features, name)
            word = type(value).__name__
            if isinstance(value, np.ndarray):
                word = f"NDArray[np.{value.dtype}]"
            elif isinstance(value, tuple):
                word = f"tuple[{', '.join(type(part).__name__ for part in value)}]"
            assert kind == word, name


def test_the_typing_cases_run() -> None:
    runpy.run_path(str(CASES))


@pytest.mark.skipif(
    importlib.util.find_spec("mypy") is None, reason="mypy is not installed (extra: lint)"
)
def test_the_typing_cases_are_seen_as_promised() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", str(CASES)],
        cwd=CASES.parent.parent, capture_output=True, text=True, check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
