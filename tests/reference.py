"""The control semantics in plain Python, one session and one round at a time.

Written from the semantics page alone and sharing no code with the package, so that the two can be
compared. Sections follow the page. Everything is a dict or a list; floats are double precision;
Beta draws are an input, since the generator is not what is compared here.
"""

import math
import struct
from types import SimpleNamespace

from reference_evidence import (
    climb,
    evidence_features,
    is_transient,
    no_evidence,
    no_ladder,
    note_decision,
    opening_evidence,
    round_cycle,
    take_advice,
    take_evidence,
    take_size,
)
from reference_policies import (
    ACTIONS,
    COMPRESS,
    CONTINUE,
    FORCING,
    POLICIES,
    PROPOSING,
    REDIRECT,
    RETRY,
    RULES,
    TERMINATE,
    policy,
)
from reference_rules import advice_of, counts_as_redirect, evaluate_rules, fired_of_users
from reference_window import (
    WINDOW,
    call_cycle,
    clip,
    failed_calls_in_row,
    growth,
    output_repeats,
    productive_flags,
    progress,
    quality_of,
    repetition_score,
    run_length,
    stuck_iterations,
    trend_confidence,
)

__all__ = ["FORCING", "POLICIES", "PROPOSING", "RULES", "policy"]

UNIT = 2**32  # a pool's increments are integers of this resolution: their sum has no order

# --- From a round to packed records --------------------------------------------------------------
def is_told(value):
    """Whether a caller gave this optional number."""
    return value is not None and not math.isnan(value)


def unit_value(value):
    """A caller's number in [0, 1], or None if not given, at the precision it is read with."""
    if not is_told(value):
        return None
    single = struct.unpack("f", struct.pack("f", clip(value)))[0]
    return round(single * 1e7) / 1e7


# --- Features ------------------------------------------------------------------------------------
def context(session):
    """(raw ratio, known) of the session's context."""
    tokens, limit = session["context_tokens"], session["context_limit"]
    if tokens is None or limit is None or limit <= 0:
        return 0.0, False
    return tokens / limit, True


def opening_features(round_limit=None):
    """The features of decision 0."""
    # fmt: off
    return {
        "progress_score": 0.0, "stuck_iterations": 0, "progress_trend": 0.0,
        "progress_trend_raw": 0.0, "trend_confidence": 0.0, "context_saturation": 0.0,
        "context_ratio": 0.0, "context_known": False, "repetition_score": 0.0, "error_rate": 0.0,
        "empty_rate": 0.0, "result_quality": 0.0, "cycle": 0, "output_repeats": 0,
        "plateau": False, "making_progress": False, "run_length": 0, "failures_in_row": 0,
        "round": 0, "round_limit": round_limit, **opening_evidence(),
    }
    # fmt: on


def extract_features(session, given_progress=None):
    """Advances trend, history and stuck by one round and returns the features."""
    policy, calls, n = session["policy"], session["window"], session["calls"]
    productive = productive_flags(calls, policy)
    score = progress(calls, productive, policy) if given_progress is None else given_progress
    raw = score - session["history"][-1]
    session["history"] = (session["history"] + [score])[-10:]
    a = policy["ema_alpha"]
    session["trend"] = trend = a * raw + (1 - a) * session["trend"]
    before = 0 if session["decision"]["action"] == REDIRECT else session["stuck"]
    session["stuck"] = stuck = stuck_iterations(before, raw, calls, productive, policy)

    f = opening_features(session["round_limit"])
    f.update(evidence_features(session))
    f["round"] = session["round"]
    f["progress_score"], f["stuck_iterations"] = score, stuck
    f["progress_trend"], f["progress_trend_raw"] = trend, raw
    f["trend_confidence"] = confidence = trend_confidence(session["history"])
    f["context_ratio"], f["context_known"] = context(session)
    f["context_saturation"] = min(f["context_ratio"], 1.0)
    f["run_length"] = run_length(calls[-10:], policy)
    f["repetition_score"] = repetition_score(calls[-10:], policy)
    by_round = policy["count_cycles"] == "rounds"
    f["cycle"] = round_cycle(session["evidence"]) if by_round else call_cycle(calls, policy)
    f["output_repeats"] = output_repeats(session["outputs"])
    by_round = policy["failures_in_row"] == "rounds"
    passed = 0 if session["only_transient"] else session["failed_rounds"]
    f["failures_in_row"] = passed if by_round else failed_calls_in_row(calls)
    if n:
        f["error_rate"] = error_rate = session["errors"] / n
        f["empty_rate"] = empty_rate = session["empties"] / n
        f["result_quality"] = quality_of(error_rate, empty_rate, growth(calls))
    level = abs(trend) < 0.03 and abs(raw) < 0.05 and confidence < 0.6
    good = f["result_quality"] >= 0.55 and f["error_rate"] < 0.5
    f["plateau"] = level and good and 0 < stuck < 5
    f["making_progress"] = trend > 0.03 or score >= 0.7 or f["plateau"]
    return f


