"""Functions of users for tests of the kernels: rules of every kind, and some that fail."""

from random import Random

from cellium_fast import bias, reward, rule


# --- rules that read numbers which the reference has to the last bit ------------------------------
@rule(proposes="redirect", reason="every third round")
def every_third(features):
    return features.round % 3 == 0


@rule(proposes=("compress", "redirect"))
def silent(features):
    """No tool was called."""
    return features.idle_rounds > 0


@rule(proposes="retry")
def failed(features):
    return features.failures_in_row >= 1


@rule(proposes="continue")
def onwards(features):
    return features.stuck_iterations >= 2


@rule(proposes="terminate", reason="enough rounds")
def enough(features):
    return features.round >= 40 and features.stuck_iterations > 0


@rule(forces="redirect", reason="once more, but another way")
def turn(features):
    return features.unheeded_redirects == 1 and features.round % 2 == 0


@rule(forces="terminate")
def hopeless(features):
    return features.round_repeats >= 5


@rule(forces="compress")
def half_full(features):
    return features.context_ratio > 0.5 and features.compress_wait > 4


RULES = (every_third, silent, failed, onwards, enough, turn, hopeless, half_full)


@reward
def halved(features, outcome):
    value = 0.5 * outcome.reward + 0.1 * outcome.success + 0.2 * (outcome.calls > 2)
    return min(1.0, value + 0.01 * min(outcome.decision_stuck, 10))


@reward
def as_told(features, outcome):
    return outcome.told == 1 or (outcome.told == -1 and features.failures_in_row == 0)


@bias("redirect")
def when_stuck(features):
    return 0.5 * (features.stuck_iterations > 1)


@bias("continue")
def never(features):
    return -0.25


@bias("compress")
def when_full(features):
    return min(1.0, features.context_ratio)


BIASES = (when_stuck, never, when_full)


def of_users(rng: Random) -> dict:
    """Parameters of a policy: some of these functions, in any order."""
    return {
        "user_rules": rng.sample(RULES, rng.randrange(len(RULES) + 1)),
        "user_reward": rng.choice([None, halved, as_told]),
        "user_bias": rng.sample(BIASES, rng.randrange(len(BIASES) + 1)),
    }


# --- functions that fail where the context is full ------------------------------------------------
@rule(proposes="redirect")
def raises(features):
    if features.context_ratio > 0.9:
        raise ValueError("it is full")
    return features.round % 2 == 0


@rule(proposes="redirect")
def says_two(features):
    return 2 if features.context_ratio > 0.9 else 0


@rule(forces="terminate")
def divides(features):
    return 1.0 / (1.0 - features.context_ratio) > 1e9


@reward
def too_much(features, outcome):
    return 1.0 + (features.context_ratio > 0.9)


@reward
def no_number(features, outcome):
    return float("nan") if features.context_ratio > 0.9 else 0.5


@bias("redirect")
def too_little(features):
    return -2.0 if features.context_ratio > 0.9 else 0.0


FAILING = {
    "raises": {"user_rules": (raises,)},
    "says_two": {"user_rules": (every_third, says_two)},
    "divides": {"user_rules": (divides,)},
    "too_much": {"user_reward": too_much},
    "no_number": {"user_reward": no_number},
    "too_little": {"user_bias": (too_little,)},
}
