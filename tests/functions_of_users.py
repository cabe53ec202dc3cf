"""Functions of users for the tests, in a module, so that import paths lead to them."""

from numba import njit

from cellium_fast import bias, reward, rule

LIMIT = 3


@njit
def doubled(number):
    return 2 * number


@rule(proposes="redirect")
def stuck_long(features):
    """Nothing has changed [for long].

    Not for prompts.
    """
    return features.stuck_iterations > LIMIT


@rule(forces="terminate", name="hopeless", reason="nothing helps")
def given_up(features):
    return features.unheeded_redirects >= doubled(1) and not features.making_progress


@rule(
    proposes=("compress", "redirect"),
)
def half_full(features):
    return features.context_ratio > 0.5


@reward
def thrifty(features, outcome):
    return outcome.reward * (1.0 - 0.5 * features.context_saturation)


@reward(name="told")
def as_told(features, outcome):
    return outcome.success


@bias("redirect")
def when_stuck(features):
    return min(0.2, 0.04 * features.stuck_iterations)


@bias("continue", name="steady")
def going_on(features):
    return features.progress_trend / 2


class Inside:
    @rule(proposes="retry")
    def of_a_class(features):
        return features.recent_failures > 2


not_decorated = len