# --- Bandit --------------------------------------------------------------------------------------

TIE_ORDER = (CONTINUE, RETRY, COMPRESS, REDIRECT, TERMINATE)


def bias(features, policy, updates):
    """The bias of each action, a list by code; `updates` counts each arm's updates."""
    f, b = features, policy["bias"]
    stuck, repetition = f["stuck_iterations"], f["repetition_score"]
    full = f["context_known"] and f["context_ratio"] > 0.6
    slow = 0 < f["progress_trend"] < 0.3
    repeats, halfway = repetition * (repetition > 0.7), f["progress_score"] > 0.5
    terms = {
        CONTINUE: (b["continue_progress"] * halfway, b["continue_unstuck"] * (stuck == 0)),
        RETRY: (b["retry_stuck"] * (1 <= stuck < 5), b["retry_trend"] * slow),
        REDIRECT: (b["redirect_repetition"] * repeats, b["redirect_stuck"] * (stuck >= 5)),
        COMPRESS: (b["compress_saturation"] * full, b["compress_stuck"] * (stuck >= 2)),
        TERMINATE: (0.0,),
    }
    cold = [b["cold_factor"] if updates[arm] < b["cold_updates"] else 1.0 for arm in ACTIONS]
    return [max(terms[arm]) * cold[arm] for arm in ACTIONS]


def break_tie(features, candidates, policy, posterior, draws):
    """(action, draws, biases, scores), the last three as dicts by arm, empty if nothing is read."""
    if len(candidates) == 1 or policy["tie_break"] == "first":
        return candidates[0], {}, {}, {}
    if policy["tie_break"] == "greedy":
        alpha, beta = posterior["alpha"], posterior["beta"]
        thetas = {arm: alpha[arm] / (alpha[arm] + beta[arm]) for arm in candidates}
    else:
        thetas = {arm: draws(arm) if callable(draws) else draws[arm] for arm in candidates}
    values = bias(features, policy, posterior["updates"])
    biases = {arm: values[arm] for arm in candidates}
    own = policy["user_bias"]
    biases.update({
        arm: own[arm](SimpleNamespace(**features)) for arm in candidates if arm in own
    })
    scores = {arm: thetas[arm] + biases[arm] for arm in candidates}
    action = max(candidates, key=lambda arm: (scores[arm], -TIE_ORDER.index(arm)))
    return action, thetas, biases, scores


# --- Feedback ------------------------------------------------------------------------------------
def reward(success, round, round_limit, context_ratio, stuck, policy):
    """The reward of one round; `stuck` is what the rewarded decision saw."""
    p = policy["reward"]
    if not success:
        return clip(p["failure"] * (1 - min(stuck / p["failure_stuck"], 1.0)))
    time = p["round_cost"] * round / round_limit if round_limit else 0.0
    over = max(0.0, (context_ratio - p["context_free"]) / (1 - p["context_free"]))
    return clip(1.0 - time - p["context_cost"] * over)


def round_reward(session, round):
    """The reward of the round just taken in, as the outcome of the decision before it."""
    given = unit_value(round.get("reward"))
    if given is not None:
        return given
    success, calls = round.get("success"), round.get("calls") or []
    if success is None:
        success = not calls or not calls[-1].get("error")
    stuck, ratio = session["decision"]["features"]["stuck_iterations"], context(session)[0]
    limit = session["round_limit"]
    return reward(success, session["round"], limit, ratio, stuck, session["policy"])


# --- Learning ------------------------------------------------------------------------------------
def new_posterior(prior=(2.0, 2.0), private=False, decay=None):
    """A Beta posterior per action; a decay left open is that of the first policy it serves."""
    own = {"alpha": [prior[0]] * 5, "beta": [prior[1]] * 5, "updates": [0] * 5, "closed": 0}
    return {**own, "prior": prior, "private": private, "decay": decay, "pending": no_increments()}


