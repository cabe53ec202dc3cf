"""The two shipped policies as plain dicts, for the plain reference of the control loop."""

import copy

CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = ACTIONS = range(5)

# fmt: off
CELLIUM = {
    "empty_is_unproductive": True, "stale_is_unproductive": False,
    "compare_results": False,  # calls are equal (repetition, cycle) only if their results are
    "run_at_newest": False,  # else the longest run anywhere in the window
    "see_through_volatile": False,  # a call's shape stands in for its signature
    "failures_in_row": "calls",  # or "rounds"
    "count_cycles": "calls",  # or "rounds"
    "frequent_tools": [], "frequent_factor": 0.6,
    "slight_result": 24, "slight_error": 32, "near_duplicate": 12,
    "tool_limits": {},  # tool to number, 255 = exempt
    "zero_tokens_unknown": False,
    "compress_cooldown": 1, "compress_tries": None,  # None = never given up
    "loop_detection": True,
    "repeat_interval": 1,
    "ema_alpha": 0.3,
    "rules": {  # the order is the bit
        "output_loop": {"on": True, "mask": [TERMINATE], "after_redirect": False, "repeats": 5,
                        "idle_only": False},
        "context_exhausted": {"on": True, "mask": [TERMINATE], "saturation": 0.95, "rounds": 1},
        "round_limit": {"on": False, "mask": [TERMINATE]},
        "failure_wall": {"on": True, "mask": [TERMINATE], "after_redirect": False, "failures": 8,
                         "trend": -0.3, "stuck": 10},
        "true_stagnation": {"on": True, "mask": [TERMINATE], "after_redirect": False, "stuck": 5,
                            "spare_from": 12, "spare_until": 15, "trend": -0.3,
                            "confidence": 0.5},
        "bad_cycle": {"on": True, "mask": [TERMINATE], "after_redirect": False, "quality": 0.4,
                      "trend": 0.0, "stuck": 2},
        "context_high": {"on": True, "mask": [COMPRESS], "alone": False, "saturation": 0.5},
        "context_critical": {"on": True, "mask": [REDIRECT], "alone": False, "saturation": 0.85},
        "failure_chain": {"on": True, "mask": [RETRY, REDIRECT], "alone": False, "failures": 4},
        "prolonged_stagnation": {"on": True, "mask": [REDIRECT], "alone": False, "stuck": 5},
        "tool_cycle": {"on": True, "mask": [REDIRECT], "alone": False, "compress_from": None},
        "tool_repetition": {"on": True, "mask": [REDIRECT], "alone": False, "compress_from": None,
                            "repetition": 0.7},
        "mild_stagnation": {"on": True, "mask": [RETRY], "alone": False, "stuck": 1},
        "moderate_stagnation": {"on": False, "mask": [COMPRESS], "alone": False, "stuck": 3,
                                "saturation": 0.5},
        "slow_progress": {"on": False, "mask": [RETRY], "alone": False, "trend": 0.0,
                          "trend_below": 0.3, "progress": 0.5, "stuck": 1},
        "progressing": {"on": True, "mask": [CONTINUE], "progress": None, "unless": []},
        "redirects_ignored": {"on": False, "mask": [TERMINATE], "redirects": 5},
        "compression_failed": {"on": False, "mask": [REDIRECT], "alone": True},
        "transient_failure": {"on": False, "mask": [RETRY], "alone": True, "patience": 6},
        "transient_persists": {"on": False, "mask": [REDIRECT], "alone": True, "rounds": 6},
        "repeated_round": {"on": False, "mask": [REDIRECT], "alone": True, "repeats": 3,
                           "slight_repeats": 4},
        "repeated_call": {"on": False, "mask": [REDIRECT], "alone": True, "calls": 3, "rounds": 3,
                          "interleaved": 8},
        "repeated_result": {"on": False, "mask": [REDIRECT], "alone": True, "results": 3,
                            "rounds": 4},
        "repeated_error": {"on": False, "mask": [REDIRECT], "alone": True, "errors": 3},
        "no_information": {"on": False, "mask": [REDIRECT], "alone": True, "rounds": 5},
        "little_information": {"on": False, "mask": [REDIRECT], "alone": True, "rounds": 8},
        "mostly_failing": {"on": False, "mask": [REDIRECT], "alone": True, "failures": 8,
                           "rounds": 2},
        "repeated_text": {"on": False, "mask": [REDIRECT], "alone": True, "texts": 5},
        "idle": {"on": False, "mask": [REDIRECT], "alone": True, "rounds": 8, "blank": 5},
        "loop_suspected": {"on": False, "mask": [RETRY], "alone": True, "rounds": 2, "errors": 2,
                           "no_information": 3, "failures": 3, "texts": 3, "idle": 4, "blank": 3},
    },
    "tie_break": "thompson",  # or "greedy", "first"
    "bias": {
        "redirect_repetition": 0.03, "redirect_stuck": 0.04,
        "retry_stuck": 0.02, "retry_trend": 0.01,
        "compress_saturation": 0.03, "compress_stuck": 0.02,
        "continue_progress": 0.02, "continue_unstuck": 0.03,
        "cold_updates": 5, "cold_factor": 5.0,
    },
    "reward": {"round_cost": 0.1, "context_cost": 0.2, "context_free": 0.8,
               "failure": 0.0, "failure_stuck": 5},
    "n_step": 3, "gamma": 1.0,
    "credit": "newest",  # the last n rewards to the newest decision; or "n_step"
    "update": "one_side",  # or "both"
    "learn_from": "tiebreak",  # or "all"
    "user_rules": [],  # dicts of the plain function, its mask, and whether it forces
    "user_reward": None,  # a plain function of features and outcome, each by attribute
    "user_bias": {},  # action to plain function
    "prior": (2.0, 2.0),
    "decay": {"factor": 0.99, "every": 50, "target": 1.0},  # target: a number or "prior"
}

