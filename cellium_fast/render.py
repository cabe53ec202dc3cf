"""`HardConstraintRenderer`: a decision as text for the system prompt.

a) The fixed lines of a constraint stand at the top of this file; what a session knows is added
   below them, sentence by sentence, as long as there is room.
b) A text depends on a few coarse facts only, so that a million decisions need few texts:
   action; candidates, if fused; repeated tool and count, or the tools of a cycle; stuck rounds up
   to `STUCK_SHOWN`; context in whole percent from `CONTEXT_SHOWN`; whether one round is left; the
   rules that fired, if they end the session; the setting (policy and tool names).
   `_facts` puts exactly these into numbers. A sentence that reads more must be added there.
c) Names come from outside: `quoted` keeps them from opening a section.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _rules
from cellium_fast.action import Action, mask_of
from cellium_fast.checks import whole_number
from cellium_fast.decision import Decision, Decisions
from cellium_fast.explain import REASONS, counted, cycle_tools, quoted, times, whole_percent

if TYPE_CHECKING:
    from cellium_fast import _step

MAX_LENGTH = 600
MIN_LENGTH = 480        # room for the fixed lines of every constraint, fused ones included
NAMES_SHOWN = 3
RUN_SHOWN = 3           # calls in a row that make a repetition
STUCK_SHOWN = 20
CONTEXT_SHOWN = 50      # percent

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

# A stop is no success, not even by a tool's name.
SUCCESS_WORDS = ("complet", "done", "finish", "succe", "achiev", "accomplish", "fulfil")


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

    def render(self, decision: Decision, fuse: bool = False) -> str:
        """The constraint of one decision; empty for continue, unless one round is left.

        Parameters
        ----------
        decision
            What a step returned.
        fuse
            Redirect or retry, and compress, when one was chosen and the other was a candidate,
            become one constraint.
        """
        features = decision.features
        last_round = _is_last_round(decision, features)
        if decision.action == Action.CONTINUE and not last_round:
            return ""
        actions = _fused_actions(decision) if fuse else (decision.action,)
        text = self._fixed_lines(actions, last_round)
        for sentence in SENTENCES[actions[0]]:
            line = sentence(decision, features)
            if line and len(text) + 1 + len(line) <= self._max_length:
                text += "\n" + line
        return text

    def render_many(self, decisions: Decisions, fuse: bool = False) -> list[str]:
        """The constraint of every decision of a batch: ``render(decisions[i])`` for each i.

        Each distinct text is made once, which makes this fast where texts repeat. Wants decisions
        with all their columns; MissingColumnError names one that is missing.
        """
        texts = np.full(len(decisions), "", object)
        speaking = decisions.action != Action.CONTINUE
        rows = np.flatnonzero(speaking | (decisions.features["rounds_left"] == 1))
        if len(rows):
            one, which = _distinct(_facts(decisions, rows, fuse))
            distinct = [self.render(decisions[int(row)], fuse) for row in rows[one]]
            texts[rows] = np.array(distinct, object)[which]
        made: list[str] = texts.tolist()
        return made

    def _fixed_lines(self, actions: tuple[Action, ...], last_round: bool) -> str:
        parts = [CONSTRAINTS[action] for action in actions]
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


def _shown_names(decision: Decision, hashes: tuple[int, ...]) -> list[str]:
    """Quoted distinct names of tools; none if one of them is not known or must not be shown."""
    names = [decision.setting.names.known_tool(mixed) for mixed in hashes]
    known = [name for name in names if name is not None]
    stop = decision.action == Action.TERMINATE
    if len(known) < len(names) or (stop and any(map(_claims_success, known))):
        return []
    return list(dict.fromkeys(map(quoted, known)))


def _claims_success(name: str) -> bool:
    return any(word in quoted(name).casefold() for word in SUCCESS_WORDS)


def _reason(decision: Decision, features: _step.FeatureRecord) -> str:
    return f"Reason: {REASONS[decision.cause]}."


def _repeated(decision: Decision, features: _step.FeatureRecord) -> str:
    if features.run_length >= RUN_SHOWN:
        names = _shown_names(decision, (features.run_tool,))
        return f"Same call of {names[0]} {times(features.run_length)} in a row." if names else ""
    names = _shown_names(decision, cycle_tools(features))
    if len(names) == 1:
        return f"The same {features.cycle} calls of {names[0]} alternate."
    return f"Calls alternate: {', '.join(names)}." if names else ""


def _unused(decision: Decision, features: _step.FeatureRecord) -> str:
    setting = decision.setting
    if len(setting.tools) == 1:
        return f"Only tool: {quoted(setting.tools[0])}; use it in another way."
    unused = [tool for tool in setting.tools if tool not in setting.used_tools]
    if not unused:
        return ""
    more = f" and {len(unused) - NAMES_SHOWN} more" if len(unused) > NAMES_SHOWN else ""
    return f"Not used yet: {', '.join(map(quoted, unused[:NAMES_SHOWN]))}{more}."


def _stuck(decision: Decision, features: _step.FeatureRecord) -> str:
    rounds = features.stuck_iterations
    if rounds > STUCK_SHOWN:
        return f"Stuck for more than {STUCK_SHOWN} rounds."
    return f"Stuck for {counted(rounds, 'round')}." if rounds else ""


def _context(decision: Decision, features: _step.FeatureRecord) -> str:
    percent = whole_percent(features.context_saturation)
    shown = features.context_known and percent >= CONTEXT_SHOWN
    return f"Context is {percent:.0f} % full." if shown else ""


# What is added below the fixed lines, the most helpful first.
Sentence = Callable[[Decision, "_step.FeatureRecord"], str]
SENTENCES: dict[Action, tuple[Sentence, ...]] = {
    Action.CONTINUE: (),
    Action.RETRY: (_repeated, _stuck, _context),
    Action.REDIRECT: (_repeated, _unused, _stuck, _context),
    Action.COMPRESS: (_context, _stuck),
    Action.TERMINATE: (_reason, _repeated, _stuck, _context),
}


def _facts(decisions: Decisions, rows: NDArray[np.intp], fuse: bool) -> list[NDArray[Any]]:
    """All that a text depends on, as columns: first the small facts packed, then tool hashes."""

    def feature(name: str) -> NDArray[Any]:
        column: NDArray[Any] = decisions.features[name][rows]
        return column

    action = decisions.action[rows]
    speaks = action != Action.CONTINUE
    compresses = action == Action.COMPRESS
    partners = np.where(compresses, mask_of(DIRECTIONS), Action.COMPRESS.mask)
    partners = partners & decisions.candidates[rows] if fuse else np.zeros_like(action)
    names_tools = speaks & (~compresses | (partners != 0))
    run = feature("run_length")
    run = np.where(names_tools & (run >= RUN_SHOWN), run, 0)
    cycle = np.where(names_tools & (run == 0), feature("cycle"), 0)
    percent = whole_percent(feature("context_saturation"))
    shown = speaks & feature("context_known") & (percent >= CONTEXT_SHOWN)
    stuck = np.where(speaks, np.minimum(feature("stuck_iterations"), STUCK_SHOWN + 1), 0)
    packed = np.zeros(len(rows), np.uint64)
    for values, bits in (
        (action, 3),
        (partners, 5),
        (run, 4),
        (stuck, 5),
        (np.where(shown, percent, 0), 7),
        (feature("rounds_left") == 1, 1),
        (np.where(action == Action.TERMINATE, decisions.rules[rows], 0), len(_rules.RULES)),
        (decisions.setting_rows[rows], 16),
    ):
        packed = packed << np.uint64(bits) | values.astype(np.uint64)
    recent = feature("recent_tools")
    return [
        packed,
        np.where(run > 0, feature("run_tool"), 0),
        *(np.where(cycle > place, recent[:, place], 0) for place in range(3)),
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
