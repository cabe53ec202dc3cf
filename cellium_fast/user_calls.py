"""Functions of users as kernels are given them, and calls of them that failed as errors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records
from cellium_fast.errors import PolicyError
from cellium_fast.user_code import compiled
from cellium_fast.user_functions import UserBias, UserFunction, UserReward, UserRule, found

if TYPE_CHECKING:
    from cellium_fast.compiled_code import CompiledFunction
    from cellium_fast.policy import Policy

# The bytes that a function returns, by its kind.
FORMATS = ("?", "q", "d")

# The parameters of a policy that hold functions.
FUNCTIONS: dict[str, type[UserFunction]] = {
    "user_rules": UserRule, "user_reward": UserReward, "user_bias": UserBias,
}


def record_of(policy: Policy) -> NDArray[Any]:
    """(1,) of the dtype ``_records.USER_CODE``: the functions of a policy, compiled.

    They are there for as long as the policy is.

    Raises
    ------
    UserCodeError
        One of them does not compile.
    """
    record = np.zeros(1, _records.USER_CODE)
    functions = functions_of(policy)
    for place, function in functions.items():
        record["address"][0, place] = function.address
        record["kind"][0, place] = function.kind
    record["rule_count"] = len(policy.user_rules)
    parts = {
        _records.HAS_RULES: bool(policy.user_rules),
        _records.HAS_REWARD: policy.user_reward is not None,
        _records.HAS_BIAS: bool(policy.user_bias),
        _records.HAS_FALLIBLE: not all(one.cannot_fail for one in functions.values()),
    }
    record["parts"] = sum(bit for bit, there in parts.items() if there)
    return record


def functions_of(policy: Policy) -> dict[int, CompiledFunction]:
    """The functions of a policy by the places that kernels know them by."""
    code = compiled(policy)
    functions = dict(enumerate(code.rules))
    if code.reward is not None:
        functions[_records.USER_REWARD] = code.reward
    for arm, function in enumerate(code.bias):
        if function is not None:
            functions[_records.USER_BIAS + arm] = function
    return functions


def not_found(parameters: Mapping[str, Any]) -> str | None:
    """Of a policy's parameters in a file: the first import path that leads to no function, and why.

    None: all do.
    """
    for name, kind in FUNCTIONS.items():
        given = parameters.get(name)
        for path in given if isinstance(given, list) else [given]:
            if isinstance(path, str):
                try:
                    found(path, kind)
                except PolicyError as error:
                    return f"{name}: {error}"
    return None


def error_of(policy: Policy, failed: _records.UserFailure) -> BaseException:
    """What to raise of a call of a policy's function that failed."""
    from cellium_fast.compiled_code import failure

    function = functions_of(policy)[failed.place]
    returned = None
    if failed.status == 0:
        code = FORMATS[function.kind]
        returned = struct.unpack_from(code, failed.returned)[0]
    outcome = failed.outcome if failed.place == _records.USER_REWARD else None
    return failure(function, failed.features, outcome, returned)
