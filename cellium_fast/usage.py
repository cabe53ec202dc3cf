"""`context_tokens`: how full a context is, by what a model's answer says it used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TOO_MANY_TOKENS = 9.2e18    # about 2**63; from here on no session takes a number

# Beside `input_tokens`, which leaves them out. (Beside `prompt_tokens` they are part of those.)
BESIDE_INPUT = ("cache_read_input_tokens", "cache_creation_input_tokens")


def context_tokens(usage: Mapping[str, Any] | object) -> float | None:
    """Return the size of the context after a model call, for `Round.context_tokens`.

    That is prompt and answer of this one call. What came from a cache lies in the context as well,
    and counts once: with OpenAI cached tokens are within the prompt's, with Anthropic
    ``cache_read_input_tokens`` and ``cache_creation_input_tokens`` come on top of
    ``input_tokens``. A ``total_tokens`` is taken as it is. A sum over several calls is no size of
    a context: give the usage of the last one.

    Parameters
    ----------
    usage
        The ``usage`` of an answer, as a mapping or as an object with such attributes, with
        ``total_tokens``; or ``prompt_tokens`` and ``completion_tokens``; or ``input_tokens`` and
        ``output_tokens``. What is no number >= 0 is not told.

    Returns
    -------
    float or None
        Tokens, >= 0, as whole as those given; None: not told; infinity: more than there can be,
        which `Round` refuses.

    Examples
    --------
    >>> context_tokens({"prompt_tokens": 900, "completion_tokens": 50,
    ...                 "prompt_tokens_details": {"cached_tokens": 800}})
    950
    >>> context_tokens({"input_tokens": 100, "cache_read_input_tokens": 800, "output_tokens": 50})
    950
    """
    told = usage.get if isinstance(usage, Mapping) else lambda name: getattr(usage, name, None)
    total = _count(told("total_tokens"))
    if total is not None:
        return total
    prompt, answer = told("prompt_tokens"), told("completion_tokens")
    counts = [prompt]
    if prompt is None:
        counts = [told("input_tokens"), *map(told, BESIDE_INPUT)]
    counts.append(told("output_tokens") if answer is None else answer)
    first, *others = map(_count, counts)
    return None if first is None else sum((count or 0 for count in others), first)


def _count(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if value >= TOO_MANY_TOKENS:
        return math.inf     # an integer of any size, which cannot be added to a float
    return value if value >= 0 else None