def no_increments():
    """A pool's increments when a call begins."""
    return {"alpha": [0] * 5, "beta": [0] * 5, "updates": [0] * 5}


def decay(value, factor, target):
    """One decay of a parameter towards its target."""
    return target + factor * (value - target)


def decay_posterior(posterior):
    """One decay of every parameter of every arm."""
    p = posterior["decay"]
    for side, prior in zip(("alpha", "beta"), posterior["prior"], strict=True):
        target = prior if p["target"] == "prior" else p["target"]
        posterior[side] = [decay(value, p["factor"], target) for value in posterior[side]]


def nstep_return(rewards, n, gamma):
    """The weighted mean of the first n rewards that exist; None if there is none."""
    weights = [gamma**k for k in range(min(n, len(rewards)))]
    total = sum(w * r for w, r in zip(weights, rewards, strict=False))
    return total / sum(weights) if weights else None


def credit(session, decision, g):
    """Credits one return to a decision: a pool collects it, a private posterior learns at once."""
    posterior, arm = session["posterior"], decision["action"]
    if not decision["tiebreak"] and session["policy"]["learn_from"] != "all":
        return
    one_side, raises = session["policy"]["update"] == "one_side", g > 0.5 + 1e-8
    up = 0.0 if one_side and not raises else g
    down = 0.0 if one_side and raises else 1 - g
    into = posterior
    if not posterior["private"]:
        into, up, down = posterior["pending"], round(up * UNIT), round(down * UNIT)
    into["alpha"][arm] += up
    into["beta"][arm] += down
    into["updates"][arm] += 1
    if posterior["private"] and sum(into["updates"]) % posterior["decay"]["every"] == 0:
        decay_posterior(posterior)


def learn_from_reward(session, r):
    """Takes in one reward: the first of the newest decision, a later one of those before it."""
    p, n = session["policy"], session["policy"]["n_step"]
    if p["credit"] == "newest":
        session["rewards"] = rewards = (session["rewards"] + [r])[-n:]
        credit(session, session["decision"], sum(rewards) / len(rewards))
        return
    for decision, rewards in session["returns"]:
        rewards.append(r)
        if len(rewards) == n:
            credit(session, decision, nstep_return(rewards, n, p["gamma"]))
    session["returns"] = [entry for entry in session["returns"] if len(entry[1]) < n]


def await_rewards(session, decision):
    """Makes this the newest decision, with all its rewards still to come."""
    session["decision"] = decision
    if session["policy"]["credit"] == "n_step":
        session["returns"].append((decision, []))


def end_call(posterior):
    """Applies what a pool's sessions collected during one call."""
    pending, posterior["pending"] = posterior["pending"], no_increments()
    for arm in ACTIONS:
        posterior["alpha"][arm] += pending["alpha"][arm] / UNIT
        posterior["beta"][arm] += pending["beta"][arm] / UNIT
        posterior["updates"][arm] += pending["updates"][arm]


def settle(session, success):
    """Learns from what is still pending when a session closes."""
    p, outcome = session["policy"], [] if success is None else [float(bool(success))]
    if p["credit"] == "newest":
        for r in outcome:
            learn_from_reward(session, r)
        return
    for decision, rewards in session["returns"]:
        g = nstep_return(rewards + outcome, p["n_step"], p["gamma"])
        if g is not None:
            credit(session, decision, g)


