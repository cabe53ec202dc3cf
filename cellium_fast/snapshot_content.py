"""What a snapshot holds: a `FleetState` as texts and tensors, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records, _step
from cellium_fast.errors import LearnedStateError, PolicyError, shown
from cellium_fast.policy import Policy, Posterior
from cellium_fast.pool_history import PoolHistory
from cellium_fast.state import FleetState, HandleState
from cellium_fast.user_calls import not_found

Tensors = dict[str, NDArray[Any]]

# The tensors that hold records.
LAYOUTS = {
    "sessions": _records.SESSION,
    "posteriors": _records.POOL,
    "outcomes": _step.OUTCOME,
    "choices": _records.CHOICE,
    "trials": _records.TRIAL,
}


@dataclass(slots=True)
class Content:
    """A snapshot as it stands in the file."""

    metadata: dict[str, str]
    tensors: Tensors


class Refused(Exception):
    """A reason of SnapshotError, and in words what is wrong."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# --- from a state to the content ------------------------------------------------------------------
def content_of(state: FleetState) -> Content:
    """What a snapshot of a state holds, but for what it says of its file."""
    handles, former = _of_handles(state.handles)
    histories = {name: history.as_json() for name, history in state.histories.items()}
    content = Content(
        {
            "seed": str(state.seed),
            "opened": str(state.opened),
            "forgotten": str(state.forgotten),
            "calls": str(state.calls),
            "evicted": str(state.evicted),
            "layouts": json.dumps({name: _table_of(dtype) for name, dtype in LAYOUTS.items()}),
        },
        {
            "free": np.ascontiguousarray(state.free, "<i8"),
            "sessions": _as_bytes("sessions", state.sessions),
            "posteriors": _as_bytes("posteriors", state.posteriors),
            "outcomes": _as_bytes("outcomes", state.outcomes()),
            "policies": as_json(_dumped(state.policies)),
            "pools": as_json(_dumped(state.pools)),
            "tools": as_json(list(state.tools.items())),
            "errors": as_json(list(state.errors.items())),
            "handles": as_json(handles),
            "former_policies": as_json([policy.as_json() for policy in former]),
            "histories": as_json(histories),
        },
    )
    if state.max_sessions is not None:
        content.metadata["max_sessions"] = str(state.max_sessions)
    if state.last_use is not None:
        content.tensors["last_use"] = np.ascontiguousarray(state.last_use, "<u8")
    if state.choices is not None and state.trials is not None:
        content.tensors["choices"] = _as_bytes("choices", state.choices.reshape(-1))
        content.tensors["trials"] = _as_bytes("trials", state.trials)
    return content


def _dumped(table: Mapping[str, Policy | Posterior]) -> dict[str, dict[str, Any]]:
    """All parameters by name: what a later version has as defaults does not matter."""
    return {name: parameters.as_json() for name, parameters in table.items()}


def _of_handles(handles: list[HandleState]) -> tuple[list[list[Any]], list[Policy]]:
    """The handles as JSON values, and the policies that they refer to by their places."""
    places: dict[int, int] = {}
    former: list[Policy] = []
    rows = []
    for handle in handles:
        policy, place = handle.decided_under, None
        if policy is not None:
            place = places.setdefault(id(policy), len(former))
            if place == len(former):
                former.append(policy)
        tools, used = list(handle.tools), sorted(handle.used_tools)
        rows.append([handle.id, handle.name, tools, used, place])
    return rows, former


def as_json(value: Any) -> NDArray[np.uint8]:
    """A tensor of JSON."""
    # Text in ASCII: the standard library's JSON holds any Python text, lone surrogates too.
    return np.frombuffer(json.dumps(value, separators=(",", ":")).encode("ascii"), np.uint8)


def _as_bytes(name: str, records: NDArray[Any]) -> NDArray[np.uint8]:
    dtype = LAYOUTS[name]
    flat = np.ascontiguousarray(records, dtype)
    return flat.view(np.uint8).reshape(len(records), dtype.itemsize)


