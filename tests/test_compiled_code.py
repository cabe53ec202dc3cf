"""Functions of users as machine code: fields, kinds, caches, and what is said when one fails."""

import importlib
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import functions_of_users
import numba
import numpy as np
import pytest
from compiled_calls import FAILED, OUTCOME, call, random_features

from cellium_fast import (
    CelliumError,
    UserCodeError,
    _records,
    _step,
    bias,
    feature_types,
    reward,
    rule,
)
from cellium_fast.compiled_code import failure
from cellium_fast.user_functions import RoundOutcome

THIS = __file__
NAMES = _records.FEATURES.names
ALL = [
    functions_of_users.stuck_long, functions_of_users.given_up, functions_of_users.half_full,
    functions_of_users.thrifty, functions_of_users.as_told, functions_of_users.when_stuck,
    functions_of_users.going_on, functions_of_users.Inside.of_a_class,
]


def random_outcomes(random, count):
    made = np.zeros(count, OUTCOME)
    made["reward"] = random.random(count)
    made["success"] = random.integers(0, 2, count)
    made["told"] = random.integers(-1, 2, count)
    made["calls"] = random.integers(0, 100, count)
    made["decision_stuck"] = random.integers(0, 2**16, count)
    return made


def outcome_of(record):
    return RoundOutcome(*record.item())


# --- what compiled code reads ---------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_every_feature_is_read_as_python_reads_it(name):
    names = {}
    exec(f"def f(features):\n    return features.{name}\n", names)
    if name == "recent_tools":
        source = "a, b, c = features.recent_tools\n    return a + 3 * b + 9 * c"
        exec(f"def f(features):\n    {source}\n", names)
    compiled = bias("retry")(names["f"]).compiled()
    made = random_features(np.random.default_rng(1), 60)
    for place in range(len(made)):
        row = made[place : place + 1]
        wanted = names["f"](_step.feature_record(row.tobytes()))
        got = call(compiled, row)
        assert (got, type(got)) == (wanted, type(wanted))


def test_an_outcome_is_the_same_record_everywhere():
    assert _records.ROUND_OUTCOME == OUTCOME
    assert RoundOutcome._fields == OUTCOME.names


@pytest.mark.parametrize("name", OUTCOME.names)
def test_every_field_of_an_outcome_is_read_as_python_reads_it(name):
    names = {}
    exec(f"def f(features, outcome):\n    return outcome.{name}\n", names)
    compiled = reward(names["f"]).compiled()
    random = np.random.default_rng(2)
    features, outcomes = random_features(random, 40), random_outcomes(random, 40)
    assert len(set(outcomes[name].tolist())) > 1
    for place in range(40):
        row = outcomes[place : place + 1]
        got = call(compiled, features[place : place + 1], row)
        wanted = getattr(outcome_of(row[0]), name)
        assert (got, type(got)) == (wanted, type(wanted))


