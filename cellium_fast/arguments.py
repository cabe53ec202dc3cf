"""Checks of the arguments of a `Fleet`: what was given, in the form that its methods work with."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import checks
from cellium_fast.decision import ALWAYS, COLUMNS, Decisions
from cellium_fast.errors import InputError, UnknownNameError, shown
from cellium_fast.policy import Policy, Posterior

MAX_TABLE = 2**16
MAX_TOKENS = 2**63 - 1
MAX_ROUNDS = 2**32 - 1
MAX_CHOICES = 2**20     # pairs of a policy and a pool: 24 MiB of records

AUTO = "auto"           # not a policy's name: for each session one of the policies is chosen
CHOOSE = -1             # and what stands for its row


def named_policies(policies: Mapping[str, Policy | str] | None) -> dict[str, Policy]:
    """Policies by name, as `Fleet` takes them."""
    if policies is None:
        return {"default": Policy.defaults()}
    if not isinstance(policies, Mapping) or not 0 < len(policies) <= MAX_TABLE:
        raise InputError(
            f"policies: wanted policies by name, 1 to {MAX_TABLE:,}, got {counted(policies)}"
        )
    named = {}
    for name, policy in policies.items():
        if not isinstance(name, str) or not isinstance(policy, Policy | str):
            raise InputError(
                f"policies: wanted names with a Policy or a preset's name, got {shown(name)}: "
                f"{shown(policy)}"
            )
        if name == AUTO:
            raise InputError(
                f"policies: {AUTO!r} asks the fleet to choose one for each session; wanted another "
                "name"
            )
        named[name] = given_policy(policy)
    return named


def given_policy(policy: Policy | str) -> Policy:
    """A policy, or the preset of that name."""
    if isinstance(policy, str):
        policy = Policy.preset(policy)
    if not isinstance(policy, Policy):
        raise InputError(f"policy: wanted a Policy or a preset's name, got {shown(policy)}")
    return policy.model_copy()      # checked again: pydantic can be told not to


def named_pools(
    pools: Sequence[str] | Mapping[str, Posterior] | None, posterior: Posterior
) -> dict[str, Posterior]:
    """Prior and decay of each pool by name, as `Fleet` takes them; `posterior` for a name alone."""
    if pools is None:
        return {"default": posterior}
    if isinstance(pools, Mapping):
        named = dict(pools)
    else:
        names = given_names("pools", pools)
        named = dict.fromkeys(names, posterior)
        if len(named) != len(names):
            raise InputError(f"pools: a name stands twice in {shown(pools)}")
    if not 0 < len(named) <= MAX_TABLE:
        raise InputError(f"pools: wanted 1 to {MAX_TABLE:,}, got {counted(pools)}")
    for name, settings in named.items():
        if not isinstance(name, str) or not isinstance(settings, Posterior):
            raise InputError(
                f"pools: wanted names, or names with a Posterior, got {shown(name)}: "
                f"{shown(settings)}"
            )
        named[name] = settings.model_copy()
    return named


def counted(given: object) -> str:
    """What a table was given as, in a message; of more than it can hold, how many."""
    if isinstance(given, Collection) and len(given) > MAX_TABLE:
        return f"{len(given):,}"
    return shown(given)


def usable_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def wanted(want: Collection[str] | None) -> frozenset[str]:
    """The columns to write."""
    if want is None:
        return frozenset(COLUMNS)
    names = frozenset(given_names("want", want))
    unknown = sorted(names - set(COLUMNS))
    if unknown:
        raise InputError(f"want: there is no column {unknown[0]!r}; there is {', '.join(COLUMNS)}")
    return names | set(ALWAYS)


def check_fit(out: Decisions, size: int, wanted: frozenset[str] | None) -> None:
    """InputError unless a step of `size` sessions can overwrite `out`."""
    if not isinstance(out, Decisions):
        raise InputError(f"out: wanted Decisions of an earlier step, got {shown(out)}")
    if len(out) != size:
        raise InputError(f"out: wanted Decisions of {size} sessions, got {len(out)}")
    found = out.columns()
    for name, column in found.items():
        dtype, shape = COLUMNS[name]
        checks.output(f"out.{name}", column, dtype, (size, *shape))
    if wanted is not None and wanted != set(found):
        raise InputError(
            f"out: wanted the columns {', '.join(sorted(wanted))}, got {', '.join(sorted(found))}"
        )


def session_ids(ids: ArrayLike) -> NDArray[np.int64]:
    """(N,) int64 ids, not yet known to be of open sessions."""
    return checks.array("ids", ids, np.int64, (None,))


def given_names(argument: str, names: Any) -> tuple[str, ...]:
    """The names as a tuple of texts."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"{argument}: wanted names, got {shown(names)}")
    given = tuple(names)
    if not all(isinstance(name, str) for name in given):
        raise InputError(f"{argument}: wanted names, got {shown(names)}")
    return given


