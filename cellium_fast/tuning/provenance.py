"""The policy file that a tuning writes: what differs from a preset, and where it comes from.

`Policy.from_file` reads it like any other; the table ``provenance`` is there for people and for
other programs. Same runs, arguments and versions, same file: no date stands in it, and no path.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from cellium_fast import whole_file
from cellium_fast.action import Action
from cellium_fast.errors import InputError
from cellium_fast.evaluate import Comparison, Estimate
from cellium_fast.policy import PRESETS, Policy
from cellium_fast.quality import FIGURES
from cellium_fast.tuning.space import nested
from cellium_fast.tuning.tuning import Figures, MissingPackageError, TuningResult

__all__ = ["contents", "differences", "provenance", "write"]

DIGITS = 6          # of scores
# Sources told one by one; of more, a policy file would be longer than `Policy.from_file` reads.
MOST_SOURCES = 20


def write(result: TuningResult, path: str | os.PathLike[str], note: str | None = None) -> None:
    """Write the policy of a tuning to a ``.toml``, ``.yaml``/``.yml`` or ``.json`` file, whole.

    A file that is there already is kept beside it, with ``.bak`` added to its name.

    Parameters
    ----------
    result
        The tuning.
    path
        Where to.
    note
        A text of your own for the provenance, such as a date.

    Raises
    ------
    InputError
        The name ends otherwise; or TOML cannot say a value of the policy.
    OSError
        It cannot be written.
    """
    path = Path(path)
    data = encoded(contents(result, note), path)

    def fill(descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)

    whole_file.replace(path, fill)


def contents(result: TuningResult, note: str | None = None) -> dict[str, Any]:
    """What a policy file of a tuning holds: `preset`, what differs from it, and `provenance`."""
    base = result.settings["base"]
    preset = base if base in PRESETS else "default"
    return {
        "preset": preset,
        **differences(result.policy, Policy.preset(preset)),
        "provenance": provenance(result, note),
    }


def differences(policy: Policy, other: Policy) -> dict[str, Any]:
    """What a policy has in place of another's parameters, as a policy file says it.

    Raises
    ------
    PolicyError
        No import path leads to one of a policy's functions.

    Examples
    --------
    >>> differences(Policy(rules={"output_loop": {"repeats": 4}}, gamma=0.9), Policy())
    {'rules': {'output_loop': {'repeats': 4}}, 'gamma': 0.9}
    """
    return _different(policy.as_json(), other.as_json())


def _different(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in ours.items():
        if isinstance(value, Mapping):
            part = _different(value, theirs[name])
            if part:
                found[name] = part
        elif value != theirs[name]:
            # Names are for people; codes would do.
            found[name] = [str(Action(code)) for code in value] if name == "actions" else value
    return found


def provenance(result: TuningResult, note: str | None = None) -> dict[str, Any]:
    """Where a policy comes from, as tables of plain values."""
    import optuna

    from cellium_fast import __version__

    told = len(result.sources) <= MOST_SOURCES
    found: dict[str, Any] = {
        "made_by": f"cellium-fast {__version__}, optuna {optuna.__version__}",
        "complete": result.complete,
        "settings": {name: value for name, value in result.settings.items() if value is not None},
        "objective": {
            "tuned": round(result.score.value, DIGITS),
            "base": round(result.base_score.value, DIGITS),
            "disturbed": result.score.disturbed,
            "disturbed_allowed": result.allowed,
            "tried": result.trials,
        },
        "sources": _sources(result) if told else _all_sources(result),
        "trained": _told(result.trained, told),
    }
    if note is not None:
        found["note"] = note
    if result.judged is not None:
        found["judged"] = _told(result.judged, told)
    if result.folds and told:
        found["folds"] = [
            {"held_out": sorted(fold.held_out), "changes": nested(fold.changes)}
            for fold in result.folds
        ]
    return found


def _sources(result: TuningResult) -> dict[str, Any]:
    return {
        name: {**asdict(source), "held_out": name in result.held_out}
        for name, source in result.sources.items()
    }


def _all_sources(result: TuningResult) -> dict[str, Any]:
    """What all sources have together, with a hash of theirs."""
    state = xxhash.xxh3_64()
    for name, source in result.sources.items():
        state.update(f"{name} {source.content}\n".encode())
    return {
        "sources": len(result.sources),
        "held_out": len(result.held_out),
        **{
            what: sum(getattr(source, what) for source in result.sources.values())
            for what in ("runs", "failed", "succeeded", "rounds")
        },
        "content": state.hexdigest(),
    }


def _told(figures: Figures, by_source: bool) -> dict[str, Any]:
    """Figures in words, one line each: those of all sources together, then of each."""
    found = {"all": _compared(figures.total)}
    if by_source:
        found["by_source"] = {name: _compared(one) for name, one in figures.sources.items()}
    return found


def _compared(found: Mapping[str, Comparison]) -> dict[str, Any]:
    return {
        policy: {name: in_words(getattr(one, name)) for name in FIGURES}
        for policy, one in found.items()
    }


def in_words(estimate: Estimate) -> str:
    """A figure, its difference from the base policy in points of a hundred, and the interval.

    No difference is said of nothing, and no interval where the runs cannot tell one.
    """
    words = f"{estimate.share.count} of {estimate.share.total}"
    if estimate.difference is not None:
        words += f", {100 * estimate.difference:+.2f} points"
    if estimate.difference_interval is not None:
        low, high = estimate.difference_interval
        words += f" ({100 * low:+.2f} to {100 * high:+.2f})"
    return words


def check_path(path: str | os.PathLike[str]) -> Path:
    """The path, if it ends as the name of a policy file does, and there is what writes one."""
    path = Path(path)
    if path.suffix.lower() not in WRITERS:
        raise InputError(
            f"{path}: wanted a name that ends in {', '.join(WRITERS)}, got {path.suffix or 'none'}"
        )
    if path.suffix.lower() == ".toml" and importlib.util.find_spec("tomli_w") is None:
        raise MissingPackageError(
            f"{path}: TOML files are written by tomli-w: pip install 'cellium-fast[tune]'"
        )
    return path


def encoded(values: Mapping[str, Any], path: Path) -> bytes:
    """What stands in a policy file of this name."""
    return WRITERS[check_path(path).suffix.lower()](values)


def _to_toml(values: Mapping[str, Any]) -> bytes:
    import tomli_w

    missing = _without_value(values)
    if missing is not None:
        raise InputError(f"{missing}: it is None, which TOML cannot say; write .json or .yaml")
    return tomli_w.dumps(values).encode()


def _without_value(values: Mapping[str, Any]) -> str | None:
    for name, value in values.items():
        if value is None:
            return name
        if isinstance(value, Mapping) and (found := _without_value(value)) is not None:
            return f"{name}.{found}"
    return None


def _to_yaml(values: Mapping[str, Any]) -> bytes:
    import yaml

    text: str = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    return text.encode()


def _to_json(values: Mapping[str, Any]) -> bytes:
    import orjson

    return orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


WRITERS = {".toml": _to_toml, ".yaml": _to_yaml, ".yml": _to_yaml, ".json": _to_json}
