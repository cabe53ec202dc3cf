"""Tables of the policy: what every parameter is in the presets, and what none may be."""

import math
from typing import Any

from cellium_fast import Action, _rules


def flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The leaves of nested dicts by dotted path; an empty dict has none."""
    found = {}
    for name, value in values.items():
        path = f"{before}{name}"
        found.update(flat(value, f"{path}.") if isinstance(value, dict) else {path: value})
    return found


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


FORCING = (*_rules.RULES[:6], "redirects_ignored")
PROPOSING = tuple(rule for rule in _rules.RULES if rule not in (*FORCING, "progressing"))
LAST_RESORTS = ("output_loop", "failure_wall", "true_stagnation", "bad_cycle")
# Rules that are alone by default: where the evidence leaves one right action.
ALONE = {"context_critical", "failure_chain", "tool_cycle", "tool_repetition", *_rules.RULES[17:]}

# --- The numbers themselves ----------------------------------------------------------------------
CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = ((action,) for action in Action)

DEFAULT = {
    "ema_alpha": 0.3, "empty_is_unproductive": False, "stale_is_unproductive": True,
    "match_results": True, "newest_run_only": True, "see_through_volatile": True,
    "count_failures": "rounds", "count_cycles": "rounds", "frequent_tools": (),
    "tool_limits": (),
    "slight_result": 24, "slight_error": 32, "near_duplicate": 12,
    "zero_tokens_unknown": True, "compress_cooldown": 3, "compress_tries": 2,
    "loop_detection": True, "repeat_interval": 5,
    "user_rules": (), "user_reward": None, "user_bias": (), "propensities": False,
    "tie_break": "thompson", "n_step": 3, "gamma": 1.0,
    "credit": "forward", "update": "both", "learn_from": "tiebreak",
    "rules.output_loop.actions": TERMINATE, "rules.output_loop.repeats": 5,
    "rules.output_loop.idle_only": True,
    "rules.context_exhausted.actions": TERMINATE, "rules.context_exhausted.saturation": 0.95,
    "rules.context_exhausted.rounds": 3,
    "rules.round_limit.actions": TERMINATE,
    "rules.failure_wall.actions": TERMINATE, "rules.failure_wall.failures": 8,
    "rules.failure_wall.trend": -0.3, "rules.failure_wall.stuck": 10,
    "rules.true_stagnation.actions": TERMINATE, "rules.true_stagnation.stuck": 5,
    "rules.true_stagnation.pause_from": 12, "rules.true_stagnation.pause_to": 15,
    "rules.true_stagnation.trend": -0.15, "rules.true_stagnation.confidence": 0.5,
    "rules.bad_cycle.actions": TERMINATE, "rules.bad_cycle.quality": 0.4,
    "rules.bad_cycle.stuck": 2,
    "rules.context_high.actions": COMPRESS, "rules.context_high.saturation": 0.75,
    "rules.context_critical.actions": COMPRESS, "rules.context_critical.saturation": 0.85,
    "rules.failure_chain.actions": REDIRECT, "rules.failure_chain.failures": 5,
    "rules.prolonged_stagnation.actions": RETRY, "rules.prolonged_stagnation.stuck": 5,
    "rules.tool_cycle.actions": REDIRECT, "rules.tool_cycle.compress_from": None,
    "rules.tool_repetition.actions": REDIRECT, "rules.tool_repetition.repetition": 0.7,
    "rules.tool_repetition.compress_from": None,
    "rules.mild_stagnation.actions": RETRY, "rules.mild_stagnation.stuck": 1,
    "rules.moderate_stagnation.actions": COMPRESS, "rules.moderate_stagnation.stuck": 3,
    "rules.moderate_stagnation.saturation": 0.5,
    "rules.slow_progress.actions": RETRY, "rules.slow_progress.trend": 0.3,
    "rules.slow_progress.progress": 0.5, "rules.slow_progress.stuck": 1,
    "rules.progressing.actions": CONTINUE, "rules.progressing.progress": 0.5,
    "rules.progressing.yields": True,
    "rules.redirects_ignored.actions": TERMINATE, "rules.redirects_ignored.redirects": 5,
    "rules.compression_failed.actions": REDIRECT,
    "rules.transient_failure.actions": RETRY, "rules.transient_failure.patience": 6,
    "rules.transient_persists.actions": REDIRECT, "rules.transient_persists.rounds": 6,
    "rules.repeated_round.actions": REDIRECT, "rules.repeated_round.repeats": 3,
    "rules.repeated_round.slight_repeats": 4,
    "rules.repeated_call.actions": REDIRECT, "rules.repeated_call.calls": 3,
    "rules.repeated_call.rounds": 3, "rules.repeated_call.interleaved": 8,
    "rules.repeated_result.actions": REDIRECT, "rules.repeated_result.results": 3,
    "rules.repeated_result.rounds": 4,
    "rules.repeated_error.actions": REDIRECT, "rules.repeated_error.errors": 3,
    "rules.no_information.actions": REDIRECT, "rules.no_information.rounds": 5,
    "rules.little_information.actions": REDIRECT, "rules.little_information.rounds": 8,
    "rules.mostly_failing.actions": REDIRECT, "rules.mostly_failing.failures": 8,
    "rules.mostly_failing.rounds": 2,
    "rules.repeated_text.actions": REDIRECT, "rules.repeated_text.texts": 5,
    "rules.idle.actions": REDIRECT, "rules.idle.rounds": 8, "rules.idle.blank": 5,
    "rules.loop_suspected.actions": RETRY, "rules.loop_suspected.rounds": 2,
    "rules.loop_suspected.errors": 2, "rules.loop_suspected.no_information": 3,
    "rules.loop_suspected.failures": 3, "rules.loop_suspected.texts": 3,
    "rules.loop_suspected.idle": 4, "rules.loop_suspected.blank": 3,
    "bias.redirect_repetition": 0.03, "bias.redirect_stuck": 0.04, "bias.retry_stuck": 0.02,
    "bias.retry_slow": 0.01, "bias.compress_saturation": 0.03, "bias.compress_stuck": 0.02,
    "bias.continue_progress": 0.02, "bias.continue_unstuck": 0.03,
    "bias.cold_start_factor": 5.0, "bias.cold_start_updates": 5,
    "feedback.round_cost": 0.1, "feedback.saturation_cost": 0.2,
    "feedback.saturation_from": 0.8, "feedback.failure_reward": 0.3,
    "posterior.alpha": 2.0, "posterior.beta": 2.0, "posterior.decay": 0.99,
    "posterior.decay_every": 50, "posterior.decay_target": "prior",
} | {f"rules.{rule}.enabled": rule != "true_stagnation" for rule in _rules.RULES} | {
    f"rules.{rule}.alone": rule in ALONE for rule in PROPOSING
} | {f"rules.{rule}.after_redirect": True for rule in LAST_RESORTS}

CELLIUM = {
    "empty_is_unproductive": True,
    "stale_is_unproductive": False,
    "match_results": False,
    "newest_run_only": False,
    "see_through_volatile": False,
    "count_failures": "calls",
    "count_cycles": "calls",
    "zero_tokens_unknown": False,
    "compress_cooldown": 1,
    "compress_tries": None,
    "repeat_interval": 1,
    "rules.output_loop.idle_only": False,
    "rules.context_exhausted.rounds": 1,
    "rules.round_limit.enabled": False,
    "rules.true_stagnation.enabled": True,
    "rules.true_stagnation.trend": -0.3,
    "rules.context_high.saturation": 0.5,
    "rules.context_critical.actions": REDIRECT,
    "rules.context_critical.alone": False,
    "rules.failure_chain.actions": RETRY + REDIRECT,
    "rules.failure_chain.failures": 4,
    "rules.failure_chain.alone": False,
    "rules.prolonged_stagnation.actions": REDIRECT,
    "rules.tool_cycle.alone": False,
    "rules.tool_repetition.alone": False,
    "rules.moderate_stagnation.enabled": False,
    "rules.slow_progress.enabled": False,
    "rules.progressing.progress": None,
    "rules.progressing.yields": False,
    "feedback.failure_reward": 0.0,
    "credit": "newest",
    "update": "one_side",
    "posterior.decay_target": 1.0,
} | {f"rules.{rule}.enabled": False for rule in _rules.RULES[16:]} | {
    f"rules.{rule}.after_redirect": False for rule in LAST_RESORTS
}

# --- What is refused -----------------------------------------------------------------------------
STREAKS = (
    "redirects_ignored.redirects", "transient_failure.patience", "transient_persists.rounds",
    "repeated_round.repeats", "repeated_round.slight_repeats", "repeated_call.rounds",
    "repeated_result.rounds", "repeated_error.errors", "no_information.rounds",
    "little_information.rounds", "mostly_failing.rounds", "repeated_text.texts", "idle.rounds",
    "idle.blank", *(f"loop_suspected.{name}" for name in (
        "rounds", "errors", "no_information", "failures", "texts", "idle", "blank")),
)
WINDOW_COUNTS = ("repeated_call.calls", "repeated_call.interleaved", "repeated_result.results",
                 "mostly_failing.failures")
NONSENSE = [
    ("ema_alpha", [0, -0.1, 1.01, math.nan, math.inf, "x", None, []]),
    ("empty_is_unproductive", ["maybe", None, 2]),
    ("count_failures", ["tools", None, 1]),
    ("see_through_volatile", ["maybe", None, 2]),
    ("count_cycles", ["tools", None, 1]),
    ("frequent_tools", ["ls", [1], ["a"] * 17, None]),
    ("slight_result", [-1, 65536, 1.5, math.nan, "x", None]),
    ("slight_error", [-1, 65536, 1.5]),
    ("near_duplicate", [0, 17, 1.5, None]),
    ("tool_limits", ["ls", ["ls"], 5, None, [5], [["ls"]], [["ls", 5, 5]]]),
    ("zero_tokens_unknown", ["maybe", None, 2]),
    ("compress_cooldown", [0, 255, 1.5, None]),
    ("compress_tries", [0, 255, 1.5, "never"]),
    ("loop_detection", ["maybe", None, 2]),
    ("repeat_interval", [0, 255, 1.5, None]),
    ("tie_break", ["ucb", None]),
    ("n_step", [0, 5, -1, 1.5, math.nan, "x", None]),
    ("gamma", [0, 1.1, math.nan]),
    ("credit", ["backward"]),
    ("update", ["none"]),
    ("learn_from", ["some"]),
    ("rules", [5, None, []]),
    ("rules.output_loop.repeats", [0, 11, 2.5, math.nan]),
    ("rules.output_loop.enabled", ["perhaps"]),
    ("rules.output_loop.idle_only", ["perhaps", None]),
    ("rules.output_loop.after_redirect", ["perhaps", None]),
    ("rules.context_exhausted.saturation", [0, -1, math.nan, math.inf]),
    ("rules.context_exhausted.rounds", [0, 255, 1.5]),
    ("rules.failure_wall.failures", [0, 11]),
    ("rules.failure_wall.trend", [-1.1, 1.1, math.nan]),
    ("rules.failure_wall.stuck", [0, 65536]),
    ("rules.true_stagnation.confidence", [-0.1, 1.1, math.nan]),
    ("rules.bad_cycle.quality", [-0.1, 1.1]),
    ("rules.tool_cycle.compress_from", [0, math.inf, "x"]),
    ("rules.tool_repetition.repetition", [1.5, math.nan]),
    ("rules.slow_progress.progress", [2, math.nan]),
    ("rules.failure_chain.actions", ["retry", 5, None, [9], ["jump"], [None]]),
    *((f"rules.{path}", [0, 255, 1.5, math.nan, "x", None]) for path in STREAKS),
    *((f"rules.{path}", [0, 13, 1.5, math.nan, "x", None]) for path in WINDOW_COUNTS),
    ("bias.retry_slow", [-0.1, 1.5, math.nan]),
    ("bias.cold_start_factor", [-1, 101, math.inf]),
    ("bias.cold_start_updates", [-1, 256, 1.5]),
    ("feedback.round_cost", [-0.1, 1.1, math.nan]),
    ("feedback.saturation_from", [1, -0.1]),
    ("posterior.alpha", [0, -1, 1e7, math.nan, math.inf]),
    ("posterior.beta", [0, math.inf]),
    ("posterior.decay", [0, 1.1, math.nan]),
    ("posterior.decay_every", [-1, 65536, 0.5]),
    ("posterior.decay_target", ["mean", 0, math.nan, math.inf]),
]
