"""The rules, for the plain reference of the control loop."""

from types import SimpleNamespace

from reference_evidence import (
    LITTLE,
    NONE_HOLDS,
    NOT_JUDGED,
    NOTHING,
    compression_failed,
    tried_in_vain,
    waited,
)
from reference_policies import (
    COMPRESS,
    CONTINUE,
    FORCING,
    LOOP_RULES,
    PROPOSING,
    REDIRECT,
    RULES,
    TERMINATE,
)

# Redirects for these reasons alone never lead to an end.
MILD = ("compression_failed", "little_information", "idle")


def is_full(f, saturation):
    """Whether the context is known and filled so far."""
    return f["context_known"] and saturation is not None and f["context_ratio"] >= saturation


def compress_is_ready(f, policy):
    """Whether compress may be proposed."""
    in_vain = tried_in_vain(f["compress_tries"], policy)
    return waited(f["compress_wait"], policy) and not in_vain


def conditions(f, policy):
    """For each rule that looks at features alone: does its condition hold?"""
    rules, ready = policy["rules"], compress_is_ready(f, policy)
    stuck, trend, limit = f["stuck_iterations"], f["progress_trend"], f.get("round_limit")
    failures = f["failures_in_row"]
    full = {i: is_full(f, rule.get("saturation", 0.0)) for i, rule in rules.items()}
    long = {i: stuck >= rule.get("stuck", 0) for i, rule in rules.items()}
    wall, stagnation = rules["failure_wall"], rules["true_stagnation"]
    loop, slow = rules["output_loop"], rules["slow_progress"]
    falls = trend < wall["trend"]
    spared = stagnation["spare_from"] <= stuck < stagnation["spare_until"]
    sure = trend < stagnation["trend"] and f["trend_confidence"] > stagnation["confidence"]
    poor = f["result_quality"] < rules["bad_cycle"]["quality"]
    bad = poor and (trend < rules["bad_cycle"]["trend"] or long["bad_cycle"])
    slowly = slow["trend"] < trend < slow["trend_below"]
    slowly = slowly and f["progress_score"] <= slow["progress"]
    no_own = f["own_limit"] == 0
    waits = rules["transient_failure"]["on"] and f["transient_rounds"] and not f["idle_rounds"]
    critical = ready or COMPRESS not in rules["context_critical"]["mask"]
    exhausted = rules["context_exhausted"]["rounds"]
    failed = compression_failed(f["context_known"], f["context_ratio"], f, policy)
    return {
        "output_loop": f["output_repeats"] >= loop["repeats"]
        and (texts_count(f) or not loop["idle_only"]),
        "context_exhausted": f["exhausted_rounds"] >= exhausted,
        "round_limit": bool(limit) and f["round"] >= limit,
        "failure_wall": failures >= wall["failures"] and (falls or long["failure_wall"]),
        "true_stagnation": long["true_stagnation"] and not spared and sure and not f["plateau"],
        "bad_cycle": f["cycle"] != 0 and bad,
        "context_high": full["context_high"] and ready,
        "context_critical": full["context_critical"] and critical,
        "failure_chain": failures >= rules["failure_chain"]["failures"],
        "prolonged_stagnation": long["prolonged_stagnation"] and not f["plateau"] and no_own,
        "tool_cycle": f["cycle"] != 0,
        "tool_repetition": no_own
        and not waits
        and f["repetition_score"] > rules["tool_repetition"]["repetition"],
        "mild_stagnation": long["mild_stagnation"] and not f["making_progress"],
        "moderate_stagnation": long["moderate_stagnation"]
        and full["moderate_stagnation"]
        and ready,
        "slow_progress": long["slow_progress"] and slowly,
        "compression_failed": failed,
        **loop_conditions(f, rules),
    }


def texts_count(f):
    """Whether texts that come again tell of a loop in this round."""
    old = f["information"] in (NOTHING, LITTLE)
    return (old or f["idle_rounds"] > 0) and f["own_limit"] == 0


def loop_conditions(f, rules):
    """The same of the rules that look at what the rounds brought."""
    nothing, little = f["information"] == NOTHING, f["information"] in (NOTHING, LITTLE)
    none, transient = f["no_information"], f["transient_rounds"]
    call, result = rules["repeated_call"], rules["repeated_result"]
    failing, idle = rules["mostly_failing"], rules["idle"]
    return {
        "transient_failure": 1 <= transient < rules["transient_failure"]["patience"],
        "transient_persists": transient >= rules["transient_persists"]["rounds"],
        "repeated_round": repeated_round(f, rules["repeated_round"]),
        "repeated_call": (
            little and f["call_repeats"] >= call["calls"] and none >= call["rounds"]
        )
        or (nothing and f["call_repeats"] >= call["interleaved"]),
        "repeated_result": little
        and f["result_repeats"] >= result["results"]
        and none >= result["rounds"],
        "repeated_error": nothing and f["error_repeats"] >= rules["repeated_error"]["errors"],
        "no_information": nothing and none >= rules["no_information"]["rounds"],
        "little_information": little
        and f["little_information"] >= rules["little_information"]["rounds"],
        "mostly_failing": nothing
        and f["recent_failures"] >= failing["failures"]
        and none >= failing["rounds"],
        "repeated_text": texts_count(f)
        and f["text_repeats"] >= rules["repeated_text"]["texts"],
        "idle": f["idle_rounds"] >= idle["rounds"] or f["blank_rounds"] >= idle["blank"],
    }