# --- from the content to a state -----------------------------------------------------------------
def state_of(content: Content) -> FleetState:
    """The state in a content of this version; Refused if it is not whole."""
    layouts = _json(content.metadata, "layouts", dict)
    policies = _parameters(content, "policies", Policy)
    pools = _parameters(content, "pools", Posterior)
    return FleetState(
        seed=whole_number(content, "seed"),
        opened=whole_number(content, "opened"),
        sessions=_records_of(content, "sessions", layouts),
        free=_tensor_of(content, "free", "<i8", 1).astype(np.int64),
        policies=policies,
        pools=pools,
        posteriors=_records_of(content, "posteriors", layouts),
        tools=_texts(content, "tools"),
        errors=_texts(content, "errors"),
        forgotten=whole_number(content, "forgotten"),
        handles=_handles(content, _records_of(content, "outcomes", layouts)),
        histories=_histories(content),
        max_sessions=(
            whole_number(content, "max_sessions") if "max_sessions" in content.metadata else None
        ),
        calls=whole_number(content, "calls"),
        evicted=whole_number(content, "evicted"),
        last_use=(
            _tensor_of(content, "last_use", "<u8", 1).astype(np.uint64)
            if "last_use" in content.tensors else None
        ),
        choices=_choices(content, layouts, (len(pools), len(policies))),
        trials=(
            _records_of(content, "trials", layouts) if "trials" in content.tensors else None
        ),
    )


def _choices(
    content: Content, layouts: dict[str, Any], shape: tuple[int, int]
) -> NDArray[Any] | None:
    if "choices" not in content.tensors:
        return None
    choices = _records_of(content, "choices", layouts)
    if len(choices) != shape[0] * shape[1]:
        raise Refused(
            "impossible", f"choices: wanted one of each policy in each pool, {shape[0]} * "
            f"{shape[1]}, got {len(choices)}"
        )
    return choices.reshape(shape)


def add_fields(content: Content, name: str, **values: np.generic) -> None:
    """Give each record of a tensor more fields, of the same value in all of them."""
    layouts = _json(content.metadata, "layouts", dict)
    raw, theirs = _raw_records(content, name, layouts)
    table, columns = layouts[name], [raw]
    for field, value in values.items():
        if field in (theirs.names or ()):
            raise Refused("impossible", f"{name}: {field}: there is no such field")
        table["fields"][field] = [value.dtype.str, table["itemsize"]]
        table["itemsize"] += value.dtype.itemsize
        columns.append(np.tile(np.frombuffer(value.tobytes(), np.uint8), (len(raw), 1)))
    content.metadata["layouts"] = json.dumps(layouts)
    content.tensors[name] = np.ascontiguousarray(np.hstack(columns))


def add_parameters(content: Content, **values: Any) -> None:
    """Give each policy more parameters, of the same values in all of them."""
    policies = _json_tensor(content, "policies", dict)
    former = _json_tensor(content, "former_policies", list)
    for given in (*policies.values(), *former):
        if isinstance(given, dict):
            for name, value in values.items():
                given.setdefault(name, value)
    content.tensors["policies"] = as_json(policies)
    content.tensors["former_policies"] = as_json(former)


def begin_histories(content: Content) -> None:
    """Have the pools begin with what they have learned, as histories are not told."""
    posteriors = _records_of(content, "posteriors", _json(content.metadata, "layouts", dict))
    pools = _parameters(content, "pools", Posterior)
    histories = {
        name: {**PoolHistory.begun().as_json(), "start": _ancestor(settings, record)}
        for (name, settings), record in zip(pools.items(), posteriors, strict=False)
    }
    content.tensors["histories"] = as_json(histories)


