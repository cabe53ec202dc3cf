"""Features of the window of the last calls, for the plain reference of the control loop."""

from itertools import groupby

WINDOW = 12

def clip(value, low=0.0, high=1.0):
    """The value moved into [low, high]."""
    return min(max(value, low), high)


def signature(call, policy):
    """What tells a call from others: with `see_through_volatile`, its shape."""
    own = call["signature"]
    return call.get("shape", own) if policy["see_through_volatile"] else own


def productive_flags(calls, policy):
    """For each call of the window: is it productive?"""
    flags, seen = [], set()
    for call in calls:
        key = (signature(call, policy), call.get("result", 0))
        stale = key in seen and call["tool"] not in policy["tool_limits"]
        wasted = policy["empty_is_unproductive"] and call.get("empty")
        wasted = wasted or (policy["stale_is_unproductive"] and stale)
        flags.append(not call.get("error") and not wasted)
        seen.add(key)
    return flags


# --- Features ------------------------------------------------------------------------------------
def identity(call, policy):
    """What must be equal for two calls to count as the same one."""
    return signature(call, policy), call.get("result", 0) if policy["compare_results"] else None


def run_length(calls, policy):
    """m: the longest run of equal calls, or by the policy the one that ends at the newest."""
    runs = [len(list(run)) for _, run in groupby(calls, lambda call: identity(call, policy))]
    return (runs[-1] if policy["run_at_newest"] else max(runs)) if runs else 0


def repetition_score(calls, policy):
    """Repetition in exactly these calls."""
    m = run_length(calls, policy)
    score = 0.0 if m < 3 else min((m - 2) / 4, 1.0)
    tools = {call["tool"] for call in calls}
    if policy["frequent_tools"] and len(tools) <= 2 and tools <= set(policy["frequent_tools"]):
        score *= policy["frequent_factor"]
    return score


def call_cycle(calls, policy):
    """The length of the cycle the newest calls run through: 2, 3 or 0."""
    keys = [identity(call, policy) for call in calls]
    if len(keys) >= 4 and keys[-4:-2] == keys[-2:] and keys[-2] != keys[-1]:
        return 2
    if len(keys) >= 6 and keys[-6:-3] == keys[-3:]:
        return 3
    return 0


def rate(calls, flag):
    """The share of the calls that carry the flag; 0 with no calls."""
    return sum(bool(call.get(flag)) for call in calls) / max(len(calls), 1)


def growth(calls):
    """How the result size grew over the last five of these calls, 0.5 = not at all."""
    sizes = [call.get("size") or 0 for call in calls[-5:]]
    if len(sizes) < 2:
        return 0.5
    return clip((sizes[-1] - sizes[0]) / max(sizes[0], 1), -1.0, 1.0) / 2 + 0.5


def quality_of(error_rate, empty_rate, growth_value):
    """The weighted sum behind every quality."""
    return 0.4 * (1 - error_rate) + 0.3 * (1 - empty_rate) + 0.3 * growth_value


def quality(calls, k):
    """quality(k)."""
    last = calls[-k:]
    return quality_of(rate(last, "error"), rate(last, "empty"), growth(last))


def progress(calls, productive, policy):
    """The progress score from the window's calls and their productive flags."""
    if not calls:
        return 0.0
    last, productive = calls[-4:], productive[-4:]
    u = len({call["tool"] for call in last}) / len(last)
    r = repetition_score(last, policy)
    return clip(
        0.3 * quality(last, 4)
        + 0.3 * sum(productive) / len(last)
        + 0.15 * (1 - rate(last, "empty"))
        + 0.15 * max(u - r / 2, 0.0)
        + 0.1 * productive[-1]
        - 0.1 * r
    )


def trend_confidence(history):
    """R squared of a line through the last ten entries of the progress history."""
    ys = history[-10:]
    n = len(ys)
    if n < 3:
        return 0.0
    x_mean, y_mean = (n - 1) / 2, sum(ys) / n
    sxx = sum((x - x_mean) ** 2 for x in range(n))
    syy = sum((y - y_mean) ** 2 for y in ys)
    sxy = sum((x - x_mean) * (y - y_mean) for x, y in enumerate(ys))
    return 0.0 if syy < 1e-12 else sxy * sxy / (sxx * syy)


def stuck_iterations(stuck, delta, calls, productive, policy):
    """The next value of the counter, from the change of progress and the last three calls."""
    last3, good3 = calls[-3:], productive[-3:]
    last = bool(good3) and good3[-1]
    q3 = quality(last3, 3)
    failures = leading([not good for good in reversed(good3)])
    same = len(last3) == 3 and len({signature(call, policy) for call in last3}) == 1
    worse = delta < -0.03 or failures >= 2 or (delta < 0.05 and not last and q3 < 0.6 and same)
    if last3 and worse:
        return stuck + 1
    if delta > 0.08 or (last and q3 >= 0.6):
        return 0
    if stuck > 0 and delta > 0:
        return stuck - 1
    return stuck


def leading(flags):
    """How many flags hold before the first that does not."""
    return flags.index(False) if False in flags else len(flags)


def output_repeats(outputs):
    """The run of identical outputs that ends at the newest of the last ten."""
    if len(outputs) < 2:
        return 0
    return leading([text == outputs[-1] for text in reversed(outputs[-10:])])


def failed_calls_in_row(calls):
    """Errors counted from the newest call back, within the last ten."""
    return leading([bool(call.get("error")) for call in reversed(calls[-10:])])
