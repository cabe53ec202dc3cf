"""Compiled functions of users give what Python gives, and fail where Python raises."""

import math
import random
import re
from contextlib import suppress

import numpy as np
import pytest
from compiled_calls import FAILED, call, random_features

from cellium_fast import _records, _step, bias, rule
from cellium_fast.errors import UserCodeError

SEED = 20
RECORDS = 300       # of features, for every function


# --- whole numbers of 64 bits, in Python ----------------------------------------------------------
class Whole(int):
    """A whole number whose operators refuse a result beyond 64 bits.

    Its quotients, and comparisons with floats, are those of the nearest floats.
    """

    __hash__ = int.__hash__


def whole(value):
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise OverflowError("beyond 64 bits")
        return Whole(value)
    return value


def _refusing(name):
    plain = getattr(int, name)

    def refusing(*numbers):
        result = plain(*numbers)
        return result if result is NotImplemented else whole(result)

    return refusing


for _name in ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift", "and", "or", "xor"):
    setattr(Whole, f"__{_name}__", _refusing(f"__{_name}__"))
    setattr(Whole, f"__r{_name}__", _refusing(f"__r{_name}__"))
def _of_floats(name):
    plain = getattr(int, name)

    def of_floats(one, other):
        if isinstance(other, float) or "div" in name:
            return getattr(float, name)(float(one), float(other))
        return plain(one, other)

    return of_floats


for _name in ("truediv", "rtruediv", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Whole, f"__{_name}__", _of_floats(f"__{_name}__"))
for _name in ("neg", "abs", "invert", "pos"):
    setattr(Whole, f"__{_name}__", _refusing(f"__{_name}__"))


def _power(base, exponent):
    if exponent < 0:
        raise OverflowError("no whole number")
    return whole(int(base) ** int(exponent))


Whole.__pow__ = lambda base, exponent: (
    _power(base, exponent) if isinstance(exponent, int) else float(base) ** exponent
)
Whole.__rpow__ = lambda exponent, base: (
    _power(base, exponent) if isinstance(base, int) else base ** int(exponent)
)


class Floors:
    """`math`, with `Whole` numbers."""

    def __getattr__(self, name):
        return getattr(math, name)

    floor = staticmethod(lambda number: whole(math.floor(number)))
    ceil = staticmethod(lambda number: whole(math.ceil(number)))
    trunc = staticmethod(lambda number: whole(math.trunc(number)))


ZERO = Whole(0)
IN_PYTHON = {
    "math": Floors(),
    "int": lambda number: whole(int(number)),
    "round": lambda number: whole(round(number)),
    "sum": lambda numbers, start=ZERO: sum(numbers, start),
    "len": lambda numbers: Whole(len(numbers)),
    "range": lambda *ends: map(Whole, range(*ends)),
}


def in_python(record):
    """Features of Python's numbers, the whole ones among them `Whole`."""
    row = _step.feature_record(record.tobytes())
    return row._replace(**{
        name: tuple(map(Whole, value)) if isinstance(value, tuple) else
        Whole(value) if type(value) is int else value
        for name, value in row._asdict().items()
    })


@pytest.fixture(scope="module")
def records():
    """Packed features, and the same for Python."""
    made = random_features(np.random.default_rng(SEED), RECORDS)
    rows = [made[place : place + 1] for place in range(RECORDS)]
    return [(row, in_python(row)) for row in rows]


def outcome_of(function, features):
    """What a function gives in Python, or FAILED."""
    try:
        value = function(features)
    except Exception:
        return FAILED
    return FAILED if isinstance(value, complex) else value


def same(one, other):
    both_nan = one != one and other != other
    return (one is FAILED) == (other is FAILED) and (one == other or both_nan)


