"""`Names`: the bounded table that turns hashes back into text for explanations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records


class Names:
    """Tool names and shortened error texts by their mixed hash; the oldest go when it is full.

    Parameters
    ----------
    capacity
        Names kept of each kind.
    """

    __slots__ = ("_capacity", "_errors", "_tools", "forgotten")

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._tools: dict[int, str] = {}
        self._errors: dict[int, str] = {}
        self.forgotten = 0      # names that had to go so far

    def learn(self, tools: Mapping[int, str], errors: Mapping[int, str]) -> None:
        """Take in names by their 64-bit hashes."""
        self._add(self._tools, tools)
        self._add(self._errors, errors)

    def tool(self, mixed: int) -> str:
        """The tool's name, or its hash in hexadecimal if the name was never seen.

        >>> Names().tool(0xBEEF)
        '#0000beef'
        """
        return self._tools.get(mixed) or f"#{mixed:08x}"

    def known_tool(self, mixed: int) -> str | None:
        """The tool's name, if it was seen."""
        return self._tools.get(mixed)

    def error(self, mixed: int) -> str | None:
        """The shortened error text, if it was seen."""
        return self._errors.get(mixed)

    def errors_known(self, mixed: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Of which of these hashes the error text was seen."""
        # A list at once: others may learn meanwhile.
        return np.isin(mixed, np.array(list(self._errors), np.uint32))

    def _add(self, table: dict[int, str], more: Mapping[int, str]) -> None:
        for digest, text in more.items():
            mixed = _records.mix(digest)
            if mixed not in table:
                while len(table) >= self._capacity:
                    del table[next(iter(table))]
                    self.forgotten += 1
                table[mixed] = text
