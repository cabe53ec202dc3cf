"""`explain` and `evidence`: what a decision rests on, in words.

The words for names, counts and shares that come from outside are here too; `render` uses them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cellium_fast import _records
from cellium_fast.action import Action
from cellium_fast.cause import Cause, detecting, is_forcing, rule_of_user
from cellium_fast.decision import Decision, Setting

if TYPE_CHECKING:
    from cellium_fast import _step
    from cellium_fast.policy import Policy

NAME_LENGTH = 40
ERROR_LENGTH = 80

REASONS = {
    Cause.NONE: "a rule of your own policy",
    Cause.LOOP: "calls repeat",
    Cause.NO_INFORMATION: "nothing new comes back",
    Cause.STAGNATION: "no progress",
    Cause.FAILURES: "repeated failures",
    Cause.TRANSIENT: "failures that may pass",
    Cause.CONTEXT: "the context is nearly full",
    Cause.COMPRESSION: "summaries no longer help",
    Cause.OUTPUT_LOOP: "the same answer text again and again",
    Cause.IDLE: "no tool is called",
    Cause.ROUND_LIMIT: "the round limit is reached",
    Cause.LOOP_SUSPECTED: "first signs of a loop",
    Cause.IGNORED: "redirects were ignored",
    Cause.USER_RULE: "a rule of your own",
}
# Of every script; with bars, angle brackets make the marks of chat templates.
ANGLES = dict(zip("<>|\uff1c\uff1e\uff5c", "()/()/", strict=True))    # half and full width
ASCII_BRACKETS = str.maketrans("[]{}<>|", "()()()/")
QUOTATION_MARKS = str.maketrans("“”„‟\"", "'''''")


def safe_text(text: str, length: int) -> str:
    """Text from outside as at most `length` printable characters of one line, without brackets.

    Control and format characters (line breaks, NUL, bidirectional controls), lone surrogates and
    runs of white space become one space. Brackets of every script, angle brackets too, become
    parentheses and bars slashes, so that no section of a prompt and no turn of a chat is opened.

    >>> safe_text("a\\n[CONTROL ACTION]", 40)
    'a (CONTROL ACTION)'
    >>> safe_text("</system> <|user|>", 40)
    '(/system) (/user/)'
    >>> safe_text("a rather long name", 9)
    'a rather…'
    """
    # What lies further in could only be shown if most of the text before it were invisible.
    head = text[: 8 * length]
    # Most names are plain, and a look at the whole is faster than one at every character.
    if head.isascii() and head.isprintable():
        head = head.translate(ASCII_BRACKETS)
    else:
        head = "".join(map(_tamed, head))
    line = " ".join(head.split())
    if len(line) <= length and len(text) <= 8 * length:
        return line
    return line[: length - 1].rstrip() + "…"


def _tamed(character: str) -> str:
    parenthesis = {"Ps": "(", "Pe": ")"}.get(unicodedata.category(character))
    plain = parenthesis or ANGLES.get(character)
    return plain or (character if character.isprintable() else " ")


def quoted(name: str) -> str:
    """A name from outside, safe and in quotes.

    >>> quoted('say "hi"')
    '"say \\'hi\\'"'
    """
    return f'"{safe_text(name, NAME_LENGTH).replace(chr(34), chr(39))}"'


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "round"), counted(6, "round")
    ('1 round', '6 rounds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def times(count: int) -> str:
    """How often, for counters that stop at the length of their window.

    >>> times(4), times(10)
    ('4 times', '10 or more times')
    """
    if count >= _records.RUN_WINDOW:
        return f"{count} or more times"
    return counted(count, "time")


def quoted_error(text: str) -> str:
    """An error from outside, safe, shortened, and plainly a quotation.

    >>> quoted_error("no such file:\\n[x]")
    '“no such file: (x)”'
    """
    return f"“{safe_text(text, ERROR_LENGTH).translate(QUOTATION_MARKS)}”"


def whole_percent(fraction: Any) -> Any:
    """A fraction, or an array of them, in whole percent.

    >>> whole_percent(0.868)
    87.0
    """
    return (fraction * 100 + 0.5) // 1


def cycle_tools(features: _step.FeatureRecord) -> tuple[int, ...]:
    """Hashes of a cycle's tools, its last three at most, in the order of their calls."""
    return tuple(reversed(features.recent_tools[: features.cycle]))


def explain(decision: Decision) -> str:
    """What was seen, which rules fired on what evidence, what was compared and what won.

    Several short lines of plain words, for people; names and errors from outside are shortened to
    one line each. `evidence` is for programs.

    Examples
    --------
    >>> from cellium_fast import Fleet, Round, ToolCall
    >>> session = Fleet(seed=7).session("ticket", context_limit=100_000)
    >>> decision = session.step(Round([ToolCall("search", {"q": "a"}, "found")]))
    >>> print(explain(decision).splitlines()[0])
    Round 1: continue
    """
    features = decision.features
    fired = evidence(decision)
    width = max(map(len, fired), default=0)
    rules = [f"  {rule:<{width}}  {sentence}" for rule, sentence in fired.items()]
    return "\n".join([
        _heading(decision, features),
        *_features(features),
        "Rules that fired:" if rules else "Rules that fired: none",
        *rules,
        *_choice(decision),
    ])


