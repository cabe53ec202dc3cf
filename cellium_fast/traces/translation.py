"""Records of other formats as OpenAI chat messages, which `cellium_fast._chat` makes rounds of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cellium_fast import _chat
from cellium_fast.rounds import Round
from cellium_fast.traces.runs import COMPACTION, NO_EVENT, Complaints, Problem

# No context has so many; smaller numbers can be added, whatever their kinds.
_MANY_TOKENS = 1 << 60


class Translation:
    """One run while its records are translated.

    What cannot be translated is added as it is: reading the messages tells what is wrong with it.
    """

    def __init__(self) -> None:
        self._complaints = Complaints()
        self._messages: list[Any] = []
        self._places: list[int] = []        # of the records they were made of, from 1
        self._compactions: list[int] = []   # the number of rounds before each
        self._rounds = 0

    def add(self, message: Any, place: int) -> None:
        """Add a chat message, and the place of the record it was made of."""
        self._messages.append(message)
        self._places.append(place)
        self._rounds += fields(message).get("role") == "assistant"

    def add_compaction(self) -> None:
        """Note that the context was compacted before the next round."""
        self._compactions.append(self._rounds)

    def read(self) -> tuple[list[Round], list[int]]:
        """Return the rounds and the event before each; a user message outdoes a compaction."""
        rounds, events = _chat.read_messages(self._messages, self._complaints, False)
        for index in self._compactions:
            if 0 < index < len(events) and events[index] == NO_EVENT:
                events[index] = COMPACTION
        return rounds, events

    def problems(self, path: Path, run: str, line: int | None, unit: str) -> Iterator[Problem]:
        """Yield what was wrong with the messages read; "message 3" is the place 3 of that unit."""
        return self._complaints.problems(
            path, run, line, lambda index: f"{unit} {self._places[index]}"
        )


def fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of an object; those of anything else are none."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; in anything else there are none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def tool_call(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """Return a tool call of a chat message."""
    return {"id": identity, "function": {"name": name, "arguments": arguments}}


def text_parts(content: Any) -> Any:
    """Return a content without the parts that are no text: thoughts, pictures, tool calls."""
    if not isinstance(content, list):
        return content
    return [part for part in content if isinstance(part, str) or fields(part).get("type") == "text"]


def token_sum(usage: Mapping[str, Any], names: tuple[str, ...]) -> float:
    """Return the sum of the numbers of tokens under some names, as far as they are such."""
    counts = [usage.get(name) for name in names]
    return sum(
        count for count in counts if isinstance(count, int | float) and 0 <= count < _MANY_TOKENS
    )
