"""Checks of arguments, worded in one place: what came, what is wanted."""

from __future__ import annotations

import math
import operator
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cellium_fast.errors import InputError, shown


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """The value as an int in [low, high]; InputError for anything else, 2.0 and True included.

    >>> whole_number("round_limit", 10, 1, 100)
    10
    """
    number = None
    if not isinstance(value, bool | np.bool_):
        with suppress(TypeError):
            number = operator.index(value)
    if number is None or not low <= number <= high:
        raise InputError(
            f"{name}: wanted a whole number in [{low:,}, {high:,}], got {shown(value)}"
        )
    return number


def number(name: str, value: Any, low: float, high: float) -> float:
    """The value as a float in [low, high]; InputError for anything else, NaN included.

    >>> number("gamma", 0.5, 0, 1)
    0.5
    """
    wanted = f"{name}: wanted a number in [{low:g}, {high:g}]"
    if isinstance(value, str | bytes | bool | np.bool_):
        raise InputError(f"{wanted}, got {shown(value)}")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{wanted}, got {shown(value)}") from None
    if not low <= result <= high or math.isnan(result):
        raise InputError(f"{wanted}, got {shown(value)}")
    return result


def file_path(name: str, value: Any) -> Path:
    """The value, a text or a path of texts, as a path; InputError for anything else.

    >>> file_path("path", "fleets/one").name
    'one'
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise InputError(f"{name}: wanted a str or a pathlib.Path, got {shown(value)}")
    try:
        good = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        good = False
    if not good:
        raise InputError(f"{name}: no file can be called {shown(path)}")
    return Path(path)


def array(name: str, value: Any, dtype: DTypeLike, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """The value as a C-contiguous array of this dtype and shape (None = any length).

    An array must have the dtype; lists and numbers are converted if that loses nothing.

    >>> array("success", [1, 0], np.int8, (2,))
    array([1, 0], dtype=int8)
    """
    dtype = np.dtype(dtype)
    if isinstance(value, np.ndarray):
        # The name alone makes NumPy import its masked arrays: only for what may be one.
        if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            raise InputError(f"{name}: wanted an array without a mask, got a masked one")
        if value.dtype != dtype:
            raise InputError(f"{name}: wanted dtype {dtype}, got {value.dtype}")
        flags = value.flags
        result = (
            value if flags.c_contiguous and flags.aligned and type(value) is np.ndarray
            else np.require(value, dtype, ["C", "ALIGNED"])
        )
    else:
        result = _converted(name, value, dtype)
    if result.shape != shape and not _fits(result.shape, shape):
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise InputError(f"{name}: wanted shape ({wanted}), got {result.shape}")
    return result


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    if len(found) != len(shape):
        return False
    for length, here in zip(shape, found, strict=True):
        if length is not None and length != here:
            return False
    return True


def output(name: str, value: Any, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """The caller's array to fill, or a new one if it is None."""
    if value is None:
        return np.empty(shape, dtype)
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != shape:
        found = (
            f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray)
            else type(value).__name__
        )
        raise InputError(f"{name}: wanted an array {np.dtype(dtype)} {shape}, got {found}")
    if not value.flags.c_contiguous or not value.flags.writeable:
        raise InputError(f"{name}: wanted a writable C-contiguous array")
    return value


def every(name: str, good: NDArray[np.bool_], value: NDArray[Any], wanted: str) -> None:
    """InputError that names the first element where `good` is False."""
    if not good.all():
        all_good(name, int(np.argmin(good)), value, wanted)


def all_good(name: str, where: int, value: NDArray[Any], wanted: str) -> None:
    """InputError that names the element at `where`, which is -1 if all are good."""
    if where >= 0:
        raise InputError(f"{name}[{where}]: wanted {wanted}, got {value.flat[where]}")


def as_given(name: str, value: Any) -> NDArray[Any]:
    """The value as an array of whatever it holds; InputError if its rows differ in length."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise InputError(f"{name}: wanted numbers in equal rows, got {shown(value)}") from None


def _converted(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """What is no array yet: integers one by one, since NumPy would round large ones."""
    problem = InputError(f"{name}: wanted {dtype} values, got {shown(value)}")
    try:
        if dtype.kind not in "iu":
            given = np.asarray(value)
            if given.dtype.kind not in "fiu" and given.size:
                raise problem
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(given, dtype).reshape(given.shape)
        given = np.array(value, object)
        # A flag may stand for the numbers 0 and 1 where a number is a flag.
        if dtype != np.int8 and any(isinstance(item, bool | np.bool_) for item in given.flat):
            raise problem
        whole = [operator.index(item) for item in given.flat]
        return np.array(whole, dtype).reshape(given.shape)
    except (TypeError, ValueError, OverflowError):
        raise problem from None