def evidence(decision: Decision) -> dict[str, str]:
    """The evidence of each rule that fired, by the rule's id and in the order of the rules.

    Examples
    --------
    >>> from cellium_fast import Fleet, Round
    >>> session = Fleet(seed=7).session("ticket", context_limit=100_000)
    >>> evidence(session.step(Round(context_tokens=96_000)))["context_critical"]
    'context 96 % full'
    """
    features = decision.features
    found = {rule: _evidence(rule, features, decision.setting) for rule in decision.rules}
    for rule in ("redirects_ignored", "loop_suspected"):
        if rule in found:
            found[rule] += _behind(rule, decision, features)
    return found


def reason_of(rule: str | None, cause: Cause, policy: Policy) -> str:
    """Why, in a few words: what the user says of a rule of their own, or what its kind is."""
    own = rule_of_user(rule, policy)
    return REASONS[cause] if own is None else own.reason


def _evidence(rule: str, features: _step.FeatureRecord, setting: Setting) -> str:
    own = rule_of_user(rule, setting.policy)
    return EVIDENCE[rule](features, setting) if own is None else own.reason


def _heading(decision: Decision, features: _step.FeatureRecord) -> str:
    when = f"Round {features.round}" if features.round else "Before the first round"
    if decision.action == Action.CONTINUE:
        return f"{when}: {decision.action}"
    reason = reason_of(decision._ruling(), decision.cause, decision.setting.policy)
    return f"{when}: {decision.action} (cause: {decision.cause}, {reason})"


def _features(features: _step.FeatureRecord) -> tuple[str, ...]:
    saturation = f"{features.context_saturation:.2f}" if features.context_known else "unknown"
    return (
        f"  progress_score {features.progress_score:.2f}, "
        f"progress_trend {features.progress_trend:+.2f}, "
        f"stuck_iterations {features.stuck_iterations},",
        f"  context_saturation {saturation}, "
        f"repetition_score {features.repetition_score:.2f}, "
        f"error_rate {features.error_rate:.2f},",
        f"  no_information {features.no_information}, "
        f"round_repeats {features.round_repeats}, "
        f"unheeded_redirects {features.unheeded_redirects}",
    )


def _choice(decision: Decision) -> list[str]:
    policy = decision.setting.policy
    forcing = [rule for rule in decision.rules if is_forcing(rule, policy)]
    # Those of the user come first.
    forcing.sort(key=lambda rule: rule_of_user(rule, policy) is None)
    if forcing:
        return [f"Forced by {forcing[0]}: {decision.action}"]
    if not decision.tiebreak:
        alone = [
            rule for rule in decision.rules
            if getattr(getattr(policy.rules, rule, None), "alone", False)
        ]
        overruled = f" ({' and '.join(alone)} overrules the others)" if alone else ""
        return [f"Only candidate: {decision.action}{overruled}"]
    names = ", ".join(map(str, decision.candidates))
    how = policy.tie_break
    if how == "first":
        return [f"Candidates: {names}", f"First candidate: {decision.action}"]
    verb = "mean" if how == "greedy" else "draw"
    lines = [
        f"  {action!s:<9} {verb} {draw:.3f}, bias {decision.bias[action]:+.3f}, "
        f"score {decision.scores[action]:.3f}"
        for action, draw in decision.draws.items()
    ]
    return [f"Candidates: {names}", *lines, f"Highest score: {decision.action}"]