def agree(source, records, where=f"seed {SEED}"):
    """Compile a source, and compare it with Python on random features."""
    names, refusing = {"math": math}, dict(IN_PYTHON)
    exec(source, names)
    exec(source, refusing)
    compiled = bias("redirect", name="f")(names["f"]).compiled()
    for packed, features in records:
        got, wanted = call(compiled, packed), outcome_of(refusing["f"], features)
        assert same(got, wanted), (
            f"{where}\n{source}\n{features}\ncompiled {got!r}, in Python {wanted!r}"
        )
        assert not (compiled.cannot_fail and got is FAILED), source


# --- what functions are made of -------------------------------------------------------------------
EXPRESSIONS = """
f.stuck_iterations + f.run_length
f.run_tool - f.error_result
f.run_tool * f.error_result
f.run_tool * f.error_result * f.cycle
f.stuck_iterations - f.round
-f.stuck_iterations
f.rounds_left * f.run_tool
f.stuck_iterations // f.cycle
f.rounds_left // f.cycle
f.rounds_left % f.cycle
-f.stuck_iterations % 7
f.stuck_iterations / f.cycle
f.progress_score / f.progress_trend
f.progress_score // f.progress_trend
f.progress_score % f.progress_trend
f.progress_trend % 0.3
f.progress_trend // 0.3
divmod(f.rounds_left, 7)[0]
divmod(f.rounds_left, 7)[1]
f.cycle ** 2
f.run_tool ** 2
f.run_tool ** f.cycle
2 ** f.run_length
f.cycle ** f.rounds_left if f.rounds_left < 5 else 0
f.progress_trend ** 2
f.context_ratio ** 2.0
2.0 ** f.context_ratio
f.progress_trend ** -1
f.progress_trend ** 0.5
f.progress_score ** f.progress_trend
f.cycle ** 0.5
pow(f.progress_score, 2)
math.pow(f.progress_score, f.progress_trend)
f.run_tool << f.cycle
f.run_tool << f.no_information % 80
f.run_tool >> f.cycle
f.rounds_left >> 70
f.cycle << f.rounds_left % 3
1 << (f.cycle - 1)
f.run_tool & f.error_result | 3
f.run_tool ^ f.error_result
~f.run_tool
int(f.progress_trend * 1e3)
int(f.context_ratio * 1e19)
int(math.exp(700.0 * f.progress_score))
round(f.progress_trend * 10)
round(f.context_ratio * 1e19)
round(f.cycle)
math.floor(f.progress_trend * 10)
math.ceil(f.progress_trend * 10)
math.trunc(f.progress_trend * 10)
math.floor(f.context_ratio * 1e19)
math.log(f.progress_score)
math.log1p(f.progress_trend)
math.log2(f.stuck_iterations)
math.log10(f.context_ratio)
math.sqrt(f.progress_trend)
math.sqrt(f.cycle)
math.exp(1000.0 * f.progress_score)
math.expm1(f.progress_trend)
math.sin(f.progress_trend) + math.cos(f.progress_score) + math.tan(f.error_rate)
math.asin(2.0 * f.progress_trend)
math.acos(2.0 * f.progress_trend)
math.atan(f.progress_trend)
math.acosh(f.cycle)
math.atanh(f.progress_trend * 1.5)
math.sinh(1000.0 * f.progress_trend)
math.tanh(f.progress_trend)
math.atan2(f.progress_trend, f.progress_score)
math.gamma(f.rounds_left)
math.erf(f.progress_trend)
math.fabs(f.progress_trend)
math.degrees(f.progress_trend)
abs(f.rounds_left)
abs(f.progress_trend)
min(f.round, f.stuck_iterations)
max(f.progress_score, f.error_rate, f.empty_rate)
0.2 < f.progress_score <= 0.7
f.cycle == 2 == f.run_length
f.slight and f.plateau
f.slight or f.cycle
f.cycle and f.stuck_iterations
f.cycle or f.stuck_iterations
not f.cycle
f.slight + f.plateau + 1
f.slight & f.plateau | f.context_known
f.slight * f.progress_score
f.slight == 1
1.0 if f.making_progress else 0.0
f.recent_tools[0] == f.recent_tools[1]
f.recent_tools[0] - f.recent_tools[2]
f.recent_tools[f.cycle]
f.run_tool in f.recent_tools
len(f.recent_tools)
sum(f.recent_tools)
sum(f.recent_tools, 0.5)
sum([tool * tool for tool in f.recent_tools])
f.run_tool == 4294967295
f.run_tool > 4294967294.5
f.run_tool + 9223372036854775807 - f.error_result
f.progress_score == 0.1 + 0.2
(f.run_tool * f.round + 1) / (f.error_result * f.round + 1)
f.run_tool * f.stuck_iterations > 4611686018427387904.0
f.run_tool * f.stuck_iterations == f.run_tool * (f.stuck_iterations + 0.0)
""".strip().splitlines()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_gives_what_python_gives(expression, records):
    agree(f"def f(f):\n    return {expression}\n", records)