RULES = tuple(CELLIUM["rules"])
LOOPS = ["prolonged_stagnation", "tool_cycle", "tool_repetition"]
DEFAULT_DIFFERENCES = {
    "empty_is_unproductive": False, "stale_is_unproductive": True,
    "compare_results": True, "run_at_newest": True, "see_through_volatile": True,
    "failures_in_row": "rounds", "count_cycles": "rounds",
    "zero_tokens_unknown": True, "compress_cooldown": 3, "compress_tries": 2,
    "repeat_interval": 5,
    "rules": {
        "output_loop": {"after_redirect": True, "idle_only": True},
        "context_exhausted": {"rounds": 3},
        "round_limit": {"on": True},
        "failure_wall": {"after_redirect": True},
        "true_stagnation": {"on": False, "after_redirect": True, "trend": -0.15},
        "bad_cycle": {"after_redirect": True},
        "context_high": {"saturation": 0.75},
        "context_critical": {"mask": [COMPRESS], "alone": True},
        "failure_chain": {"mask": [REDIRECT], "alone": True, "failures": 5},
        "prolonged_stagnation": {"mask": [RETRY]},
        "tool_cycle": {"alone": True},
        "tool_repetition": {"alone": True},
        "moderate_stagnation": {"on": True},
        "slow_progress": {"on": True},
        "progressing": {"progress": 0.5, "unless": LOOPS},
        **{name: {"on": True} for name in RULES[16:]},
    },
    "reward": {"failure": 0.3},
    "credit": "n_step", "update": "both", "decay": {"target": "prior"},
}
# fmt: on

FORCING = (*RULES[:6], "redirects_ignored")
PROPOSING = tuple(name for name in RULES if name not in (*FORCING, "progressing"))
# Rules for repetition and stagnation, which `loop_detection` switches.
LOOP_RULES = tuple(RULES[bit] for bit in (0, 4, 5, 9, 10, 11, *range(20, 26), 27, 28, 29))


def merged(base, changes):
    """A deep copy of `base` with `changes` laid over it; an unknown name is a mistake."""
    result = copy.deepcopy(base)
    for name, value in changes.items():
        if name not in base:
            raise KeyError(f"no policy parameter {name!r}")
        nested = isinstance(base[name], dict) and base[name]  # an empty one maps any names
        result[name] = merged(base[name], value) if nested else copy.deepcopy(value)
    return result


POLICIES = {"cellium": CELLIUM, "default": merged(CELLIUM, DEFAULT_DIFFERENCES)}


def policy(name, **overrides):
    """A copy of a shipped policy, with overrides merged in to any depth."""
    return merged(POLICIES[name], overrides)