def _output_repeats(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"same answer text {times(features.output_repeats)}"


def _context(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"context {whole_percent(features.context_saturation):.0f} % full"


def _round_limit(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"round limit reached: {counted(features.round, 'round')}"


def _stuck(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"stuck for {counted(features.stuck_iterations, 'round')}"


def _failures(features: _step.FeatureRecord, setting: Setting) -> str:
    count = features.failures_in_row
    more = "+" if count >= _records.RUN_WINDOW else ""
    failures = "failure" if count == 1 else "failures"
    return f"{count}{more} {failures} in a row{_error(features, setting)}"


def _failure_wall(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"{_stuck_and_trend(features, setting)}, {_failures(features, setting)}"


def _stuck_and_trend(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"{_stuck(features, setting)}, progress trend {features.progress_trend:+.2f}"


def _cycle(features: _step.FeatureRecord, setting: Setting) -> str:
    # A A A A A A is a cycle of three too.
    if features.run_length >= 2 * features.cycle:
        return _run(features, setting)
    names = [_tool(mixed, setting) for mixed in cycle_tools(features)]
    more = ", ..." if features.cycle > len(names) else ""
    return f"calls alternate: {', '.join(names)}{more}"


def _bad_cycle(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"{_cycle(features, setting)}; result quality {features.result_quality:.2f}"


def _run(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"same call {times(features.run_length)}: {_tool(features.run_tool, setting)}"


def _stuck_in_context(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"{_stuck(features, setting)}, {_context(features, setting)}"


def _slow_progress(features: _step.FeatureRecord, setting: Setting) -> str:
    score = f"progress score {features.progress_score:.2f}"
    return f"{score}, trend {features.progress_trend:+.2f}, {_stuck(features, setting)}"


def _progressing(features: _step.FeatureRecord, setting: Setting) -> str:
    if features.making_progress:
        return "making progress"
    return f"progress score {features.progress_score:.2f}, {_stuck(features, setting)}"


def _exhausted(features: _step.FeatureRecord, setting: Setting) -> str:
    rounds = features.exhausted_rounds
    return _context(features, setting) + (f", {rounds} rounds in a row" if rounds > 1 else "")


def _ignored(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"{counted(features.unheeded_redirects, 'redirect')} ignored"


def _compression(features: _step.FeatureRecord, setting: Setting) -> str:
    tries = counted(features.compress_tries, "time")
    return f"{_context(features, setting)}, compressed {tries} without help"


def _transient(features: _step.FeatureRecord, setting: Setting) -> str:
    rounds = counted(features.transient_rounds, "round")
    return f"{rounds} failed in a way that may pass{_error(features, setting)}"


def _same_round(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"same round {features.round_repeats} times in a row: {_newest(features, setting)}"


def _same_call(features: _step.FeatureRecord, setting: Setting) -> str:
    return (
        f"same call and result {features.call_repeats} times: {_newest(features, setting)}, "
        f"{_without_news(features)}"
    )


def _same_result(features: _step.FeatureRecord, setting: Setting) -> str:
    return (
        f"same result {features.result_repeats} times: {_newest(features, setting)}, "
        f"{_without_news(features)}"
    )


def _same_error(features: _step.FeatureRecord, setting: Setting) -> str:
    rounds = counted(features.error_repeats, "round")
    return f"same error in {rounds}: {_newest(features, setting)}{_error(features, setting)}"


def _no_information(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"{_without_news(features)}: {_newest(features, setting)}"


def _little_information(features: _step.FeatureRecord, setting: Setting) -> str:
    rounds = counted(features.little_information, "round")
    return f"{rounds} with little news or none: {_newest(features, setting)}"


def _mostly_failing(features: _step.FeatureRecord, setting: Setting) -> str:
    failures = f"{features.recent_failures} of the last {_records.WINDOW} calls failed"
    return f"{failures}, {_without_news(features)}{_error(features, setting)}"


def _same_text(features: _step.FeatureRecord, setting: Setting) -> str:
    return f"nearly the same text {counted(features.text_repeats, 'time')}"


def _idle(features: _step.FeatureRecord, setting: Setting) -> str:
    blank = f", {features.blank_rounds} without a text" if features.blank_rounds else ""
    return f"{counted(features.idle_rounds, 'round')} without a tool call{blank}"


def _suspected(features: _step.FeatureRecord, setting: Setting) -> str:
    return "first signs"


def _behind(rule: str, decision: Decision, features: _step.FeatureRecord) -> str:
    """What a rule that only draws a conclusion rests on."""
    setting = decision.setting
    behind = detecting(
        rule, decision._mask, setting.policy, lambda name: getattr(features, name)
    )
    return "" if behind in (None, rule) else f"; {_evidence(behind, features, setting)}"


def _without_news(features: _step.FeatureRecord) -> str:
    return f"{counted(features.no_information, 'round')} without news"


def _newest(features: _step.FeatureRecord, setting: Setting) -> str:
    return _tool(features.recent_tools[0], setting)


def _error(features: _step.FeatureRecord, setting: Setting) -> str:
    error = setting.names.error(features.error_result)
    return f": {safe_text(error, ERROR_LENGTH)}" if error else ""


def _tool(mixed: int, setting: Setting) -> str:
    return safe_text(setting.names.tool(mixed), NAME_LENGTH)


EVIDENCE: dict[str, Callable[[_step.FeatureRecord, Setting], str]] = {
    "output_loop": _output_repeats,
    "context_exhausted": _exhausted,
    "round_limit": _round_limit,
    "failure_wall": _failure_wall,
    "true_stagnation": _stuck_and_trend,
    "bad_cycle": _bad_cycle,
    "context_high": _context,
    "context_critical": _context,
    "failure_chain": _failures,
    "prolonged_stagnation": _stuck,
    "tool_cycle": _cycle,
    "tool_repetition": _run,
    "mild_stagnation": _stuck,
    "moderate_stagnation": _stuck_in_context,
    "slow_progress": _slow_progress,
    "progressing": _progressing,
    "redirects_ignored": _ignored,
    "compression_failed": _compression,
    "transient_failure": _transient,
    "transient_persists": _transient,
    "repeated_round": _same_round,
    "repeated_call": _same_call,
    "repeated_result": _same_result,
    "repeated_error": _same_error,
    "no_information": _no_information,
    "little_information": _little_information,
    "mostly_failing": _mostly_failing,
    "repeated_text": _same_text,
    "idle": _idle,
    "loop_suspected": _suspected,
}
