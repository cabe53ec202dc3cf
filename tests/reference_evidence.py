"""What a round brought, and the ladder, for the plain reference of the control loop.

Everything is compared exactly here: a call is told by its values, a round by the calls it holds.
"""

from reference_policies import COMPRESS, REDIRECT
from reference_window import WINDOW, signature

NOT_JUDGED, NOTHING, LITTLE, ACKNOWLEDGEMENT, NEWS = range(5)
MOST, NONE_HOLDS, NEVER = 255, 255, 255
COUNTS = (
    "no_information", "little_information", "round_repeats", "error_repeats", "transient_rounds",
    "text_repeats", "idle_rounds", "blank_rounds", "unheeded_redirects",
)  # fmt: skip


def no_evidence():
    """What is known of the rounds before the first one, or before one a user message opens."""
    return {"rounds": [], "last_error": None, "last_text": None, "heeding": False,
            **dict.fromkeys(COUNTS, 0)}


def no_ladder():
    """What a session opens with and a user message leaves."""
    return {
        "exhausted_rounds": 0, "compress_wait": NEVER, "compress_tries": 0,
        "tokens_at_compress": None,
    }  # fmt: skip


def up(count, by=1):
    """A counter one further; it stops at its ends."""
    return min(max(count + by, 0), MOST)


# --- One call ------------------------------------------------------------------------------------
def is_transient(call):
    """Whether the call failed by what may pass."""
    return bool(call.get("error") and call.get("transient"))


def is_slight(call, policy):
    """Whether the result says too little to be the same result by more than chance."""
    if call.get("error") or call.get("size") is None:
        return False
    return call["size"] <= policy["slight_result"]


def own_limit_of(call, policy):
    """The limit of the call's tool, or None."""
    return policy["tool_limits"].get(call["tool"])


def result_of(call):
    """What the call gave back."""
    return call.get("result", 0)


def exact(call, policy):
    """The call with its result."""
    return signature(call, policy), result_of(call)


def information(call, before, policy):
    """What a call brought, next to those before it in the window."""
    found = by_list(call, before, policy)
    limited = own_limit_of(call, policy) is not None
    return NOT_JUDGED if limited and found != NEWS else found


def by_list(call, before, policy):
    """The first line of the page's list that fits."""
    repeated = LITTLE if is_slight(call, policy) else NOTHING
    if is_transient(call):
        return NOT_JUDGED
    if call.get("error"):
        return NOTHING
    if exact(call, policy) in [exact(one, policy) for one in before]:
        return repeated
    if call.get("empty"):
        return ACKNOWLEDGEMENT if call.get("acknowledged") else LITTLE
    if "result" not in call or result_of(call) not in [result_of(one) for one in before]:
        return NEWS
    return ACKNOWLEDGEMENT if call.get("acknowledged") else repeated


def with_those_before(window, calls):
    """The calls of a round that are judged, each with those before it in the window."""
    everything = window + calls
    for place in range(len(window), len(everything)):
        yield everything[place], everything[max(place - WINDOW + 1, 0) : place]


# --- One round -----------------------------------------------------------------------------------
def round_information(session, calls):
    """The features of the round alone, from the window before it and its calls."""
    policy, judged = session["policy"], list(with_those_before(session["window"], calls))
    brought = [information(call, before, policy) for call, before in judged]
    limits = [own_limit_of(call, policy) for call in calls]
    alike, same_result, new_call = [0], [0], False
    for (call, before), one in zip(judged, brought, strict=True):
        seen = [*before, call]
        alike.append(sum(exact(call, policy) == exact(other, policy) for other in seen))
        if one == NOTHING and not call.get("error"):
            same_result.append(sum(result_of(call) == result_of(other) for other in seen))
        just_made = [signature(other, policy) for other in before[-3:]]
        new_call |= one >= ACKNOWLEDGEMENT and signature(call, policy) not in just_made
    return {
        "information": max(brought, default=NOT_JUDGED),
        "slight": bool(calls) and all(is_slight(call, policy) for call in calls),
        "own_limit": min(limits) if calls and None not in limits else 0,
        "call_repeats": max(alike),
        "result_repeats": max(same_result),
        "new_call": new_call,
        "made": bool(calls),
    }