def close_all(sessions, successes=None):
    """Closes sessions in one call; each pool learns, then decays per 50 closed sessions."""
    pools = {}
    for session, success in zip(sessions, successes or [None] * len(sessions), strict=True):
        if session["closed"]:
            raise ValueError("the session is closed already")
        session["closed"] = True
        settle(session, success)
        if not session["posterior"]["private"]:
            pools.setdefault(id(session["posterior"]), []).append(session)
    for closing in pools.values():
        pool = closing[0]["posterior"]
        end_call(pool)
        before, every = pool["closed"], pool["decay"]["every"]
        pool["closed"] += len(closing)
        for _ in range(pool["closed"] // every - before // every):
            decay_posterior(pool)


def close(session, success=None):
    """Closes one session, which is a call of its own."""
    close_all([session], [success])


# --- Sessions and steps --------------------------------------------------------------------------
def open_session(policy, context_limit=None, round_limit=None, posterior=None):
    """A session after its decision 0; without a posterior it gets a private one."""
    posterior = posterior or new_posterior(policy["prior"], private=True)
    posterior["decay"] = posterior["decay"] or policy["decay"]
    session = {"policy": policy, "posterior": posterior, "round_limit": round_limit}
    session.update(round=0, calls=0, errors=0, empties=0, rewards=[], returns=[], closed=False)
    session.update(context_tokens=None, context_limit=None)
    tell_context(session, None, context_limit)
    session["ladder"] = no_ladder()
    forget(session)
    first = {"action": CONTINUE, "candidates": [CONTINUE], "rules": 0, "tiebreak": False}
    first.update(reward=None, features=opening_features(round_limit), draws={}, bias={}, scores={})
    first.update(advice_age=0, user_rules=[])
    await_rewards(session, first)
    return session


def forget(session):
    """What a user message clears, which is also how a session opens."""
    session.update(window=[], outputs=[], history=[0.0], trend=0.0, stuck=0)
    session.update(failed_rounds=0, only_transient=False, done=False)
    session.update(evidence=no_evidence(), advice=None, advice_age=0)


def tell_context(session, tokens, limit):
    """Takes in the context values told; one not told stays as it was."""
    if is_told(limit) and limit >= 0:
        session["context_limit"] = limit
    if is_told(tokens) and (tokens > 0 or (tokens == 0 and not unknown_zero(session))):
        session["context_tokens"] = tokens
        take_size(session, tokens)


def unknown_zero(session):
    """Whether a size of 0 is a size not told."""
    return session["policy"]["zero_tokens_unknown"]


def take_round(session, round):
    """Takes a round's calls, text and context into the session."""
    if round.get("event", 0) == 1:
        forget(session)
    session["round"] += 1
    calls = round.get("calls") or []
    take_evidence(session, round)
    session["window"] = (session["window"] + calls)[-WINDOW:]
    session["calls"] += len(calls)
    session["errors"] += sum(bool(call.get("error")) for call in calls)
    session["empties"] += sum(bool(call.get("empty")) for call in calls)
    count_failed_rounds(session, calls)
    if round.get("text"):
        session["outputs"] = (session["outputs"] + [round["text"]])[-10:]
    tell_context(session, round.get("context_tokens"), round.get("context_limit"))
    climb(session, *context(session))


def count_failed_rounds(session, calls):
    """Rounds in a row that failed, those passed over that failed by what may pass."""
    failed = [bool(call.get("error")) for call in calls]
    session["only_transient"] = bool(calls) and all(map(is_transient, calls))
    if calls and not session["only_transient"]:
        session["failed_rounds"] = min(session["failed_rounds"] + 1, 10) if all(failed) else 0


def outcome_of(round, r, stuck):
    """What a user's reward is told of a round."""
    calls, told = round.get("calls") or [], round.get("success")
    succeeded = not calls or not calls[-1].get("error") if told is None else told
    return SimpleNamespace(
        reward=r, success=int(succeeded), told=-1 if told is None else int(told),
        calls=len(calls), decision_stuck=stuck,
    )


def step(session, round, draws=None):
    """One round in, one decision out."""
    if session["closed"]:
        raise ValueError("the session is closed")
    take_round(session, round)
    r = round_reward(session, round)
    stuck = session["decision"]["features"]["stuck_iterations"]
    f = extract_features(session, unit_value(round.get("progress")))
    p = session["policy"]
    if p["user_reward"] and unit_value(round.get("reward")) is None:
        r = p["user_reward"](SimpleNamespace(**f), outcome_of(round, r, stuck))
    learn_from_reward(session, r)
    candidates, fired = evaluate_rules(f, p)
    action, thetas, biases, scores = break_tie(f, candidates, p, session["posterior"], draws)
    decision = {"action": action, "candidates": candidates, "rules": fired, "reward": r}
    decision.update(tiebreak=len(candidates) > 1, features=f, draws=thetas)
    decision.update(bias=biases, scores=scores)
    decision["user_rules"] = own = fired_of_users(f, p)
    decision["advice_age"] = take_advice(session, advice_of(action, fired, p, own))
    note_decision(session, action, counts_as_redirect(fired, p, own))
    session["done"] = session["done"] or action == TERMINATE
    await_rewards(session, decision)
    return decision
