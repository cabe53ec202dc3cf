"""Arithmetic of functions of users: what Python would refuse fails in compiled code too.

Numba's integers wrap at 64 bits, and its `math` functions give NaN or infinity where Python's own
raise. So operators and functions of numbers, where they stand in the source of a function, are
replaced by ones that check (`PythonArithmetic`, a pass of the compiler). LLVM removes the checks
that the widths of the fields make needless: of ``features.stuck_iterations + 1`` nothing is left.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

from llvmlite import ir as llvm  # type: ignore[import-untyped]
from numba.core import ir, postproc, types
from numba.core.analysis import compute_cfg_from_blocks, compute_use_defs
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.errors import TypingError
from numba.core.ir_utils import build_definitions, mk_unique_var
from numba.core.untyped_passes import InlineClosureLikes
from numba.extending import intrinsic, overload

BEYOND = "a whole number beyond 64 bits"
DOMAIN = "a number that the function has no value for, or too large a value"

Emit = Callable[[Any, Any, Any, Any, Any], Any]


def _checked(
    function: Any, arguments: int, check: Callable[[Any], Emit | None]
) -> Any:
    """`function`, for compiled code, with the check that `check` gives for a signature, if any."""
    def typed(typing: Any, *given: types.Type) -> Any:
        plain = typing.resolve_value_type(function)
        signature = plain.get_call_type(typing, given, {})
        emit = check(signature)

        def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
            call = context.get_function(plain, signature)
            if emit is None:
                return call(builder, values)
            return emit(context, builder, signature, values, call)

        return signature, generate

    def unary(typing: Any, x: types.Type) -> Any:
        return typed(typing, x)

    def binary(typing: Any, x: types.Type, y: types.Type) -> Any:
        return typed(typing, x, y)

    made: Any = unary if arguments == 1 else binary
    made.__name__ = function.__name__       # messages of Numba tell it
    return intrinsic(made)


def _fail_if(context: Any, builder: Any, bad: Any, kind: type[Exception], words: str) -> None:
    with builder.if_then(bad, likely=False):
        context.call_conv.return_user_exc(builder, kind, (words,))


def _whole(*kinds: types.Type) -> bool:
    return all(isinstance(kind, types.Integer | types.Boolean) for kind in kinds)


# --- whole numbers --------------------------------------------------------------------------------
def _overflow_of(operation: str) -> Callable[[Any], Emit | None]:
    """A check of the sum, difference or product of whole numbers."""
    def emit(context: Any, builder: Any, signature: Any, values: Any, _: Any) -> Any:
        x, y = (
            context.cast(builder, value, kind, types.int64)
            for value, kind in zip(values, signature.args, strict=True)
        )
        pair = getattr(builder, operation)(x, y)
        _fail_if(context, builder, builder.extract_value(pair, 1), OverflowError, BEYOND)
        return builder.extract_value(pair, 0)

    def check(signature: Any) -> Emit | None:
        whole = _whole(*signature.args) and signature.return_type == types.int64
        return emit if whole else None

    return check


def python_power(base: Any, exponent: Any) -> Any:
    """``base ** exponent``; a whole number has no negative power, since that would be none."""
    return base ** exponent


@overload(python_power)
def _power(base: Any, exponent: Any) -> Any:
    if not _whole(base, exponent):
        def of_floats(base: Any, exponent: Any) -> Any:
            return _float_power(float(base), float(exponent))

        return of_floats

    def power(base: Any, exponent: Any) -> Any:
        if exponent < 0:
            raise OverflowError("a negative power of a whole number; make it a float first")
        factor, left, product = int(base), int(exponent), 1
        while left:
            if left & 1:
                product = _multiply(product, factor)
            left >>= 1
            if left:
                factor = _multiply(factor, factor)
        return product

    return power


def python_shift_left(value: Any, places: Any) -> Any:
    """``value << places``."""
    return value << places


@overload(python_shift_left)
def _shift_left(value: Any, places: Any) -> Any:
    if not _whole(value, places):
        return None

    def shifted(value: Any, places: Any) -> Any:
        if places < 0:
            raise ValueError("negative shift count")
        if value == 0:
            return 0
        if places > 62 or (int(value) << places) >> places != value:
            raise OverflowError(BEYOND)
        return int(value) << places

    return shifted


def python_shift_right(value: Any, places: Any) -> Any:
    """``value >> places``."""
    return value >> places


@overload(python_shift_right)
def _shift_right(value: Any, places: Any) -> Any:
    if not _whole(value, places):
        return None

    def shifted(value: Any, places: Any) -> Any:
        if places < 0:
            raise ValueError("negative shift count")
        return int(value) >> min(int(places), 63)

    return shifted


def python_round(number: Any) -> Any:
    """``round(number)``; to a number of digits, compiled code would not round as Python does."""
    return round(number)


@overload(python_round)
def _round(number: Any) -> Any:
    whole = _whole(number)

    def rounded(number: Any) -> Any:
        return int(number) if whole else _rounded(number)

    return rounded


def python_sum(items: Any, start: Any = 0) -> Any:
    """``sum(items, start)``."""
    return sum(items, start)


@overload(python_sum)
def _sum(items: Any, start: Any = 0) -> Any:
    def summed(items: Any, start: Any = 0) -> Any:
        total = start
        for item in items:
            total = _add(total, item)
        return total

    return summed


# --- floats ---------------------------------------------------------------------------------------
def _finite(builder: Any, value: Any) -> Any:
    return builder.fcmp_ordered("==", builder.fsub(value, value), llvm.Constant(value.type, 0.0))


def _is_nan(builder: Any, value: Any) -> Any:
    return builder.fcmp_unordered("uno", value, value)


def _domain(signature: Any) -> Emit | None:
    """A check as `math` has it: no NaN but from NaN, nothing infinite but from that."""
    if signature.return_type != types.float64:
        return None

    def emit(context: Any, builder: Any, signature: Any, values: Any, call: Any) -> Any:
        result = call(builder, values)
        floats = [
            value for value, kind in zip(values, signature.args, strict=True)
            if kind == types.float64
        ]
        bad = builder.not_(_finite(builder, result))
        new_nan = _is_nan(builder, result)
        for value in floats:
            bad = builder.and_(bad, _finite(builder, value))
            new_nan = builder.and_(new_nan, builder.not_(_is_nan(builder, value)))
        _fail_if(context, builder, builder.or_(bad, new_nan), ValueError, DOMAIN)
        return result

    return emit


def _fits(signature: Any) -> Emit | None:
    """A check that a float has a whole part of 64 bits."""
    if signature.args[0] != types.float64 or not _whole(signature.return_type):
        return None

    def emit(context: Any, builder: Any, signature: Any, values: Any, call: Any) -> Any:
        limit = llvm.Constant(values[0].type, 2.0**63)
        low = llvm.Constant(values[0].type, -(2.0**63))
        inside = builder.and_(
            builder.fcmp_ordered(">=", values[0], low), builder.fcmp_ordered("<", values[0], limit)
        )
        _fail_if(context, builder, builder.not_(inside), OverflowError, BEYOND)
        return call(builder, values)

    return emit


def _opaque(builder: Any, number: Any) -> Any:
    """A float that LLVM knows nothing of."""
    bits = llvm.IntType(64)
    hidden = builder.asm(
        llvm.FunctionType(bits, [bits]), "", "=r,0", [builder.bitcast(number, bits)], False
    )
    return builder.bitcast(hidden, number.type)


def _powers(signature: Any) -> Emit | None:
    """As `_domain`; and LLVM would make x * x of x ** 2.0, which may differ in the last bit."""
    check = _domain(signature)
    if check is None:
        return None

    def emit(context: Any, builder: Any, signature: Any, values: Any, call: Any) -> Any:
        hidden = [_opaque(builder, value) for value in values]
        return check(context, builder, signature, hidden, call)

    return emit


_float_power = _checked(math.pow, 2, _powers)
_rounded = _checked(round, 1, _fits)
_add = _checked(operator.add, 2, _overflow_of("sadd_with_overflow"))
_multiply = _checked(operator.mul, 2, _overflow_of("smul_with_overflow"))

# --- what is replaced -----------------------------------------------------------------------------
OPERATORS = {
    **{
        one: _checked(one, 2, _overflow_of(operation))
        for operation, several in {
            "sadd_with_overflow": (operator.add, operator.iadd),
            "ssub_with_overflow": (operator.sub, operator.isub),
            "smul_with_overflow": (operator.mul, operator.imul),
        }.items()
        for one in several
    },
    operator.pow: python_power, operator.ipow: python_power,
    operator.lshift: python_shift_left, operator.ilshift: python_shift_left,
    operator.rshift: python_shift_right, operator.irshift: python_shift_right,
}
UNARY = (
    "acos acosh asin asinh atan atanh cos cosh degrees erf erfc exp exp2 expm1 fabs gamma lgamma "
    "log log10 log1p log2 radians sin sinh sqrt tan tanh"
)
FUNCTIONS: dict[Any, Any] = {
    **{getattr(math, name): _checked(getattr(math, name), 1, _domain) for name in UNARY.split()},
    **{one: _checked(one, 2, _domain) for one in (math.atan2, math.hypot, math.ldexp)},
    **{one: _checked(one, 1, _fits) for one in (math.floor, math.ceil, math.trunc, int)},
    math.pow: python_power, pow: python_power, round: python_round,
    sum: python_sum,
}


@register_pass(mutates_CFG=False, analysis_only=False)
class PythonArithmetic(FunctionPass):
    """Puts checked operators and functions in the places of plain ones."""

    _name = "cellium_fast_python_arithmetic"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Change the code of a function; true if that changed."""
        code = state.func_ir
        _refuse_unset(code)
        for block in code.blocks.values():
            body = []
            for statement in block.body:
                if isinstance(statement, ir.Assign):
                    body += _replaced(code, block, statement)
                else:
                    body.append(statement)
            block.body = body
        code._definitions = build_definitions(code.blocks)
        postproc.PostProcessor(code).run()
        return True


