"""The two shipped policies as plain dicts, for the plain reference of the control loop."""

import copy

CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = ACTIONS = range(5)

# fmt: off
CELLIUM = {
    "empty_is_unproductive": True, "stale_is_unproductive": False,
    "compare_results": False,  # calls are equal (repetition, cycle) only if their results are
    "run_at_newest": False,  # else the longest run anywhere in the window
    "failures_in_row": "calls",  # or "rounds"
    "frequent_tools": [], "frequent_factor": 0.6,
    "ema_alpha": 0.3,
    "rules": {  # the order is the bit
        "output_loop": {"on": True, "mask": [TERMINATE], "repeats": 5},
        "context_exhausted": {"on": True, "mask": [TERMINATE], "saturation": 0.95},
        "round_limit": {"on": False, "mask": [TERMINATE]},
        "failure_wall": {"on": True, "mask": [TERMINATE], "failures": 8, "trend": -0.3,
                         "stuck": 10},
        "true_stagnation": {"on": True, "mask": [TERMINATE], "stuck": 5, "spare_from": 12,
                            "spare_until": 15, "trend": -0.3, "confidence": 0.5},
        "bad_cycle": {"on": True, "mask": [TERMINATE], "quality": 0.4, "trend": 0.0, "stuck": 2},
        "context_high": {"on": True, "mask": [COMPRESS], "saturation": 0.5},
        "context_critical": {"on": True, "mask": [REDIRECT], "saturation": 0.85, "alone": False},
        "failure_chain": {"on": True, "mask": [RETRY, REDIRECT], "failures": 4},
        "prolonged_stagnation": {"on": True, "mask": [REDIRECT], "stuck": 5},
        "tool_cycle": {"on": True, "mask": [REDIRECT], "full_mask": [], "full": 0.5},
        "tool_repetition": {"on": True, "mask": [REDIRECT], "full_mask": [], "full": 0.5,
                            "repetition": 0.7},
        "mild_stagnation": {"on": True, "mask": [RETRY], "stuck": 1},
        "moderate_stagnation": {"on": False, "mask": [COMPRESS], "stuck": 3, "saturation": 0.5},
        "slow_progress": {"on": False, "mask": [RETRY], "trend": 0.0, "trend_below": 0.3,
                          "progress": 0.5, "stuck": 1},
        "progressing": {"on": True, "mask": [CONTINUE], "progress": None, "unless": []},
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
    "prior": (2.0, 2.0),
    "decay": {"factor": 0.99, "every": 50, "target": 1.0},  # target: a number or "prior"
}

DEFAULT_DIFFERENCES = {
    "empty_is_unproductive": False, "stale_is_unproductive": True,
    "compare_results": True, "run_at_newest": True, "failures_in_row": "rounds",
    "rules": {
        "round_limit": {"on": True},
        "true_stagnation": {"trend": -0.15},
        "context_high": {"saturation": 0.75},
        "context_critical": {"mask": [COMPRESS], "alone": True},
        "tool_cycle": {"full_mask": [COMPRESS]},
        "tool_repetition": {"full_mask": [COMPRESS]},
        "moderate_stagnation": {"on": True},
        "slow_progress": {"on": True},
        "progressing": {"progress": 0.5,
                        "unless": ["prolonged_stagnation", "tool_cycle", "tool_repetition"]},
    },
    "reward": {"failure": 0.3},
    "credit": "n_step", "update": "both", "decay": {"target": "prior"},
}
# fmt: on

RULES = tuple(CELLIUM["rules"])
FORCING, PROPOSING = RULES[:6], RULES[6:15]


def merged(base, changes):
    """A deep copy of `base` with `changes` laid over it; an unknown name is a mistake."""
    result = copy.deepcopy(base)
    for name, value in changes.items():
        if name not in base:
            raise KeyError(f"no policy parameter {name!r}")
        nested = isinstance(base[name], dict)
        result[name] = merged(base[name], value) if nested else copy.deepcopy(value)
    return result


POLICIES = {"cellium": CELLIUM, "default": merged(CELLIUM, DEFAULT_DIFFERENCES)}


def policy(name, **overrides):
    """A copy of a shipped policy, with overrides merged in to any depth."""
    return merged(POLICIES[name], overrides)
