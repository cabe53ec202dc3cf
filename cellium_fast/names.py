"""`Names`: the bounded table that turns hashes back into text for explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _names


class Names(_names.NameTable):
    """Tool names and shortened error texts by their mixed hash; the oldest go when it is full.

    Parameters
    ----------
    capacity
        Names kept of each kind.
    """

    __slots__ = ()

    def learn(self, tools: Mapping[int, str], errors: Mapping[int, str]) -> None:
        """Take in names by their 64-bit hashes."""
        self.add(*self.missing(tools, errors))

    def restore(self, tools: Mapping[int, str], errors: Mapping[int, str], forgotten: int) -> None:
        """Be as another table was, of as many names."""
        self._tools, self._errors, self.forgotten = dict(tools), dict(errors), forgotten

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

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Copies: others may learn meanwhile.
        return _names_of, (self._capacity, self.forgotten, dict(self._tools), dict(self._errors))


def _names_of(
    capacity: int, forgotten: int, tools: dict[int, str], errors: dict[int, str]
) -> Names:
    # `copy.copy` gives the dicts of `__reduce__`, which are nobody else's.
    names = Names(capacity)
    names.forgotten, names._tools, names._errors = forgotten, tools, errors
    return names