def row_of(kind: str, name: str | None, table: Mapping[str, object]) -> int:
    """Place of a name in a table; the first one for None."""
    return 0 if name is None else place_of(kind, name, table)


def policy_row(
    policy: str | None, policies: Mapping[str, object], pools: Mapping[str, object]
) -> int:
    """As `row_of`, of a policy to open sessions under; CHOOSE if one is to be chosen."""
    if not (isinstance(policy, str) and policy == AUTO):
        return row_of("policy", policy, policies)
    if len(policies) * len(pools) > MAX_CHOICES:
        raise InputError(
            f"policy: {AUTO!r} learns of each policy in each pool; wanted at most {MAX_CHOICES:,} "
            f"such pairs, the fleet has {len(policies):,} policies and {len(pools):,} pools"
        )
    return CHOOSE


def place_of(kind: str, name: str, table: Mapping[str, object]) -> int:
    """Place of a name in a table; UnknownNameError if it is not there."""
    names = list(table)
    if not isinstance(name, str) or name not in names:
        raise UnknownNameError(kind, name, names)
    return names.index(name)


def opening_limits(
    count: int, context_limit: ArrayLike | None, round_limit: ArrayLike | None
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """(count,) limits of the sessions that are opened."""
    return (
        limits_of("context_limit", context_limit, count, 0, MAX_TOKENS, np.int64),
        limits_of("round_limit", round_limit, count, 1, MAX_ROUNDS, np.uint32),
    )


def limits_of(
    name: str, value: ArrayLike | None, count: int, low: int, high: int, dtype: type
) -> NDArray[Any]:
    """(count,) limits; 0 stands for none."""
    if value is None or (isinstance(value, float) and value == math.inf):
        return np.zeros(count, dtype)
    given = checks.as_given(name, value)
    if given.ndim == 0:
        return np.full(count, checks.whole_number(name, value, low, high), dtype)
    if given.shape == (count,) and not count:
        return np.zeros(count, dtype)
    if given.dtype.kind == "f" and np.isposinf(given).any():    # some have no limit
        unlimited = np.isposinf(given)
        given = np.where(unlimited, low, given)
        checks.every(name, (given >= low) & (given <= high), given, f"[{low:,}, {high:,}]")
        checks.every(name, given % 1 == 0, given, "whole numbers, or infinity for no limit")
        limits = limits_of(name, given.astype(np.int64), count, low, high, dtype)
        return np.where(unlimited, 0, limits).astype(dtype)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise InputError(
            f"{name}: wanted one whole number, or ({count},) of them, got {given.dtype} "
            f"{given.shape}"
        )
    checks.every(name, (given >= low) & (given <= high), given, f"[{low:,}, {high:,}]")
    return given.astype(dtype)


def outcomes(success: ArrayLike | None, count: int) -> NDArray[np.int8]:
    """(count,) int8 outcomes of sessions: 1, 0, or -1 for not told."""
    if success is None:
        return np.full(count, -1, np.int8)
    given = checks.as_given("success", success)
    if given.shape == (count,) and not count:
        return np.zeros(count, np.int8)
    if given.dtype.kind not in "bi" or given.shape not in ((), (count,)):
        raise InputError(
            f"success: wanted bool, or int8 with -1 for not told, one or ({count},) of them, got "
            f"{given.dtype} {given.shape}"
        )
    if given.shape != (count,):
        given = np.broadcast_to(given, (count,))
    checks.every("success", (given >= -1) & (given <= 1), given, "1, 0, or -1 for not told")
    return given.astype(np.int8)