def _refuse_unset(code: Any) -> None:
    """Refuse a variable that some path reads before it is set: Python raises, Numba reads a 0."""
    graph = compute_cfg_from_blocks(code.blocks)
    known = compute_use_defs(code.blocks)
    wanted = {label: set(read) for label, read in known.usemap.items()}
    changed = True
    while changed:
        changed = False
        for label in code.blocks:
            later = {name for after, _ in graph.successors(label) for name in wanted[after]}
            found = wanted[label] | (later - known.defmap[label])
            changed |= found != wanted[label]
            wanted[label] = found
    unset = {name for name in wanted[graph.entry_point()] if not name.startswith("$")}
    statements = [one for block in code.blocks.values() for one in block.body]
    for statement in statements:
        read = statement.value if isinstance(statement, ir.Assign) else statement
        names = {one.name for one in read.list_vars()} if isinstance(read, ir.Inst) else {
            getattr(read, "name", "")
        }
        for name in sorted(names & unset):
            plain = name.partition(".")[0]
            raise TypingError(f"{plain} is not set on every path; set it before", statement.loc)


def _replaced(code: Any, block: Any, statement: Any) -> list[Any]:
    value, where = statement.value, statement.loc
    if isinstance(value, ir.Expr) and value.op in ("binop", "inplace_binop"):
        if value.fn not in OPERATORS:
            return [statement]
        called = ir.Var(block.scope, mk_unique_var("$checked"), where)
        function = ir.Global(value.fn.__name__, OPERATORS[value.fn], where)
        call = ir.Expr.call(called, [value.lhs, value.rhs], (), where)
        return [ir.Assign(function, called, where), ir.Assign(call, statement.target, where)]
    named = _named(code, value)
    for plain, checked in FUNCTIONS.items():
        if named is plain:
            return [ir.Assign(ir.Global(plain.__name__, checked, where), statement.target, where)]
    return [statement]


def _named(code: Any, value: Any) -> Any:
    """The function that an expression names, by itself or as an attribute of a module."""
    if isinstance(value, ir.Global | ir.FreeVar):
        return value.value
    if isinstance(value, ir.Expr) and value.op == "getattr":
        try:
            module = code.get_definition(value.value)
        except KeyError:
            return None
        if isinstance(module, ir.Global | ir.FreeVar) and isinstance(module.value, ModuleType):
            return getattr(module.value, value.attr, None)
    return None


class UserCompiler(CompilerBase):
    """Numba's compiler with `PythonArithmetic`."""

    def define_pipelines(self) -> list[Any]:
        """Numba's passes, and this one once inner functions are part of the code."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.add_pass_after(PythonArithmetic, InlineClosureLikes)
        manager.finalize()
        return [manager]
