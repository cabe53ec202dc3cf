"""The five actions, their codes, and sets of them as bit masks."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from cellium_fast import _records
from cellium_fast.errors import shown


class Action(IntEnum):
    """What the agent is to do next. A set of actions is a mask: bit = code.

    >>> Action.REDIRECT, str(Action.REDIRECT)
    (<Action.REDIRECT: 2>, 'redirect')
    """

    CONTINUE = 0
    RETRY = 1
    REDIRECT = 2
    COMPRESS = 3
    TERMINATE = 4

    def __str__(self) -> str:
        return _records.ACTIONS[self]

    @property
    def mask(self) -> int:
        """The set of this action alone.

        >>> Action.COMPRESS.mask
        8
        """
        return 1 << self

    @classmethod
    def parse(cls, value: int | str) -> Action:
        """The action with this code or name; ValueError if there is none.

        >>> Action.parse("retry")
        <Action.RETRY: 1>
        """
        if isinstance(value, str):
            if value not in _records.ACTIONS:
                raise ValueError(f"wanted one of {', '.join(_records.ACTIONS)}, got {shown(value)}")
            return cls(_records.ACTIONS.index(value))
        if isinstance(value, bool) or value not in range(len(_records.ACTIONS)):
            raise ValueError(f"wanted a code in 0..4 or a name, got {shown(value)}")
        return cls(value)


def actions_in(mask: int) -> tuple[Action, ...]:
    """The actions of a mask, in the order of their codes.

    >>> [str(action) for action in actions_in(0b01100)]
    ['redirect', 'compress']
    """
    return tuple(action for action in Action if mask >> action & 1)


def mask_of(actions: Iterable[Action]) -> int:
    """The mask of some actions."""
    mask = 0
    for action in actions:
        mask |= 1 << action
    return mask