@pytest.mark.parametrize("one", ALL)
@pytest.mark.parametrize("compiling", [True, False])
def test_a_function_gives_the_same_compiled_and_with_compilation_off(one, compiling, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", not compiling)
    compiled = type(one).compiled(fresh(one))
    random = np.random.default_rng(3)
    features, outcomes = random_features(random, 200), random_outcomes(random, 200)
    for place in range(200):
        records = [features[place : place + 1]]
        given = [_step.feature_record(records[0].tobytes())]
        if one.PARAMETERS == ("features", "outcome"):
            records.append(outcomes[place : place + 1])
            given.append(outcome_of(outcomes[place]))
        wanted = one(*given)
        fine = one.DECORATOR != "@bias" or -1 <= wanted <= 1
        assert call(compiled, *records) == (wanted if fine or compiling else FAILED)


def fresh(one):
    """The same once more, compiled by nobody yet."""
    if one.DECORATOR == "@rule":
        return rule(proposes="retry")(one.function)
    return reward(one.function) if one.DECORATOR == "@reward" else bias("retry")(one.function)


# --- kinds ----------------------------------------------------------------------------------------
def a_bool(features):
    return features.cycle > 2


def a_flag(features):
    return features.slight


def an_integer(features):
    return features.cycle


def a_float(features):
    return 0.5


def a_mixture(features):
    if features.slight:
        return 1
    return 0.5


def a_short_float(features):
    return np.float32(0.5)


def nothing_at_all(features):
    features.cycle          # noqa: B018


def nothing_on_some_path(features):
    if features.slight:
        return True


def a_tuple(features):
    return features.recent_tools


def a_complex(features):
    return 1j


@pytest.mark.parametrize(("function", "kind"), [
    (a_bool, 0), (a_flag, 0), (an_integer, 1), (a_float, 2), (a_mixture, 2),
])
def test_a_number_is_of_one_of_three_kinds(function, kind):
    assert bias("retry")(function).compiled().kind == kind


@pytest.mark.parametrize(("function", "problem"), [
    (a_float, "wanted True or False on every path, it returns a float"),
    (a_mixture, "wanted True or False on every path, it returns a float"),
    (nothing_at_all, "wanted True or False on every path, it returns nothing"),
    (nothing_on_some_path,
     "wanted True or False on every path, it returns a bool, or nothing on some path"),
    (a_tuple, "wanted True or False on every path, it returns UniTuple(int64 x 3)"),
])
def test_what_is_no_truth_is_refused_when_a_rule_is_compiled(function, problem):
    with pytest.raises(UserCodeError) as caught:
        rule(proposes="retry")(function).compiled()
    assert str(caught.value) == f"{THIS}:{caught.value.line}: {function.__name__}: {problem}"
    assert caught.value.line == function.__code__.co_firstlineno


@pytest.mark.parametrize(("function", "returned"), [
    (a_short_float, "float32"), (a_complex, "complex128"), (nothing_at_all, "nothing"),
    (a_tuple, "UniTuple(int64 x 3)"),
])
def test_what_is_no_number_is_refused_when_a_bias_is_compiled(function, returned):
    with pytest.raises(UserCodeError, match=r"number in \[-1, 1\] on every path") as caught:
        bias("retry")(function).compiled()
    assert str(caught.value).endswith(f"it returns {returned}")


# --- what does not compile ------------------------------------------------------------------------
TABLE = {"a": 1}


def plain_helper(number):
    return number


def misspelt(features):
    limit = 3
    return features.stuck_iteration > limit     # misspelt


def unlike_all(features):
    return features.zzz > 1     # unlike all


def calls_plain(features):
    return plain_helper(features.round) > 1     # calls plain


def calls_decorated(features):
    return functions_of_users.stuck_long(features)      # calls decorated


def calls_rule(features):
    return stuck_long(features)     # calls rule


def reads_table(features):
    return TABLE["a"] > 2       # reads table


def imports(features):
    import os  # imports

    return os.name == "a"


def compares_text(features):
    return features.round > "a"     # compares text


def adds_text(features):
    return features.round + "a"     # adds text


def sets_feature(features):
    features.round = 3
    return True


def catches_one(features):
    try:
        return 1 // features.round > 0
    except ZeroDivisionError:       # catches one
        return False


def unknown_name(features):
    return nowhere > 1      # noqa: F821   unknown name


def formats(features):
    return f"{features.round:>5}" == "    5"    # formats


stuck_long = functions_of_users.stuck_long


@pytest.mark.parametrize(("function", "comment", "problem"), [
    (misspelt, "# misspelt",
     "there is no features.stuck_iteration; did you mean stuck_iterations?"),
    (unlike_all, "# unlike all", "there is no features.zzz"),
    (calls_plain, "# calls plain",
     "a plain Python function cannot be called, here plain_helper; decorate it with numba.njit"),
    (calls_rule, "# calls rule",
     "one decorated function cannot call another, here stuck_long; put what both need into a "
     "function decorated with numba.njit alone"),
    (reads_table, "# reads table",
     "a global of this kind cannot be read, here TABLE, a dict; numbers, text, tuples and arrays "
     "can"),
    (imports, "# imports", "import at the top of the module instead"),
    (compares_text, "# compares text", "there is no gt(int64, Literal[str](a))"),
    (adds_text, "# adds text", "there is no add(int64, Literal[str](a))"),
    (catches_one, "# catches one",
     "a particular exception cannot be caught, here ZeroDivisionError; `except Exception` can"),
    (sets_feature, "def sets_feature", "features.round cannot be set"),
    (unknown_name, "unknown name", "NameError: name 'nowhere' is not defined"),
])
def test_what_does_not_compile_is_told_in_a_line(function, comment, problem):
    with pytest.raises(UserCodeError) as caught:
        rule(proposes="retry")(function).compiled()
    error = caught.value
    lines = Path(THIS).read_text("utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if comment in text)
    assert str(error) == f"{THIS}:{line}: {function.__name__}: does not compile: {problem}"
    assert (error.function, error.filename, error.line) == (function.__name__, THIS, line)
    assert isinstance(error, CelliumError)


def test_whatever_does_not_compile_is_told_briefly():
    for function in (calls_decorated, formats):
        with pytest.raises(UserCodeError, match=r"does not compile: ") as caught:
            rule(proposes="retry")(function).compiled()
        problem = str(caught.value).partition("does not compile: ")[2]
        assert "\n" not in problem and 0 < len(problem) <= 200
        assert caught.value.__cause__ is not None


def test_the_error_gets_out_of_other_processes():
    error = UserCodeError("mine", "rules.py", 7, "raised ValueError: no")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert str(error) == "rules.py:7: mine: raised ValueError: no"


# --- what fails when it is called -----------------------------------------------------------------
def raises_error(features):
    if features.cycle == 3:
        raise ValueError("a cycle of three")    # raises error
    return False


def divides(features):
    share = features.progress_score / features.cycle    # divides
    return share > 0.5


def any_integer(features):
    return features.cycle


def any_float(features):
    return features.context_ratio


def logarithm(features):
    return math.log(features.context_ratio)     # logarithm


def beyond(features):
    return features.run_tool * features.run_tool * features.run_tool > 0


@pytest.mark.parametrize("compiling", [True, False])
@pytest.mark.parametrize(("make", "function", "values", "place", "problem"), [
    (rule(proposes=1), raises_error, {"cycle": 3}, "# raises error",
     "raised ValueError: a cycle of three"),
    (rule(proposes=1), divides, {"cycle": 0}, "# divides",
     "raised ZeroDivisionError: float division by zero"),
    (rule(proposes=1), any_integer, {"cycle": 2}, "def any_integer",
     "wanted True or False, it returned 2"),
    (bias("retry"), any_float, {"context_ratio": 1.5}, "def any_float",
     "wanted a number in [-1, 1], it returned 1.5"),
    (bias("retry"), any_float, {"context_ratio": math.nan}, "def any_float",
     "wanted a number in [-1, 1], it returned nan"),
    (bias("retry"), logarithm, {"context_ratio": 0.0}, "# logarithm",
     "raised ValueError: math domain error"),
])
def test_a_failure_is_told_with_its_line(
    make, function, values, place, problem, compiling, monkeypatch
):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", not compiling)
    compiled = make(function).compiled()
    assert not compiled.cannot_fail
    features = np.zeros(1, _records.FEATURES)
    for name, value in values.items():
        features[name] = value
    returned = call(compiled, features)
    raised = "raised" in problem
    assert (returned is FAILED) == (raised or not compiling)
    error = failure(
        compiled, features.tobytes(), returned=None if returned is FAILED else returned
    )
    lines = Path(THIS).read_text("utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if place in text)
    assert isinstance(error, UserCodeError)
    assert str(error) == f"{THIS}:{line}: {function.__name__}: {problem}"
    assert (error.__cause__ is not None) == raised


def test_a_failure_in_a_reward_is_found_with_its_outcome():
    @reward
    def fails(features, outcome):
        if outcome.calls == 7:
            raise RuntimeError("seven")
        return 0.5

    outcome = np.zeros(1, OUTCOME)
    outcome["calls"] = 7
    features = np.zeros(1, _records.FEATURES)
    assert call(fails.compiled(), features, outcome) is FAILED
    error = failure(fails.compiled(), features.tobytes(), outcome.tobytes())
    assert "fails: raised RuntimeError: seven" in str(error)


def test_a_failure_of_compiled_code_alone_says_why():
    compiled = rule(proposes=1)(beyond).compiled()
    features = np.zeros(1, _records.FEATURES)
    features["run_tool"] = 2**32 - 1
    assert call(compiled, features) is FAILED
    assert str(failure(compiled, features.tobytes())).endswith(
        "beyond: failed in compiled code, though not in Python; wanted True or False: whole "
        "numbers have 64 bits there"
    )


def test_an_interrupt_in_a_function_that_runs_as_python_is_handed_on(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    problems = [KeyboardInterrupt("now")]

    @rule(proposes="retry")
    def interrupted(features):
        if problems:
            raise problems[0]
        return True

    compiled = interrupted.compiled()
    features = np.zeros(1, _records.FEATURES)
    assert call(compiled, features) is FAILED
    assert failure(compiled, features.tobytes()) is problems[0]
    problems.clear()
    assert call(compiled, features) == 1


def test_a_function_that_does_not_always_do_the_same_is_told_as_it_failed(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    problems = [ValueError("only once")]

    @rule(proposes="retry")
    def changing(features):
        if problems:
            raise problems.pop()
        return True

    features = np.zeros(1, _records.FEATURES)
    assert call(changing.compiled(), features) is FAILED
    assert "raised ValueError: only once" in str(failure(changing.compiled(), features.tobytes()))


# --- caches ---------------------------------------------------------------------------------------
SOURCE = (
    "from numba import njit\n"
    "import settings\n"
    "from settings import OTHER, helper\n"
    "from cellium_fast import rule\n"
    "@rule(proposes='retry')\n"
    "def often(features):\n"
    "    return features.round + helper(0) > settings.LIMIT + OTHER\n"
)
SETTINGS = (
    "from numba import njit\nLIMIT = 3\nOTHER = 1\n@njit\ndef helper(x):\n    return x + 1\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of modules, imported anew at each look, and of Numba's cache."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "my_rules.py").write_text(SOURCE)
    (tmp_path / "settings.py").write_text(SETTINGS)
    yield tmp_path
    for name in ("my_rules", "settings"):
        sys.modules.pop(name, None)


def look(folder):
    """Import the rule anew: from which round it fires, and whether its code was in the cache."""
    for name in ("my_rules", "settings"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    compiled = importlib.import_module("my_rules").often.compiled()
    features = np.zeros(1, _records.FEATURES)
    fires = []
    for number in range(20):
        features["round"] = number
        fires.append(call(compiled, features))
    assert fires == sorted(fires)
    hits = sum(compiled.kept.stats.cache_hits.values())
    misses = sum(compiled.kept.stats.cache_misses.values())
    return fires.index(True), (hits, misses)


FROM_CACHE, NOT_FROM_CACHE = (1, 0), (0, 1)


def change(path, old, new):
    """Change a file, and its time of change, which may be coarse."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    later = path.stat().st_mtime + 5
    os.utime(path, (later, later))


def test_code_is_cached_until_its_source_changes(folder):
    assert look(folder) == (4, NOT_FROM_CACHE)
    assert look(folder) == (4, FROM_CACHE)
    change(folder / "my_rules.py", "helper(0)", "helper(1)")
    assert look(folder) == (3, NOT_FROM_CACHE)
    assert look(folder) == (3, FROM_CACHE)


@pytest.mark.parametrize(("old", "new", "fires"), [
    ("LIMIT = 3", "LIMIT = 5", 6), ("OTHER = 1", "OTHER = 4", 7), ("x + 1", "x + 2", 3),
])
def test_code_is_not_taken_from_the_cache_when_what_it_reads_elsewhere_changed(
    folder, old, new, fires
):
    assert look(folder) == (4, NOT_FROM_CACHE)
    change(folder / "settings.py", old, new)
    assert look(folder) == (fires, NOT_FROM_CACHE)
    change(folder / "settings.py", new, old)
    assert look(folder) == (4, FROM_CACHE)


def test_code_of_another_version_of_the_package_is_not_taken_from_the_cache(folder, monkeypatch):
    assert look(folder) == (4, NOT_FROM_CACHE)
    monkeypatch.setattr(feature_types, "COMPILER", "another")
    assert look(folder) == (4, NOT_FROM_CACHE)
    assert look(folder) == (4, FROM_CACHE)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x05N."])
def test_a_broken_cache_only_costs_the_compilation(folder, ending, content):
    assert look(folder) == (4, NOT_FROM_CACHE)
    (file,) = (folder / "cache").rglob(f"*often*.{ending}")
    file.write_bytes(content)
    assert look(folder)[0] == 4


def test_a_place_where_nothing_can_be_written_only_costs_the_compilation(folder, monkeypatch):
    (folder / "file").touch()       # in its place; modes do not hold the superuser
    (folder / "__pycache__").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder / "file" / "cache"))
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(folder / "file"))
    assert look(folder) == (4, NOT_FROM_CACHE)
    assert sys.modules["my_rules"].often.compiled().kept.stats.cache_path is None


def test_a_function_without_a_file_only_costs_the_compilation():
    names = {}
    exec("def f(features):\n    return features.cycle > 1\n", names)
    features = np.zeros(1, _records.FEATURES)
    assert call(rule(proposes=1)(names["f"]).compiled(), features) is False


# --- in a process of its own ----------------------------------------------------------------------
@pytest.mark.parametrize("disabled", ["0", "1"])
def test_the_same_with_numba_disable_jit(disabled):
    code = (
        "import numpy as np, functions_of_users as u\n"
        "from compiled_calls import call, random_features\n"
        "made = random_features(np.random.default_rng(5), 50)\n"
        "code = u.given_up.compiled()\n"
        "print([int(call(code, made[i:i + 1])) for i in range(50)], code.kind)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False,
        cwd=Path(THIS).parent, env=os.environ | {"NUMBA_DISABLE_JIT": disabled},
    )
    assert done.returncode == 0, done.stderr
    made = random_features(np.random.default_rng(5), 50)
    fired = [
        int(functions_of_users.given_up(_step.feature_record(made[place : place + 1].tobytes())))
        for place in range(50)
    ]
    assert done.stdout.strip() == f"{fired} {disabled}" and 0 < sum(fired) < 50