def comes_again(parts, rounds):
    """Whether a round equals the last one, or with the last one those some rounds before them."""
    pairs = [rounds[-p - 1 : len(rounds) - p + 1] for p in range(2, 7)]
    return rounds[-1:] == [parts] or [*rounds[-1:], parts] in pairs


def take_evidence(session, given):
    """Takes a round into the evidence, before its calls enter the window."""
    known, made = session["evidence"], given.get("calls") or []
    calls = made[-WINDOW:]
    known["now"] = now = round_information(session, calls)
    parts = sorted(exact(call, session["policy"]) for call in made)
    seen_again = len(made) > 1 and comes_again(parts, known["rounds"])
    if seen_again and now["information"] >= ACKNOWLEDGEMENT:
        now["information"] = LITTLE if now["slight"] else NOTHING
        now["new_call"] = False
    if calls:
        count_information(known, now["information"])
        count_failures(known, made, now, session["policy"])
        same = known["rounds"][-1:] == [parts]
        known["round_repeats"] = up(known["round_repeats"]) if same else 1
        known["rounds"] = (known["rounds"] + [parts])[-12:]
        if all(map(is_transient, made)):
            known.update(rounds=[], round_repeats=0)
    count_texts(known, given, now["information"], session["policy"])
    blank = not calls and not given.get("text")
    known["idle_rounds"] = 0 if calls else up(known["idle_rounds"])
    known["blank_rounds"] = up(known["blank_rounds"]) if blank else 0


def count_information(known, brought):
    """Rounds in a row that brought nothing, and that brought nothing or little."""
    for name, empty in (("no_information", {NOTHING}), ("little_information", {NOTHING, LITTLE})):
        if brought == NEWS:
            known[name] = 0
        elif brought == ACKNOWLEDGEMENT:
            known[name] = up(known[name], -1)
        elif brought in empty:
            known[name] = up(known[name])


def count_failures(known, calls, now, policy):
    """Rounds in a row that failed transiently, or by the same error."""
    transient = all(map(is_transient, calls))
    known["transient_rounds"] = up(known["transient_rounds"]) if transient else 0
    if transient or now["own_limit"]:
        return
    if not all(call.get("error") for call in calls):
        known["error_repeats"] = 0
        return
    newest = calls[-1]
    says = newest.get("size") is None or newest["size"] > policy["slight_error"]
    same = known["last_error"] == result_of(newest) and says
    known["error_repeats"] = up(known["error_repeats"]) if same else 1
    known["last_error"] = result_of(newest)


def nearly_same(left, right, places):
    """Whether two sketches of 16 hexadecimal digits agree in so many places."""
    digits = zip(f"{left:016x}", f"{right:016x}", strict=True)
    return sum(one == other for one, other in digits) >= places


def count_texts(known, given, brought, policy):
    """Texts in a row that are nearly the one before; for want of sketches, hashes stand in."""
    text, places = given.get("sketch"), policy["near_duplicate"]
    if text is None:
        text = given.get("text")
    if text:
        before = known["last_text"]
        near = before is not None and nearly_same(before, text, places)
        known["text_repeats"] = up(known["text_repeats"]) if near else 0
        known["last_text"] = text
    if brought == NEWS:
        known["text_repeats"] = 0


def round_cycle(known):
    """The length of the cycle the newest rounds run through: 2 to 6, or 0."""
    rounds = known["rounds"]
    if known["now"]["information"] not in (NOTHING, LITTLE):
        return 0
    for p in range(2, 7):
        newest = rounds[-6:] if p == 2 else rounds[-2 * p :]
        turns = len(newest) == max(2 * p, 6) and newest[p:] == newest[:-p]
        if turns and any(one != newest[-1] for one in newest[-p:]):
            return p
    return 0


