"""`HardConstraintRenderer`: a decision as text for the system prompt.

a) The fixed lines of a constraint stand at the top of this file; what a session knows is added
   below them, sentence by sentence (`advice`), as long as there is room.
b) What the fixed lines depend on is put into numbers by `_facts`, as `advice.facts` does for the
   sentences. Lines that depend on more must be added there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cellium_fast import advice
from cellium_fast.action import Action, mask_of
from cellium_fast.checks import whole_number
from cellium_fast.decision import Decision, Decisions

if TYPE_CHECKING:
    from cellium_fast import _step

MAX_LENGTH = 600
MIN_LENGTH = 480        # room for the fixed lines of every constraint, fused ones included

MIXER = np.uint64(0x9E3779B97F4A7C15)   # odd, of no pattern: 2**64 over the golden ratio

DIRECTIONS = (Action.REDIRECT, Action.RETRY)     # a fused constraint takes the first it can

LAST_ROUND = "One round is left: the final answer MUST come in this round."


class Constraint(NamedTuple):
    """The fixed words of one kind of constraint; `{tokens}` is the target of a summary."""

    must: str
    must_not: str
    hint: str


CONSTRAINTS = {
    Action.CONTINUE: Constraint(
        "Give the final answer in this round.",
        "Start new work, leave the answer for later.",
        "The round limit is near.",
    ),
    Action.RETRY: Constraint(
        "Keep direction, correct strategy.",
        "Repeat same call unchanged.",
        "Current strategy may be wrong in detail.",
    ),
    Action.REDIRECT: Constraint(
        "Change strategy, use different tool.",
        "Repeat same tool, continue same path.",
        "Current approach may be stuck.",
    ),
    Action.COMPRESS: Constraint(
        "Replace old context by a bulleted summary, at most {tokens} tokens.",
        "Drop goal, decisions, key results or open questions.",
        "Context is filling up.",
    ),
    Action.TERMINATE: Constraint(
        "Stop at once. Give a summary of the findings and the next steps.",
        "Call any tool, present open questions as solved.",
        "This run is being stopped from outside; treat the goal as not reached.",
    ),
}

# Where the usual words would ask for what cannot help.
SPECIAL = {
    (Action.RETRY, "transient_failure"): Constraint(
        "Wait, then try the same call again.",
        "Change the plan, give up this tool.",
        "The failure may pass by itself.",
    ),
    (Action.REDIRECT, "compression_failed"): Constraint(
        "Drop large results from the context, or hand over, or submit.",
        "Summarise again, read more.",
        "Summaries no longer help.",
    ),
    **{(action, "idle"): Constraint(
        "Call a tool now, or submit.",
        "Answer with text alone again.",
        "Nothing happens without a tool call.",
    ) for action in DIRECTIONS},
}


class HardConstraintRenderer:
    """Decisions as constraints for the system prompt, in three sections of fixed order.

    Parameters
    ----------
    max_length
        Most characters of a text, 480 to 600. The fixed lines always fit, details give way.
    summary_tokens
        Tokens that a compress constraint allows for the summary, 1 to 100,000.

    Raises
    ------
    InputError
        An argument is no integer or out of its range.

    Examples
    --------
    >>> from cellium_fast import Fleet, Round, ToolCall
    >>> session = Fleet(seed=7).session("ticket", round_limit=2)
    >>> decision = session.step(Round([ToolCall("search", {"q": "a"}, "found")]))
    >>> HardConstraintRenderer(summary_tokens=300).render(decision).splitlines()[2]
    'One round is left: the final answer MUST come in this round.'
    """

    __slots__ = ("_max_length", "_summary_tokens")

    def __init__(self, max_length: int = MAX_LENGTH, summary_tokens: int = 500) -> None:
        self._max_length = whole_number("max_length", max_length, MIN_LENGTH, MAX_LENGTH)
        self._summary_tokens = whole_number("summary_tokens", summary_tokens, 1, 100_000)

    def render(self, decision: Decision, fuse: bool = False, repeat: bool = False) -> str:
        """The constraint of one decision; empty for continue, and while it was said just before.

        With one round left, any action is put into words, continue included.

        Parameters
        ----------
        decision
            What a step returned.
        fuse
            Redirect or retry, and compress, when one was chosen and the other was a candidate,
            become one constraint.
        repeat
            Put unchanged advice into words in every round, not just once in `repeat_interval`
            ones of the policy: for logs.
        """
        features = decision.features
        last_round = _is_last_round(decision, features)
        if not last_round and not _speaks(decision, repeat):
            return ""
        actions = _fused_actions(decision) if fuse else (decision.action,)
        known = advice.known_of(decision, actions[0])
        text = self._fixed_lines(actions, known.detecting, last_round)
        for sentence in advice.SENTENCES[actions[0]]:
            line = sentence(known)
            if line and len(text) + 1 + len(line) <= self._max_length:
                text += "\n" + line
        return text

    def render_many(
        self, decisions: Decisions, fuse: bool = False, repeat: bool = False
    ) -> list[str]:
        """The constraint of every decision of a batch: that of `render` for each of them.

        Each distinct text is made once, which makes this fast where texts repeat. Wants decisions
        with all their columns; MissingColumnError names one that is missing.
        """
        texts = np.full(len(decisions), "", object)
        last_round = decisions.features["rounds_left"] == 1     # if the policy says so
        rows = np.flatnonzero(_speaking(decisions, repeat) | last_round)
        if len(rows):
            one, which = _distinct(_facts(decisions, rows, fuse, repeat))
            distinct = [self.render(decisions[int(row)], fuse, repeat) for row in rows[one]]
            texts[rows] = np.array(distinct, object)[which]
        made: list[str] = texts.tolist()
        return made

    def _fixed_lines(
        self, actions: tuple[Action, ...], rule: str | None, last_round: bool
    ) -> str:
        parts = [SPECIAL.get((action, rule or ""), CONSTRAINTS[action]) for action in actions]
        must = " ".join(part.must for part in parts).format(tokens=self._summary_tokens)
        # After a stop no round is left to answer in.
        urgent = f"{LAST_ROUND}\n" if last_round and Action.TERMINATE not in actions else ""
        return (
            "[HARD CONSTRAINTS]\n"
            f"You MUST obey control instruction. Violations = incorrect.\n{urgent}"
            "[CONTROL ACTION]\n"
            f"Action: {' + '.join(str(action).upper() for action in actions)}\n"
            f"MUST: {must}\n"
            f"MUST NOT: {' '.join(part.must_not for part in parts)}\n"
            "[CONTEXT HINT]\n"
            f"{' '.join(part.hint for part in parts)}"
        )


def _is_last_round(decision: Decision, features: _step.FeatureRecord) -> bool:
    limit = decision.setting.policy.rules.round_limit
    return features.rounds_left == 1 and limit.enabled and Action.TERMINATE in limit.actions


def _speaks(decision: Decision, repeat: bool) -> bool:
    """Whether there is a constraint that was not given just before."""
    if decision.action == Action.CONTINUE:
        return False
    return repeat or decision.advice_age % decision.setting.policy.repeat_interval == 0


def _speaking(decisions: Decisions, repeat: bool) -> NDArray[np.bool_]:
    """`_speaks` of each decision."""
    speaks: NDArray[np.bool_] = decisions.action != Action.CONTINUE
    if not repeat:
        intervals = np.array(
            [setting.policy.repeat_interval for setting in decisions.settings], np.uint8
        )
        speaks &= decisions.advice_age % intervals[decisions.setting_rows] == 0
    return speaks


def _fused_actions(decision: Decision) -> tuple[Action, ...]:
    chosen = decision.action
    candidates = decision.candidates
    if chosen in DIRECTIONS and Action.COMPRESS in candidates:
        return chosen, Action.COMPRESS
    if chosen == Action.COMPRESS:
        for direction in DIRECTIONS:
            if direction in candidates:
                return direction, Action.COMPRESS
    return (chosen,)


def _facts(
    decisions: Decisions, rows: NDArray[np.intp], fuse: bool, repeat: bool
) -> advice.Facts:
    """All that a text depends on, as columns."""
    action = decisions.action[rows]
    partners = np.where(action == Action.COMPRESS, mask_of(DIRECTIONS), Action.COMPRESS.mask)
    partners = partners & decisions.candidates[rows] if fuse else np.zeros_like(action)
    lead = action.copy()
    for direction in reversed(DIRECTIONS):
        lead[(action == Action.COMPRESS) & (partners & direction.mask != 0)] = direction
    last_round = decisions.features["rounds_left"][rows] == 1
    return [
        advice.packed(
            (action, 3), (partners, 5), (last_round, 1), (_speaking(decisions, repeat)[rows], 1)
        ),
        *advice.facts(decisions, rows, lead),
    ]


def _distinct(columns: list[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Place of one row of each distinct kind, and the kind of each row."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * MIXER
    # This brings equal rows together. If unlike ones have mixed to the same, a kind may come twice,
    # and its text is made twice: no more.
    order = np.argsort(mixed)
    first = np.zeros(len(order), np.bool_)
    first[0] = True
    for column in columns:
        ordered = column[order]
        first[1:] |= ordered[1:] != ordered[:-1]
    which = np.empty(len(order), np.intp)
    which[order] = np.cumsum(first) - 1
    return order[first], which