def _ancestor(settings: Posterior, record: np.void) -> dict[str, Any]:
    # Version 1 of a learned state is an ancestor, the same one wherever it is read; the name of the
    # pool is of no matter here.
    arms = zip(record["alpha"].tolist(), record["beta"].tolist(), record["updates"].tolist(),
               strict=True)
    return {
        "version": 1, "pool": "", "settings": settings.model_dump(),
        "closed": int(record["closed"]),
        "actions": {
            action: dict(zip(("alpha", "beta", "updates"), arm, strict=True))
            for action, arm in zip(_records.ACTIONS, arms, strict=True)
        },
    }


def _histories(content: Content) -> dict[str, PoolHistory]:
    histories = {}
    for name, given in _json_tensor(content, "histories", dict).items():
        if not isinstance(given, dict):
            raise Refused("impossible", f"histories: wanted one of a pool, got {shown(given)}")
        try:
            histories[name] = PoolHistory.from_json(given)
        except LearnedStateError as error:
            raise Refused("impossible", f"histories: {shown(name)}: {error}") from error
    return histories


def whole_number(content: Content, name: str) -> int:
    """A number in the metadata."""
    text = content.metadata.get(name, "")
    number = number_in(text)
    if number is None:
        raise Refused("impossible", f"{name}: wanted a number, got {shown(text)}")
    return number


