"""The sentences of a constraint: what a session knows, and what helps.

a) A sentence is made of `Known`: a decision, and which rule is behind it.
b) A text depends on a few coarse facts only, so that a million decisions need few texts. `facts`,
   at the end, puts exactly those that the sentences read into numbers. A sentence that reads more
   must be added there.
c) Text from outside goes through `quoted` and `quoted_error`, which keep it from opening a section.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records, _rules
from cellium_fast.action import Action
from cellium_fast.cause import (
    COUNTED,
    FAILURE_CAUSES,
    Cause,
    all_rules,
    concluding,
    detecting,
    kind_of,
    names_of,
    ruling,
    suspicions,
)
from cellium_fast.decision import Decision, Decisions
from cellium_fast.explain import (
    REASONS,
    counted,
    cycle_tools,
    quoted,
    quoted_error,
    reason_of,
    times,
    whole_percent,
)

if TYPE_CHECKING:
    from cellium_fast import _step

NAMES_SHOWN = 3
RUN_SHOWN = 3           # calls in a row that make a repetition
COUNT_SHOWN = _records.RUN_WINDOW
COUNT_KEPT = _records.WINDOW
STUCK_SHOWN = 20
CONTEXT_SHOWN = 50      # percent

# A stop is no success, not even by a tool's name.
SUCCESS_WORDS = ("complet", "done", "finish", "succe", "achiev", "accomplish", "fulfil")


class Known(NamedTuple):
    """What the sentences of a constraint are made of."""

    decision: Decision
    features: _step.FeatureRecord
    ruling: str | None      # the rule that gave the action
    detecting: str | None   # the rule that saw what is wrong: mostly the same

    @property
    def failed(self) -> bool:
        """Whether it is about errors."""
        return bool(is_about_errors(self.detecting, self.features.failures_in_row))


def known_of(decision: Decision, action: Action) -> Known:
    """What is known of a decision, whose text is about this action first of all."""
    features = decision.features
    if action in (Action.CONTINUE, Action.COMPRESS):    # of no rule's kind
        return Known(decision, features, None, None)
    mask, policy = decision._mask, decision.setting.policy
    rule = ruling(action, mask, policy, features.context_ratio)
    return Known(
        decision, features, rule,
        detecting(rule, mask, policy, lambda name: getattr(features, name)),
    )


def is_about_errors(rule: str | None, failures: Any) -> Any:
    """Whether a constraint of this rule tells the newest error; `failures` may be a column."""
    return (kind_of(rule) in FAILURE_CAUSES) | ((failures > 0) & (rule in REPEATS))


# --- what was seen --------------------------------------------------------------------------------
REPEATS = ("repeated_round", "repeated_call", "tool_repetition")
OF_EQUAL_CALLS = ("tool_repetition", "tool_cycle", "bad_cycle")
# What each rule saw. The text depends on the count and the newest tool alone: see `facts`.
SEEN = {
    "output_loop": "The same text {times} in a row.",
    "failure_wall": "Failures in a row: {count}.",
    "failure_chain": "Failures in a row: {count}.",
    "compression_failed": "Compressed {times}, and the context is as full as before.",
    "transient_failure": "Failed {times} in a row for a reason that may pass.",
    "transient_persists": "Failed {times} in a row for a reason that should have passed.",
    "repeated_round": "The same round {times} in a row{newest}.",
    "repeated_call": "The same call with the same result {times}{newest}.",
    "repeated_result": "The same result {times}, whatever the call{newest}.",
    "repeated_error": "Rounds in a row with the same error: {count}{newest}.",
    "no_information": "Rounds that brought nothing new: {count}{newest}.",
    "little_information": "Rounds that brought little or nothing new: {count}{newest}.",
    "mostly_failing": "{exact} of the last {window} calls failed.",
    "repeated_text": "Nearly the same text {times} in a row.",
    "idle": "Rounds without a tool call: {count}.",
}

ADVICE = {
    "bad_cycle": "Going back and forth brings nothing new: settle for one way, or submit.",
    "tool_cycle": "Going back and forth brings nothing new: settle for one way, or submit.",
    "failure_chain": "Find out why calls fail before the next one.",
    "mostly_failing": "Find out why calls fail before the next one.",
    "repeated_error": "Mend the cause of this error first, or do without.",
    "repeated_result": "You already have this result; use it or submit.",
    "no_information": "Use what you have, or submit.",
    "little_information": "Use what you have, or submit.",
    "output_loop": "Do not say it again: act, or submit.",
    "repeated_text": "Do not say it again: act, or submit.",
}


def reason(known: Known) -> str:
    """Why a session is stopped."""
    kind, behind = kind_of(known.ruling), kind_of(known.detecting)
    if known.ruling != "redirects_ignored":
        return f"Reason: {_because(known, known.ruling)}."
    ignored = f"Reason: {REASONS[kind]} ({shown_count(known.features.unheeded_redirects)})"
    return f"{ignored}: {_because(known, known.detecting)}." if behind != kind else f"{ignored}."


def _because(known: Known, rule: str | None) -> str:
    kind = kind_of(rule)
    text = reason_of(rule, kind, known.decision.setting.policy)
    return REASONS[kind] if _stops(known) and claims_success(text) else text


def seen(known: Known) -> str:
    """What the rule saw, unless `repeated` says it."""
    rule, features = known.detecting, known.features
    if kind_of(rule) == Cause.USER_RULE and not _stops(known):
        return f"Reason: {_because(known, rule)}."
    if rule not in SEEN or (rule in REPEATS and features.run_length >= RUN_SHOWN):
        return ""
    count = min(getattr(features, COUNTED[rule][0]), COUNT_KEPT)
    names = shown_names(known, features.recent_tools[:1]) if "{newest}" in SEEN[rule] else []
    return SEEN[rule].format(
        count=shown_count(count), times=times(min(count, COUNT_SHOWN)), exact=count,
        window=_records.WINDOW,
        newest=f"; newest call: {names[0]}" if names else "",
    )


def repeated(known: Known) -> str:
    """A run of equal calls, or a cycle."""
    features = known.features
    if features.run_length >= RUN_SHOWN:
        names = shown_names(known, (features.run_tool,))
        return f"Same call of {names[0]} {times(features.run_length)} in a row." if names else ""
    names = shown_names(known, cycle_tools(features))
    if names and features.cycle > len(features.recent_tools):
        return f"{features.cycle} rounds repeat in turn; newest calls: {', '.join(names)}."
    if len(names) == 1:
        return f"The same {features.cycle} calls of {names[0]} alternate."
    return f"Calls alternate: {', '.join(names)}." if names else ""


def error(known: Known) -> str:
    """The newest error, quoted."""
    text = known.decision.setting.names.error(known.features.error_result)
    if not known.failed or text is None or (_stops(known) and claims_success(text)):
        return ""
    return f"Error: {quoted_error(text)}."


def advice(known: Known) -> str:
    """What helps."""
    rule, policy = known.detecting, known.decision.setting.policy
    if rule in OF_EQUAL_CALLS and not policy.match_results:
        return ""       # the calls are equal, and what came back need not be
    if rule not in REPEATS:
        return ADVICE.get(rule or "", "")
    if not known.failed:
        return ADVICE["repeated_result"]
    names = shown_names(known, known.features.recent_tools[:1])
    call = f"call {names[0]}" if names else "make this call"
    return f"Do not {call} with these arguments again."


# --- what is known besides ------------------------------------------------------------------------
def unused(known: Known) -> str:
    """Tools that were not used yet, or that there is only one."""
    setting = known.decision.setting
    if len(setting.tools) == 1:
        return f"Only tool: {quoted(setting.tools[0])}; use it in another way."
    others = [tool for tool in setting.tools if tool not in setting.used_tools]
    if not others:
        return ""
    more = f" and {len(others) - NAMES_SHOWN} more" if len(others) > NAMES_SHOWN else ""
    return f"Not used yet: {', '.join(map(quoted, others[:NAMES_SHOWN]))}{more}."


def stuck(known: Known) -> str:
    """How long stuck."""
    rounds = known.features.stuck_iterations
    if rounds > STUCK_SHOWN:
        return f"Stuck for more than {STUCK_SHOWN} rounds."
    return f"Stuck for {counted(rounds, 'round')}." if rounds else ""


def context(known: Known) -> str:
    """How full the context is."""
    percent = whole_percent(known.features.context_saturation)
    shown = known.features.context_known and percent >= CONTEXT_SHOWN
    return f"Context is {percent:.0f} % full." if shown else ""


# What is added below the fixed lines, the most helpful first.
SENTENCES: dict[Action, tuple[Callable[[Known], str], ...]] = {
    Action.CONTINUE: (),
    Action.RETRY: (repeated, seen, advice, error, stuck, context),
    Action.REDIRECT: (repeated, seen, advice, error, unused, stuck, context),
    Action.COMPRESS: (context, stuck),
    Action.TERMINATE: (reason, repeated, seen, error, stuck, context),
}


# --- names and numbers ----------------------------------------------------------------------------
def shown_names(known: Known, hashes: tuple[int, ...]) -> list[str]:
    """Quoted distinct names of tools; none if one of them is not known or must not be shown."""
    names = [known.decision.setting.names.known_tool(mixed) for mixed in hashes]
    found = [name for name in names if name is not None]
    if len(found) < len(names) or (_stops(known) and any(map(claims_success, found))):
        return []
    return list(dict.fromkeys(map(quoted, found)))


def claims_success(text: str) -> bool:
    """Whether a text from outside reads as if the goal were reached."""
    return any(word in quoted_error(text).casefold() for word in SUCCESS_WORDS)


def shown_count(count: int) -> str:
    """A count as a text shows it.

    >>> shown_count(9), shown_count(12)
    ('9', '10 or more')
    """
    return f"{count}" if count < COUNT_SHOWN else f"{COUNT_SHOWN} or more"


def _stops(known: Known) -> bool:
    return known.decision.action == Action.TERMINATE


# --- facts ----------------------------------------------------------------------------------------
NO_RULE = len(_rules.RULES)
SUSPECTED = NO_RULE + 1     # a rule that the features must tell
OF_USER = SUSPECTED + 1     # and so on: the rules of the policy's user, one by one
PLACES: dict[str | None, int] = {
    rule: place for place, rule in enumerate((*_rules.RULES, None))
}
# What is told of a user's rule here is told of all of them.
RULE_AT = (*_rules.RULES, None, None, *[str(Cause.USER_RULE)] * _records.MAX_USER_RULES)
RULE_BITS = 6
# By action: those whose texts are of no rule's kind are alike.
LEADS = np.array([0, 1, 2, 0, 3], np.uint8)
Facts = list[NDArray[Any]]


def facts(decisions: Decisions, rows: NDArray[np.intp], lead: NDArray[np.uint8]) -> Facts:
    """All that the sentences of these decisions depend on, as columns.

    `lead` is the action that each text is about first of all.
    """

    def read(name: str) -> NDArray[Any]:
        column: NDArray[Any] = decisions.features[name][rows]
        return column

    speaks, directs = lead != Action.CONTINUE, ~np.isin(lead, (Action.CONTINUE, Action.COMPRESS))
    ruled, detected = _rules_behind(decisions, rows, lead, read)
    run = read("run_length")
    run = np.where(directs & (run >= RUN_SHOWN), run, 0)
    cycle = np.where(directs & (run == 0), read("cycle"), 0)
    percent = whole_percent(read("context_saturation"))
    percent = np.where(speaks & read("context_known") & (percent >= CONTEXT_SHOWN), percent, 0)
    stopped = ruled == PLACES["redirects_ignored"]
    recent = read("recent_tools")
    failures = read("failures_in_row") > 0
    error_result = read("error_result")
    failed = _of_rules(detected, lambda rule: is_about_errors(rule, failures))
    shows_error = failed & _errors_known(decisions, rows, error_result)
    shows_newest = _of_rules(detected, lambda rule: "{newest}" in SEEN.get(rule or "", "")
                             or rule in REPEATS)
    return [
        packed(
            (ruled, RULE_BITS),
            (detected, RULE_BITS),
            (_count(detected, read), 4),
            (np.where(stopped, np.minimum(read("unheeded_redirects"), COUNT_SHOWN), 0), 4),
            (run, 4),
            (cycle, 3),
            (np.where(speaks, np.minimum(read("stuck_iterations"), STUCK_SHOWN + 1), 0), 5),
            (percent, 7),
            (failed, 1),
            (decisions.setting_rows[rows], 16),
        ),
        np.where(run > 0, read("run_tool"), 0),
        np.where(shows_error, error_result, 0),
        *(np.where((cycle > place) | (shows_newest & (place == 0)), recent[:, place], 0)
          for place in range(recent.shape[1])),
    ]


def packed(*parts: tuple[NDArray[Any], int]) -> NDArray[np.uint64]:
    """Columns of small numbers as one column; beside each, the bits that it needs."""
    whole = np.zeros(len(parts[0][0]), np.uint64)
    for values, bits in parts:
        whole = whole << np.uint64(bits) | values.astype(np.uint64)
    return whole


def _rules_behind(
    decisions: Decisions, rows: NDArray[np.intp], lead: NDArray[np.uint8],
    read: Callable[[str], NDArray[Any]],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Places of the rules that `known_of` finds, found once for decisions of the same kind."""
    settings = decisions.setting_rows[rows]
    kinds = packed(
        (settings, 16), (LEADS[lead], 2), (decisions.rules[rows], len(_rules.RULES)),
        (decisions.user_rules[rows], _records.MAX_USER_RULES),
    )
    distinct = np.unique(kinds)
    kind = np.searchsorted(distinct, kinds)
    first = np.empty(len(distinct), np.intp)
    first[kind] = np.arange(len(rows))      # any of its rows will do
    found = np.array([
        _rules_behind_one(decisions, int(rows[row]), Action(lead[row])) for row in first
    ], np.uint8)
    ruled, detected = found[kind, 0], found[kind, 1]
    for setting in np.unique(settings[detected == SUSPECTED]):
        rule = decisions.settings[setting].policy.rules.loop_suspected
        signs = suspicions(rule, read)
        told = np.select([sign for _, sign in signs], [PLACES[name] for name, _ in signs],
                         PLACES["idle"])
        np.copyto(detected, told, "unsafe", where=(detected == SUSPECTED) & (settings == setting))
    return ruled, detected