# --- The ladder ----------------------------------------------------------------------------------
def waited(wait, policy):
    """Whether the last compress is so long ago that the next one may be proposed."""
    return wait >= policy["compress_cooldown"]


def tried_in_vain(tries, policy):
    """Whether compress was tried without help as often as it may be."""
    return policy["compress_tries"] is not None and tries >= policy["compress_tries"]


def compression_failed(known, ratio, ladder, policy):
    """Whether the context is critical, and it is for the tries in vain that none is ready."""
    critical = known and ratio >= policy["rules"]["context_critical"]["saturation"]
    in_vain = tried_in_vain(ladder["compress_tries"], policy)
    return critical and in_vain and waited(ladder["compress_wait"], policy)


def take_size(session, tokens):
    """A context size was told: did the last compress help?"""
    at_decision = session["ladder"]["tokens_at_compress"]
    if at_decision is not None and tokens < 0.9 * at_decision:
        session["ladder"]["compress_tries"] = 0


def climb(session, ratio, known):
    """Counts what a round does to the ladder; its calls are in the window, its context is told."""
    evidence, ladder, policy = session["evidence"], session["ladder"], session["policy"]
    ladder["compress_wait"] = up(ladder["compress_wait"])
    exhausted = known and ratio >= policy["rules"]["context_exhausted"]["saturation"]
    ladder["exhausted_rounds"] = up(ladder["exhausted_rounds"]) if exhausted else 0
    if evidence["now"]["made"]:
        if evidence["now"]["new_call"] and evidence["heeding"]:
            evidence["unheeded_redirects"] = 0
        evidence["heeding"] = evidence["now"]["new_call"]


def recent_failures(session):
    """Errors in the window."""
    return sum(bool(call.get("error")) for call in session["window"])


def note_decision(session, action, strong):
    """What a decision leaves on the ladder for the rounds after it."""
    evidence, ladder = session["evidence"], session["ladder"]
    if action == REDIRECT and strong:
        evidence["unheeded_redirects"] = up(evidence["unheeded_redirects"])
    if action == COMPRESS:
        ladder["compress_wait"] = 0
        ladder["compress_tries"] = up(ladder["compress_tries"])
        ladder["tokens_at_compress"] = session["context_tokens"]


def evidence_features(session):
    """The features of "What a round brought" and "The ladder"."""
    known, ladder = session["evidence"], session["ladder"]
    found = {name: known["now"][name] for name in known["now"] if name not in ("new_call", "made")}
    found.update((name, known[name]) for name in COUNTS)
    found["recent_failures"] = recent_failures(session)
    found.update((name, ladder[name]) for name in LADDER)
    return found


LADDER = ("exhausted_rounds", "compress_wait", "compress_tries")


def opening_evidence():
    """The same of decision 0."""
    names = ("information", "own_limit", "call_repeats", "result_repeats", "recent_failures")
    zeros = dict.fromkeys((*COUNTS, *names, "exhausted_rounds", "compress_tries"), 0)
    return {**zeros, "slight": False, "compress_wait": NEVER}


# --- Advice --------------------------------------------------------------------------------------
def take_advice(session, advice):
    """For how many decisions this advice was given already; None is continue, which gives none.

    It is remembered over decisions that give none, for as long as it would not be given again.
    """
    interval = session["policy"]["repeat_interval"]
    age = session["advice_age"] + 1
    age = age - interval if age > MOST else age
    if advice is None:
        forgotten = age >= interval
        session["advice"] = None if forgotten else session["advice"]
        session["advice_age"] = 0 if forgotten else age
        return 0
    session["advice_age"] = age if session["advice"] == advice else 0
    session["advice"] = advice
    return session["advice_age"]