def number_in(text: str) -> int | None:
    """The number that a text is, if it is one that a snapshot can have."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _tensor_of(content: Content, name: str, dtype: str, dimensions: int) -> NDArray[Any]:
    tensor = content.tensors.get(name)
    if tensor is None or tensor.dtype != dtype or tensor.ndim != dimensions:
        raise Refused("impossible", f"{name}: wanted a tensor {dtype} of {dimensions} dimensions")
    return tensor


def _json(texts: Mapping[str, str], name: str, kind: type) -> Any:
    try:
        value = json.loads(texts.get(name, ""))
    except (ValueError, RecursionError) as error:
        raise Refused("impossible", f"{name}: wanted JSON, {error}") from error
    if not isinstance(value, kind):
        raise Refused("impossible", f"{name}: wanted a {kind.__name__}, got {shown(value)}")
    return value


def _json_tensor(content: Content, name: str, kind: type) -> Any:
    text = _tensor_of(content, name, "u1", 1).tobytes().decode("ascii", "replace")
    return _json({name: text}, name, kind)


def _texts(content: Content, name: str) -> dict[int, str]:
    pairs = _json_tensor(content, name, list)
    for pair in pairs:
        if not (isinstance(pair, list) and list(map(type, pair)) == [int, str]):
            raise Refused("impossible", f"{name}: wanted a hash and a text, got {shown(pair)}")
    return dict(pairs)


def _handles(content: Content, outcomes: NDArray[Any]) -> list[HandleState]:
    former = [
        _parameters_from(f"former_policies {place}", given, Policy)
        for place, given in enumerate(_json_tensor(content, "former_policies", list))
    ]
    rows = _json_tensor(content, "handles", list)
    if len(rows) != len(outcomes):
        raise Refused("impossible", f"handles: {len(rows)}, but {len(outcomes)} decisions")
    return [
        _handle(row, former, outcome.tobytes())
        for row, outcome in zip(rows, outcomes, strict=True)
    ]


def _handle(row: Any, former: list[Policy], outcome: bytes) -> HandleState:
    kinds = (int, str, list, list)
    good = (
        isinstance(row, list) and len(row) == 5 and tuple(map(type, row[:4])) == kinds
        and all(isinstance(tool, str) for tool in row[2] + row[3])
        and (row[4] is None or (type(row[4]) is int and 0 <= row[4] < len(former)))
    )
    if not good:
        raise Refused("impossible", f"handles: wanted id, name, tools, got {shown(row)}")
    policy = None if row[4] is None else former[row[4]]
    return HandleState(row[0], row[1], tuple(row[2]), frozenset(row[3]), policy, outcome)


def _parameters(content: Content, name: str, kind: type[Any]) -> Any:
    table = _json_tensor(content, name, dict)
    return {
        one: _parameters_from(f"{name} {shown(one)}", given, kind) for one, given in table.items()
    }


def _parameters_from(what: str, given: Any, kind: type[Any]) -> Any:
    """Checked parameters; none may be missing: what it was is not what is the default now."""
    if not isinstance(given, dict):
        raise Refused("impossible", f"{what}: wanted parameters by name, got {shown(given)}")
    problem = not_found(given) if kind is Policy else None
    if problem is not None:
        raise Refused("code", f"{what}: {problem}")
    try:
        parameters = kind(**given)
    except PolicyError as error:
        raise Refused("impossible", f"{what}: {error}") from error
    missing = next(_missing(given, parameters.model_dump()), None)
    if missing is not None:
        raise Refused("impossible", f"{what}: {missing}: is missing")
    return parameters


def _missing(given: Any, complete: Any, path: str = "") -> Iterator[str]:
    """Paths of what `complete` has and `given` has not."""
    if isinstance(complete, dict):
        for name, value in complete.items():
            if name not in given:
                yield f"{path}{name}"
            else:
                yield from _missing(given[name], value, f"{path}{name}.")


# --- layouts of records --------------------------------------------------------------------------
def _fields(
    dtype: np.dtype[Any], prefix: str = "", start: int = 0
) -> Iterator[tuple[str, str, int]]:
    """Name, format and offset of every field; those of a record within are ``record.field``."""
    for name in dtype.names or ():
        kind, offset = dtype.fields[name][:2]       # type: ignore[index]
        if kind.names:
            yield from _fields(kind, f"{prefix}{name}.", start + offset)
        else:
            shape = str(kind.shape) if kind.shape else ""
            yield f"{prefix}{name}", f"{shape}{kind.base.str}", start + offset


def _table_of(dtype: np.dtype[Any]) -> dict[str, Any]:
    """A layout of records as JSON values."""
    return {
        "itemsize": dtype.itemsize,
        "fields": {name: [kind, offset] for name, kind, offset in _fields(dtype)},
    }


def _records_of(content: Content, name: str, layouts: dict[str, Any]) -> NDArray[Any]:
    """Records of the package's own layout, each field by its name."""
    dtype = LAYOUTS[name]
    raw, theirs = _raw_records(content, name, layouts)
    ours = _flat(name, _table_of(dtype))
    if theirs == ours:
        return raw.reshape(-1).view(dtype)
    for what, one, other in (("there is no such field", theirs, ours),
                             ("is missing", ours, theirs)):
        for field in one.names or ():
            if field not in (other.names or ()):
                raise Refused("impossible", f"{name}: {field}: {what}")
            if one[field] != other[field]:
                raise Refused(
                    "impossible", f"{name}: {field}: wanted {ours[field]}, got {theirs[field]}"
                )
    records = np.zeros(len(raw), ours)
    found = raw.reshape(-1).view(theirs)
    for field in ours.names or ():
        records[field] = found[field]
    return records.view(dtype)


def _raw_records(
    content: Content, name: str, layouts: dict[str, Any]
) -> tuple[NDArray[Any], np.dtype[Any]]:
    """A row of bytes for each record, and the layout that the content says they have."""
    raw = _tensor_of(content, name, "u1", 2)
    theirs = _flat(name, layouts.get(name))
    if raw.shape[1] != theirs.itemsize:
        raise Refused(
            "impossible", f"{name}: wanted {theirs.itemsize} bytes each, got {raw.shape[1]}"
        )
    return raw, theirs


def _flat(name: str, table: Any) -> np.dtype[Any]:
    """The dtype that a table says, with the fields of inner records among its own."""
    try:
        kinds = {field: np.dtype(kind) for field, (kind, _) in table["fields"].items()}
        if any(kind.base.kind not in "iuf" for kind in kinds.values()):
            raise ValueError("wanted numbers")
        offsets = [offset for _, offset in table["fields"].values()]
        return np.dtype({
            "names": list(kinds), "formats": list(kinds.values()), "offsets": offsets,
            "itemsize": table["itemsize"],
        })
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise Refused("impossible", f"{name}: has no table of fields: {error}") from error
