"""Why a decision was taken: the rule behind it, the kind of that rule, and what it counted.

A mask of rules holds the built-in ones, and behind them those of the policy's user (`all_rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from cellium_fast import _records, _rules
from cellium_fast.action import Action

if TYPE_CHECKING:
    from cellium_fast import _step
    from cellium_fast.names import Names
    from cellium_fast.policy import Policy
    from cellium_fast.rules import LoopSuspected, Rule
    from cellium_fast.user_functions import UserRule


class Cause(StrEnum):
    """Why an action other than continue was chosen. None of them means success."""

    NONE = "none"
    LOOP = "loop"
    NO_INFORMATION = "no_information"
    STAGNATION = "stagnation"
    FAILURES = "failures"
    TRANSIENT = "transient"
    CONTEXT = "context"
    COMPRESSION = "compression"
    OUTPUT_LOOP = "output_loop"
    IDLE = "idle"
    ROUND_LIMIT = "round_limit"
    LOOP_SUSPECTED = "loop_suspected"
    IGNORED = "ignored"
    USER_RULE = "user_rule"


class StopCause(StrEnum):
    """What ended a session. None of them means success."""

    LOOP = "loop"
    STAGNATION = "stagnation"
    FAILURES = "failures"
    CONTEXT = "context"
    ROUNDS = "rounds"
    POLICY = "policy"


# In the order of how much a rule explains: the first one that fired for the action is behind it.
CAUSES = {
    "output_loop": Cause.OUTPUT_LOOP,
    "context_exhausted": Cause.CONTEXT,
    "round_limit": Cause.ROUND_LIMIT,
    "failure_wall": Cause.FAILURES,
    "true_stagnation": Cause.STAGNATION,
    "bad_cycle": Cause.LOOP,
    "redirects_ignored": Cause.IGNORED,
    "transient_failure": Cause.TRANSIENT,
    "transient_persists": Cause.TRANSIENT,
    "repeated_round": Cause.LOOP,
    "tool_cycle": Cause.LOOP,
    "tool_repetition": Cause.LOOP,
    "repeated_error": Cause.FAILURES,
    "repeated_call": Cause.LOOP,
    "repeated_result": Cause.NO_INFORMATION,
    "context_critical": Cause.CONTEXT,
    "context_high": Cause.CONTEXT,
    "failure_chain": Cause.FAILURES,
    "mostly_failing": Cause.FAILURES,
    "no_information": Cause.NO_INFORMATION,
    "little_information": Cause.NO_INFORMATION,
    "repeated_text": Cause.OUTPUT_LOOP,
    "idle": Cause.IDLE,
    "compression_failed": Cause.COMPRESSION,
    "loop_suspected": Cause.LOOP_SUSPECTED,
    "prolonged_stagnation": Cause.STAGNATION,
    "moderate_stagnation": Cause.STAGNATION,
    "mild_stagnation": Cause.STAGNATION,
    "slow_progress": Cause.STAGNATION,
}

STOPS = {
    Cause.NONE: StopCause.POLICY,
    Cause.LOOP: StopCause.LOOP,
    Cause.NO_INFORMATION: StopCause.STAGNATION,
    Cause.STAGNATION: StopCause.STAGNATION,
    Cause.FAILURES: StopCause.FAILURES,
    Cause.TRANSIENT: StopCause.FAILURES,
    Cause.CONTEXT: StopCause.CONTEXT,
    Cause.COMPRESSION: StopCause.CONTEXT,
    Cause.OUTPUT_LOOP: StopCause.LOOP,
    Cause.IDLE: StopCause.STAGNATION,
    Cause.ROUND_LIMIT: StopCause.ROUNDS,
    Cause.LOOP_SUSPECTED: StopCause.LOOP,
    Cause.IGNORED: StopCause.LOOP,
    Cause.USER_RULE: StopCause.POLICY,
}

# The feature that says how often a rule saw what it looks for, and for how many rounds.
COUNTED = {
    "output_loop": ("output_repeats", "output_repeats"),
    "context_exhausted": ("exhausted_rounds", "exhausted_rounds"),
    "round_limit": ("round", "round"),
    "failure_wall": ("failures_in_row", "failures_in_row"),
    "true_stagnation": ("stuck_iterations", "stuck_iterations"),
    "bad_cycle": ("cycle", "no_information"),
    "failure_chain": ("failures_in_row", "failures_in_row"),
    "prolonged_stagnation": ("stuck_iterations", "stuck_iterations"),
    "tool_cycle": ("cycle", "no_information"),
    "tool_repetition": ("run_length", "no_information"),
    "mild_stagnation": ("stuck_iterations", "stuck_iterations"),
    "moderate_stagnation": ("stuck_iterations", "stuck_iterations"),
    "slow_progress": ("stuck_iterations", "stuck_iterations"),
    "redirects_ignored": ("unheeded_redirects", "unheeded_redirects"),
    "compression_failed": ("compress_tries", "compress_wait"),
    "transient_failure": ("transient_rounds", "transient_rounds"),
    "transient_persists": ("transient_rounds", "transient_rounds"),
    "repeated_round": ("round_repeats", "round_repeats"),
    "repeated_call": ("call_repeats", "no_information"),
    "repeated_result": ("result_repeats", "no_information"),
    "repeated_error": ("error_repeats", "error_repeats"),
    "no_information": ("no_information", "no_information"),
    "little_information": ("little_information", "little_information"),
    "mostly_failing": ("recent_failures", "no_information"),
    "repeated_text": ("text_repeats", "text_repeats"),
    "idle": ("idle_rounds", "idle_rounds"),
}

FAILURE_CAUSES = (Cause.FAILURES, Cause.TRANSIENT)

NOTHING, LITTLE, NEWS = map(_records.INFORMATION.index, ("nothing", "little", "news"))

Read = Callable[[str], Any]     # a feature by name: a number, or a column of them


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rule behind a decision saw.

    Attributes
    ----------
    rule
        Id of the rule that saw it. Behind `redirects_ignored` that is the rule which asks for
        another redirect; behind `loop_suspected` it is the rule that is about to fire.
    tool
        Name of the repeated tool, or of the newest call's; None if it is not known.
    count
        How often the rule saw what it looks for; None where it counts nothing.
    rounds
        Rounds that this goes on for; None where it counts none.
    error
        The newest error, shortened and as it was first seen, where the last rounds failed or the
        rule is about errors. It comes from outside.
    unheeded_redirects
        Redirects since one was last heeded.
    """

    rule: str
    tool: str | None
    count: int | None
    rounds: int | None
    error: str | None
    unheeded_redirects: int