STATEMENTS = {
    "loop": """
        total = 0
        for tool in f.recent_tools:
            total += tool * f.cycle
        return total
    """,
    "power in place": """
        value = f.run_tool
        value **= 2
        value -= f.cycle
        value *= 3
        value //= 2
        return value
    """,
    "while": """
        left, count = f.stuck_iterations, 0
        while left > 1 and count < 40:
            left //= 2
            count += 1
        return count
    """,
    "nested": """
        if f.slight:
            value = 1.5
        elif f.plateau:
            value = f.progress_score
        else:
            value = -f.progress_trend
        return value * 2
    """,
    "raises": """
        if f.cycle > 3:
            raise ValueError("a cycle")
        return 0.5
    """,
    "asserts": """
        assert f.cycle < 4
        return f.cycle
    """,
    "catches": """
        try:
            return f.round / f.cycle
        except Exception:
            return -1.0
    """,
    "ranges": """
        total = 0
        for i in range(f.cycle % 10):
            total += i * i
        return total
    """,
    "an inner function": """
        def twice(x):
            return x + x
        return twice(f.cycle)
    """,
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_do_what_python_does(name, records):
    agree(f"def f(f):{STATEMENTS[name]}", records)


# --- random expressions ---------------------------------------------------------------------------
FLOATS = [name for name in _records.FEATURES.names if _records.FEATURES[name].kind == "f"]
WHOLES = [name for name in _records.FEATURES.names if _records.FEATURES[name].kind in "iu"]
FLAGS = [name for name in _records.FEATURES.names if _records.FEATURES[name].kind == "b"]


def whole_of(draw, depth):
    if depth == 0:
        return draw.choice([f"f.{draw.choice(WHOLES)}", str(draw.randrange(-3, 12))])
    one, other = whole_of(draw, depth - 1), whole_of(draw, depth - 1)
    return draw.choice([
        *(f"({one} {sign} {other})" for sign in ["+", "-", "*", "//", "%", "&", "|"]),
        f"abs({one})", f"(-{one})", f"min({one}, {other})", f"max({one}, {other})",
        f"int({float_of(draw, depth - 1)})", f"round({float_of(draw, depth - 1)})",
        f"({one} if {test_of(draw, depth - 1)} else {other})", f"({one} ** 2)",
    ])


def float_of(draw, depth):
    if depth == 0:
        return draw.choice([f"f.{draw.choice(FLOATS)}", f"{draw.uniform(-2, 2):.3f}"])
    one, other = float_of(draw, depth - 1), float_of(draw, depth - 1)
    return draw.choice([
        *(f"({one} {sign} {other})" for sign in ["+", "-", "*", "/", "//", "%"]),
        f"({whole_of(draw, depth - 1)} / {whole_of(draw, depth - 1)})",
        f"({one} * {whole_of(draw, depth - 1)})", f"({whole_of(draw, depth - 1)} - {one})",
        f"abs({one})", f"(-{one})", f"math.sqrt({one})", f"math.exp({one})", f"math.log({one})",
        f"({one} if {test_of(draw, depth - 1)} else {other})", f"({one} ** 2)",
    ])


def test_of(draw, depth):
    if depth == 0:
        return f"f.{draw.choice(FLAGS)}"
    kind = draw.choice([whole_of, float_of])
    one, other = kind(draw, depth - 1), kind(draw, depth - 1)
    left, right = test_of(draw, depth - 1), test_of(draw, depth - 1)
    return draw.choice([
        *(f"({one} {sign} {other})" for sign in ["<", "<=", ">", ">=", "==", "!="]),
        f"({one} < {other} <= {kind(draw, depth - 1)})",
        f"({left} and {right})", f"({left} or {right})", f"(not {left})",
    ])


test_of.__test__ = False


def random_source(seed, depth=3):
    draw = random.Random(seed)
    kind = draw.choice([whole_of, float_of, test_of])
    return f"def f(f):\n    return {kind(draw, depth)}\n"


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions_give_what_python_gives(seed, records):
    agree(random_source(seed), records, f"seeds {seed} and {SEED}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 1000))
def test_many_random_expressions_give_what_python_gives(seed, records):
    agree(random_source(seed, depth=4), records, f"seeds {seed} and {SEED}")


# --- that nothing is left out ---------------------------------------------------------------------
# What Numba knows of `math` beside the functions whose results are checked.
NEVER_RAISE = {"copysign", "frexp", "gcd", "isfinite", "isinf", "isnan", "nextafter"}


def test_every_function_of_math_that_numba_knows_is_checked_or_never_raises():
    from numba.core import types
    from numba.core.registry import cpu_target

    from cellium_fast.python_arithmetic import FUNCTIONS

    typing = cpu_target.typing_context
    typing.refresh()
    known = set()
    for name in dir(math):
        for arguments in ([types.float64], [types.float64] * 2, [types.int64] * 2):
            with suppress(Exception):
                kind = typing.resolve_value_type(getattr(math, name))
                kind.get_call_type(typing, tuple(arguments), {})
                known.add(name)
    checked = {one.__name__ for one in FUNCTIONS if one.__module__ == "math"}
    assert known - checked == NEVER_RAISE
    assert len(known) > 30


@pytest.mark.parametrize(("source", "named"), [
    ("if f.slight:\n        x = 1\n    return x", "x is not set on every path"),
    ("for i in range(f.cycle):\n        x = i\n    return x", "x is not set on every path"),
    ("return round(f.progress_score, 2)", "there is no round(float64"),
])
def test_what_would_not_be_as_in_python_does_not_compile(source, named):
    names = {}
    exec(f"def f(f):\n    {source}\n", names)
    with pytest.raises(UserCodeError, match=re.escape(named)):
        bias("redirect")(names["f"]).compiled()


@pytest.mark.parametrize(("expression", "cannot"), [
    ("f.stuck_iterations + 1 > 4 and f.progress_score < 0.5", True),
    ("(f.cycle + f.run_length) * f.stuck_iterations > 3", True),
    ("f.run_tool in f.recent_tools", True),
    ("f.stuck_iterations // 2 + f.round % 3 > 4", True),
    ("f.progress_score / 0.5 > 1.0", True),
    ("min(f.run_length, 4) ** 2 > 1", True),
    ("f.progress_score ** 2 > 0.5", False),
    ("f.run_tool * f.error_result > 5", False),
    ("f.run_tool // f.cycle > 5", False),
    ("f.progress_score / f.error_rate > 5", False),
    ("math.log(f.progress_score) > 0.0", False),
    ("f.cycle", False),     # no boolean: it may be 2
])
def test_what_cannot_fail_is_known(expression, cannot):
    names = {"math": math}
    exec(f"def f(f):\n    return {expression}\n", names)
    assert rule(proposes="retry")(names["f"]).compiled().cannot_fail is cannot
