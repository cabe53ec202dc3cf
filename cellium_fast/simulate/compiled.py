"""Functions under Numba, with the types they have in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# As Numba does by default, a division by zero would be a branch and an exception.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}


def compiled(function: Function) -> Function:
    """The function, compiled when it is first called, and cached beside its file if that can be."""
    try:
        return cast(Function, numba.njit(cache=True, **OPTIONS)(function))
    except RuntimeError:        # no place to keep a cache
        return cast(Function, numba.njit(**OPTIONS)(function))
