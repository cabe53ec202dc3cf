"""What parameters are made of: strict numbers, frozen sections, errors in plain words."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from cellium_fast import _records
from cellium_fast.action import Action
from cellium_fast.errors import InputError, PolicyError, shown

PolicyAction = Annotated[Action, BeforeValidator(Action.parse)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
PositiveFraction = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Saturation = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Trend = Annotated[float, Field(strict=True, ge=-1, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=0xFFFF)]
RunCount = Annotated[int, Field(strict=True, ge=1, le=_records.RUN_WINDOW)]
Streak = Annotated[int, Field(strict=True, ge=1, le=254)]
WindowCount = Annotated[int, Field(strict=True, ge=1, le=_records.WINDOW)]
Characters = Annotated[int, Field(strict=True, ge=0, le=0xFFFF)]
Places = Annotated[int, Field(strict=True, ge=1, le=16)]
Shape = Annotated[float, Field(strict=True, ge=1e-3, le=1e6, allow_inf_nan=False)]
Factor = Annotated[float, Field(strict=True, ge=0, le=100, allow_inf_nan=False)]
BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]

BUILDING = threading.RLock()
if hasattr(os, "register_at_fork"):     # or a child waits for a thread that it does not have
    os.register_at_fork(
        before=BUILDING.acquire, after_in_parent=BUILDING.release, after_in_child=BUILDING.release
    )

# As kernels know them; any number of repeats is no limit.
TOOL_LIMITS = {"poll": 60, "exempt": 255}

SAID_IN_FULL = "said_in_full"      # the kind of an error whose message needs nothing added


def _checked_limits(given: object) -> tuple[tuple[str, object], ...]:
    """Limits of tools as pairs, in the order given."""
    pairs = [*given.items()] if isinstance(given, Mapping) else given
    if not isinstance(pairs, list | tuple):
        raise refused("wanted a mapping of tools to limits, or pairs of these", given)
    if len(pairs) > _records.MAX_LIMITED_TOOLS:
        raise refused(f"wanted at most {_records.MAX_LIMITED_TOOLS} tools", len(pairs))
    limits: dict[str, object] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise refused("wanted pairs of a tool and its limit", pair)
        tool, limit = pair
        if not isinstance(tool, str):
            raise refused("wanted the name of a tool as text", tool)
        if tool in limits:
            both = [limits[tool], limit]
            raise refused(f'"{tool:.80}": wanted one limit of a tool', both)
        if not _is_limit(limit):
            wanted = 'wanted a number from 1 to 254, "poll" or "exempt"'
            raise refused(f'"{tool:.80}": {wanted}', limit)
        limits[tool] = limit
    return tuple(limits.items())


def _is_limit(value: object) -> bool:
    if isinstance(value, str):
        return value in TOOL_LIMITS
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 254


def refused(wanted: str, got: object) -> PydanticCustomError:
    """Return what a validator raises about a value."""
    return said(f"{wanted}, got {shown(got)}")


def said(words: str) -> PydanticCustomError:
    """Return what a validator raises, in words that need nothing added."""
    return PydanticCustomError(SAID_IN_FULL, "{words}", {"words": words})


ToolLimit = Literal["poll", "exempt"] | int
ToolLimits = Annotated[tuple[tuple[str, ToolLimit], ...], BeforeValidator(_checked_limits)]


class Parameters(BaseModel):
    """Frozen, and strict about names: an unknown key is an error.

    Validators take longer to build than all the rest of the package to load. So each is built when
    it is first needed: by values to check, but not by `defaults`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    # What messages call it, and a field of it.
    WHOLE: ClassVar[str] = "policy"
    PART: ClassVar[str] = "parameter"

    def __init__(self, /, **parameters: Any) -> None:
        try:
            super().__init__(**parameters)
        except ValidationError as error:
            raise self.refusal(_problems(error, self.WHOLE, self.PART)) from None

    # pydantic checks the sections of a section itself, with one validator for the whole.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @staticmethod
    def refusal(problems: Sequence[tuple[str, str]]) -> InputError:
        """Return the exception that says what is wrong with which field."""
        return PolicyError("; ".join(f"{field}: {what}" for field, what in problems), problems)

    @classmethod
    def defaults(cls) -> Self:
        """The same as with no arguments, without a check: defaults make sense."""
        return cls.model_construct()

    def as_json(self) -> dict[str, Any]:
        """All parameters as JSON values."""
        return self.model_dump(mode="json")

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """As pydantic does it, which it does on its own; before its 2.14 threads need a lock."""
        with BUILDING:
            return super().model_rebuild(**options)

    def __setattr__(self, name: str, value: Any) -> None:
        wanted = f"{self.PART}s are frozen; make new ones with model_copy"
        raise self.refusal([(name, wanted)])

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """This with some parameters changed, and checked as new ones are."""
        return type(self)(**merged(self.model_dump(), update or {}))


def _field(location: tuple[Any, ...]) -> str:
    # pydantic adds the kinds of a union, such as "literal['prior']", to the path.
    parts = map(str, location)
    return ".".join(part for part in parts if part.replace("_", "").isalnum())


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` laid over `base`, section by section."""
    result = dict(base)
    for name, value in changes.items():
        if isinstance(value, BaseModel):
            value = value.model_dump(exclude_unset=True)
        old = result.get(name)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        result[name] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def _problems(error: ValidationError, whole: str, part: str) -> list[tuple[str, str]]:
    """Field and what is wrong with it, in plain words."""
    found = []
    for problem in error.errors(include_url=False):
        field = _field(problem["loc"])
        if problem["type"] in ("extra_forbidden", "invalid_key"):
            found.append((field, f"there is no such {part}"))
        elif problem["type"] == SAID_IN_FULL:
            found.append((field or whole, problem["msg"]))
        else:
            wanted = problem["msg"].removeprefix("Value error, ")
            wanted = wanted.replace("Input should be", "wanted")
            found.append((field or whole, f"{wanted}, got {shown(problem['input'])}"))
    return found