def _rules_behind_one(decisions: Decisions, row: int, lead: Action) -> tuple[int, int]:
    if lead in (Action.CONTINUE, Action.COMPRESS):
        return NO_RULE, NO_RULE
    mask = all_rules(int(decisions.rules[row]), int(decisions.user_rules[row]))
    policy = decisions.setting(row).policy
    rule = ruling(lead, mask, policy, 0.0)
    concluded = concluding(rule, mask, policy)
    places = PLACES | {name: OF_USER + k for k, name in enumerate(names_of(policy))}
    return places[rule], SUSPECTED if concluded == "loop_suspected" else places[concluded]


def _errors_known(
    decisions: Decisions, rows: NDArray[np.intp], error_result: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Of which decisions the newest error's text is known: of most batches, none."""
    tables = {id(setting.names): setting.names for setting in decisions.settings}
    if len(tables) == 1:        # of a fleet
        return next(iter(tables.values())).errors_known(error_result)
    known = np.zeros(len(rows), np.bool_)
    settings = decisions.setting_rows[rows]
    for place, setting in enumerate(decisions.settings):
        here = settings == place
        known[here] = setting.names.errors_known(error_result[here])
    return known


def _of_rules(
    detected: NDArray[np.uint8], told: Callable[[str | None], Any]
) -> NDArray[np.bool_]:
    """What is told of the rule behind each decision."""
    column = np.zeros(len(detected), np.bool_)
    for place in np.unique(detected):
        np.copyto(column, told(RULE_AT[place]), where=detected == place)
    return column


def _count(
    detected: NDArray[np.uint8], read: Callable[[str], NDArray[Any]]
) -> NDArray[np.uint8]:
    """The count that each decision's rule shows, as far as it is shown."""
    column = np.zeros(len(detected), np.uint8)
    for place in np.unique(detected):
        rule = RULE_AT[place]
        if rule in SEEN:
            kept = np.minimum(read(COUNTED[rule][0]), COUNT_KEPT)
            np.copyto(column, kept, "unsafe", where=detected == place)
    return column
