"""Formats that are known but not read yet, so that a user is told which, and why nothing is shown.

Each is told by what only it has. Some resemble chat messages closely enough to be misread as
them, so these are asked before the chat reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

_FOREIGN_ROLES = frozenset({"ai", "human", "model", "bot", "gpt", "toolResult", "tool_result"})
_FOREIGN_PARTS = frozenset({"tool_use", "tool_result", "toolCall", "tool-call", "tool-result"})
_RESPONSES_ITEMS = frozenset({"function_call", "function_call_output", "reasoning"})
_CODING_SESSION = frozenset({"session_meta", "response_item"})
_RETURN_CODE = "<returncode>"
_MESSAGE_LISTS = ("messages", "traj", "history", "conversation", "conversations", "trajectory")

# Of a record, and of the objects in it that are no plain messages.
_Test: TypeAlias = Callable[[Any, list[dict[str, Any]]], bool]


def unsupported_format(value: Any) -> tuple[str, str] | None:
    """Return the name of the format of a record and the reason it is not read, if known."""
    # Nearly all objects are such, and a file may hold many.
    objects = [item for item in _objects(value) if not _is_plain_message(item)]
    for name, reason, is_format in _FORMATS:
        if is_format(value, objects):
            return name, reason
    return None


def _is_plain_message(item: dict[str, Any]) -> bool:
    """Whether it is a chat message with a text and no calls, in which no format below is seen."""
    role, content = item.get("role"), item.get("content")
    return (
        isinstance(role, str)
        and role not in _FOREIGN_ROLES
        and isinstance(content, str)
        and not content.startswith(_RETURN_CODE)
        and "tool_calls" not in item
        and "message_type" not in item
        and "from" not in item
    )


def _keys(*names: str) -> _Test:
    return lambda value, _: isinstance(value, dict) and all(name in value for name in names)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages or events in a record, as far as they are objects.

    They are the entries of a list, in an object or not; of a list of runs, those of the first;
    or the record itself.
    """
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        value = _inner_list(value[0]) or value
    elif isinstance(value, dict):
        value = _inner_list(value) or [value]
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _inner_list(value: list[Any] | dict[str, Any]) -> list[Any] | None:
    if isinstance(value, list):
        return value
    lists = (value.get(name) for name in _MESSAGE_LISTS)
    return next((items for items in lists if isinstance(items, list)), None)


def _any_object(test: Callable[[dict[str, Any]], bool]) -> _Test:
    return lambda value, objects: any(map(test, objects))


def _has_text(item: dict[str, Any], name: str) -> bool:
    return isinstance(item.get(name), str)


def has_calls_by_name(item: dict[str, Any]) -> bool:
    """Whether a message has a tool call whose `function` is a name, as in Inspect AI's."""
    return any(_has_text(call, "function") for call in _tool_calls(item))


def _has_flat_calls(item: dict[str, Any]) -> bool:
    return any(_has_text(call, "name") and "function" not in call for call in _tool_calls(item))


def _tool_calls(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    calls = item.get("tool_calls")
    if isinstance(calls, list):
        yield from (call for call in calls if isinstance(call, dict))


def has_foreign_parts(content: Any) -> bool:
    """Whether the content of a message is a list with tool calls or results in it."""
    return isinstance(content, list) and any(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and part["type"] in _FOREIGN_PARTS
        for part in content
    )


def _has_foreign_content(item: dict[str, Any]) -> bool:
    return has_foreign_parts(item.get("content"))


def _is_coding_session(value: Any, _: list[dict[str, Any]]) -> bool:
    """Whether the record is a line of Codex or Claude Code: a typed entry of a session."""
    if not isinstance(value, dict) or "role" in value:
        return False
    kind = value.get("type")
    if not isinstance(kind, str):
        return False
    if kind in _CODING_SESSION and ("timestamp" in value or "payload" in value):
        return True
    return "sessionId" in value or (
        kind in ("user", "assistant") and isinstance(value.get("message"), dict)
    )


def has_return_code(item: dict[str, Any]) -> bool:
    """Whether a user message is the result of a command, as mini-swe-agent writes it."""
    content = item.get("content")
    return item.get("role") == "user" and isinstance(content, str) and content.startswith(
        _RETURN_CODE
    )


def _is_action_history(_: Any, objects: list[dict[str, Any]]) -> bool:
    """Whether a SWE-agent history holds actions as text only, without tool calls."""
    has_actions = False
    for item in objects:
        if item.get("tool_calls"):
            return False
        has_actions = has_actions or ("message_type" in item and _has_text(item, "action"))
    return has_actions


def _has_foreign_role(item: dict[str, Any]) -> bool:
    role = item.get("role")
    return isinstance(role, str) and role in _FOREIGN_ROLES


def _is_responses_item(item: dict[str, Any]) -> bool:
    return "role" not in item and _has_text(item, "type") and item["type"] in _RESPONSES_ITEMS


def _is_turn_of_from_and_value(item: dict[str, Any]) -> bool:
    return "from" in item and "value" in item


_FORMATS: tuple[tuple[str, str, _Test], ...] = (
    ("otlp", "OpenTelemetry spans (OTLP JSON) are not read yet", _keys("resourceSpans")),
    (
        "inspect messages",
        "of Inspect AI only logs, samples and lists of messages are read",
        _any_object(has_calls_by_name),
    ),
    ("tau2-bench", "tau2-bench simulations are not read yet", _keys("simulations")),
    (
        "mini-swe-agent messages",
        "of mini-swe-agent only trajectories and lists of messages are read",
        _any_object(has_return_code),
    ),
    (
        "swe-agent history",
        "a SWE-agent history without trajectory and tool calls is not read",
        _is_action_history,
    ),
    (
        "coding agent session",
        "session entries of Codex or Claude Code are not read yet",
        _is_coding_session,
    ),
    (
        "openai responses",
        "items of the OpenAI Responses API are not read yet, only chat messages",
        _any_object(_is_responses_item),
    ),
    (
        "content-block messages",
        "tool calls among the blocks of a content (Anthropic and alike) are not read yet",
        _any_object(_has_foreign_content),
    ),
    (
        "flat tool calls",
        "tool calls without a `function` object (LangChain and alike) are not read yet",
        _any_object(_has_flat_calls),
    ),
    (
        "foreign roles",
        "messages with other roles than OpenAI's (ai, human, model, ...) are not read yet",
        _any_object(_has_foreign_role),
    ),
    (
        "from/value conversations",
        "conversations of `from` and `value` (ShareGPT) are not read yet",
        _any_object(_is_turn_of_from_and_value),
    ),
)