def repeated_round(f, rule):
    """Whether a round was repeated more often than its tools may."""
    if f["own_limit"]:
        return f["own_limit"] != NONE_HOLDS and f["round_repeats"] >= f["own_limit"]
    repeats = rule["slight_repeats"] if f["slight"] else rule["repeats"]
    return f["information"] != NOT_JUDGED and f["round_repeats"] >= repeats


def loop_suspected(f, rule):
    """Whether there is a sign of a loop, though not yet enough of it."""
    nothing, little = f["information"] == NOTHING, f["information"] in (NOTHING, LITTLE)
    repeats = (
        f["round_repeats"] >= rule["rounds"]
        or f["error_repeats"] >= rule["errors"]
        or f["failures_in_row"] >= rule["failures"]
    )
    return (
        (little and f["no_information"] >= rule["no_information"])
        or (nothing and repeats)
        or (texts_count(f) and f["text_repeats"] >= rule["texts"])
        or f["idle_rounds"] >= rule["idle"]
        or f["blank_rounds"] >= rule["blank"]
    )


def progressing(f, rule, fired, proposed):
    """The condition of the rule for going on, which looks at what the others did."""
    smooth = rule["progress"] is not None and f["progress_score"] > rule["progress"]
    on_course = f["making_progress"] or (smooth and f["stuck_iterations"] == 0)
    return not proposed or (on_course and not fired & set(rule["unless"]))


def is_on(name, f, policy):
    """Whether a rule is switched on, and has its turn."""
    rule = policy["rules"][name]
    waits = rule.get("after_redirect") and f["unheeded_redirects"] < 1
    loops = policy["loop_detection"] or name not in LOOP_RULES
    return rule["on"] and loops and not waits


def actions_of(name, f, policy):
    """What a rule forces or proposes, now that it fired."""
    rule = policy["rules"][name]
    adds = is_full(f, rule.get("compress_from")) and compress_is_ready(f, policy)
    return {*rule["mask"], *([COMPRESS] if adds else [])}


def fired_of_users(features, policy):
    """Places of the user's rules that fire."""
    seen = SimpleNamespace(**features)
    return [k for k, rule in enumerate(policy["user_rules"]) if rule["function"](seen)]


def evaluate_rules(features, policy):
    """(sorted candidate codes, bit mask of the rules that fired)."""
    own = [(k, policy["user_rules"][k]) for k in fired_of_users(features, policy)]
    rules = policy["rules"]
    holds = conditions(features, policy)
    fired = {i for i in holds if holds[i] and is_on(i, features, policy)}
    proposals = {i: actions_of(i, features, policy) for i in fired.intersection(PROPOSING)}
    proposals |= {k: set(rule["mask"]) for k, rule in own if not rule["forces"]}
    turns = any(actions & {REDIRECT, TERMINATE} for actions in proposals.values())
    suspected = loop_suspected(features, rules["loop_suspected"]) and not turns
    if suspected and is_on("loop_suspected", features, policy):
        fired.add("loop_suspected")
        proposals["loop_suspected"] = set(rules["loop_suspected"]["mask"])
    proposed = set().union(*proposals.values())
    alone = [i for i in proposals if i in rules and rules[i]["alone"]]
    standing = {i: proposals[i] for i in alone or proposals}
    left = set().union(*(actions for i, actions in standing.items() if i not in MILD))
    ignored = features["unheeded_redirects"] >= rules["redirects_ignored"]["redirects"]
    if REDIRECT in left and ignored and is_on("redirects_ignored", features, policy):
        fired.add("redirects_ignored")
    if is_on("progressing", features, policy) and progressing(
        features, rules["progressing"], fired, proposed
    ):
        fired.add("progressing")
        proposed |= set(rules["progressing"]["mask"])
    if alone:
        proposed = set().union(*standing.values())
    forced = [rule["mask"] for _, rule in own if rule["forces"]]
    forced += [rules[i]["mask"] for i in FORCING if i in fired]
    candidates = set(forced[0]) if forced else proposed or {CONTINUE}
    return sorted(candidates), sum(1 << RULES.index(i) for i in fired)


def counts_as_redirect(fired, policy, own=()):
    """Whether a redirect of these rules counts as one that can be ignored."""
    if any(REDIRECT in policy["user_rules"][k]["mask"] for k in own):
        return True
    names = [name for bit, name in enumerate(RULES) if fired >> bit & 1]
    return any(REDIRECT in policy["rules"][i]["mask"] for i in names if i not in MILD)


def advice_of(action, fired, policy, own=()):
    """The advice of a decision: its action and the lowest rule that gives it.

    Rules of the user's that force come first, then those alone, and last the user's others.
    """
    if action == CONTINUE:
        return None
    mine = [(k, policy["user_rules"][k]) for k in own]
    mine = [(k, rule["forces"]) for k, rule in mine if action in rule["mask"]]
    forcing = [k for k, forces in mine if forces]
    if forcing:
        return action, forcing[0]
    names = [name for bit, name in enumerate(RULES) if fired >> bit & 1]
    giving = [i for i in names if action in policy["rules"][i]["mask"]]
    alone = [i for i in giving if policy["rules"][i].get("alone")]
    return action, next(iter(alone or giving or [k for k, _ in mine]), None)