def all_rules(rules: Any, user_rules: Any) -> Any:
    """One mask of built-in rules and of a user's; or columns of them."""
    return rules | user_rules << len(_rules.RULES)


def rules_in(mask: int, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Ids of the rules of a mask, in the order of their bits; `names` are those of a user's rules.

    >>> rules_in(0b1000000001)
    ('output_loop', 'prolonged_stagnation')
    """
    return tuple(name for bit, name in enumerate((*_rules.RULES, *names)) if mask >> bit & 1)


def names_of(policy: Policy) -> tuple[str, ...]:
    """Names of a policy's own rules, by their bits."""
    return tuple(rule.name for rule in policy.user_rules)


def rule_of_user(rule: str | None, policy: Policy) -> UserRule | None:
    """The user's rule of this name, if it is one."""
    return next((one for one in policy.user_rules if one.name == rule), None)


def is_forcing(rule: str, policy: Policy) -> bool:
    """Whether a rule forces its action, rather than propose it."""
    if rule in _rules.RULES:
        return bool(_rules.FORCING >> _rules.RULES.index(rule) & 1)
    own = rule_of_user(rule, policy)
    return own is not None and own.forces


def ruling(action: int, rules: int, policy: Policy, context_ratio: float) -> str | None:
    """The rule that says most about why an action was given; None for continue."""
    if action == Action.CONTINUE:
        return None
    fired = set(rules_in(rules, names_of(policy)))
    of_user = [
        rule for rule in policy.user_rules if rule.name in fired and action in rule.actions
    ]
    giving = [
        name for name in CAUSES
        if name in fired and action in _given_by(getattr(policy.rules, name), context_ratio)
    ]
    # A rule that forces, or stands alone, has overruled the others.
    giving.sort(key=lambda name: (
        not is_forcing(name, policy), not getattr(getattr(policy.rules, name), "alone", False)
    ))
    forcing = [rule.name for rule in of_user if rule.forces]
    return next(iter([*forcing, *giving, *(rule.name for rule in of_user)]), None)


def concluding(rule: str | None, rules: int, policy: Policy) -> str | None:
    """The rule behind `rule`: the one that asks for another redirect, if those were ignored."""
    if rule != "redirects_ignored":
        return rule
    others = rules & ~(1 << _rules.RULES.index(rule))
    return ruling(Action.REDIRECT, others, policy, 0.0) or rule


def detecting(rule: str | None, rules: int, policy: Policy, read: Read) -> str | None:
    """The rule that saw what is wrong, where `rule` only draws a conclusion from it.

    Behind `redirects_ignored` it is the rule that asks for another redirect; behind
    `loop_suspected` the one that is about to fire.
    """
    rule = concluding(rule, rules, policy)
    if rule == "loop_suspected":
        signs = suspicions(policy.rules.loop_suspected, read)
        return next((name for name, seen in signs if seen), "idle")
    return rule


def suspicions(rule: LoopSuspected, read: Read) -> list[tuple[str, Any]]:
    """What `loop_suspected` looks at, but for idling: the rule that each sign points to."""
    information = read("information")
    nothing = information == NOTHING
    return [
        ("repeated_round", nothing & (read("round_repeats") >= rule.rounds)),
        ("repeated_error", nothing & (read("error_repeats") >= rule.errors)),
        ("failure_chain", nothing & (read("failures_in_row") >= rule.failures)),
        ("no_information", (nothing | (information == LITTLE))
            & (read("no_information") >= rule.no_information)),
        ("repeated_text", (information != NEWS) & (read("own_limit") == 0)
            & (read("text_repeats") >= rule.texts)),
    ]


def kind_of(rule: str | None) -> Cause:
    """The kind of the rule behind an action."""
    return Cause.NONE if rule is None else CAUSES.get(rule, Cause.USER_RULE)


def cause_of(action: int, rules: int, policy: Policy, context_ratio: float) -> Cause:
    """The cause of an action, from the rules that fired."""
    return kind_of(ruling(action, rules, policy, context_ratio))


def evidence_of(rule: str, features: _step.FeatureRecord, names: Names) -> Evidence:
    """What a rule saw that fired on these features."""
    count, rounds = COUNTED.get(rule, (None, None))
    run = rule == "tool_repetition"
    newest = features.run_tool if run else features.recent_tools[0]
    failed = kind_of(rule) in FAILURE_CAUSES or (features.failures_in_row > 0)
    return Evidence(
        rule,
        names.known_tool(newest) if newest else None,
        None if count is None else getattr(features, count),
        None if rounds is None else getattr(features, rounds),
        names.error(features.error_result) if failed else None,
        features.unheeded_redirects,
    )


def _given_by(rule: Rule, context_ratio: float) -> tuple[Action, ...]:
    compress_from = getattr(rule, "compress_from", None)
    full = compress_from is not None and context_ratio >= compress_from
    return (*rule.actions, Action.COMPRESS) if full else rule.actions
