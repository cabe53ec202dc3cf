"""Agents and policies at random, made so that every feature and every rule has its moment.

Ids come from small sets: records keep 16 bits of a result, which equal ones by chance would show.
"""

import numpy as np

from cellium_fast import Policy, RoundBatch

TOOLS = ["search", "read", "edit", "run", "ask"]
FIRST_FRESH, FRESH = 1000, 40  # results that come round again after more calls than a window holds
SKETCHES = (0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x13579BDF02468ACE)
MOODS = (
    "work", "mixed", "loop", "loop", "loop", "fail", "same_error", "transient", "same_result",
    "acknowledge", "slight", "empty", "babble", "idle", "blank", "burst", "shrink",
)  # fmt: skip


def call(signature=1, tool=0, result=0, error=False, empty=False, size=10, **others):
    """A tool call; `tool` is a place in TOOLS. Others: shape, transient, acknowledged."""
    return {
        "tool": tool, "signature": signature, "result": result, "error": error, "empty": empty,
        "size": size, **others,
    }  # fmt: skip


class Agent:
    """An agent whose mood changes now and then; without `sizes` or `sketches` it gives none."""

    def __init__(self, rng, sizes=True, sketches=True):
        self.rng, self.sizes, self.sketches = rng, sizes, sketches
        self.count, self.fresh, self.tokens = 0, 0, rng.randrange(5_000)
        self.change_mood()

    def change_mood(self):
        """Another mood, and what it holds on to."""
        rng = self.rng
        self.mood = rng.choice(MOODS)
        self.sketch, self.result = rng.choice(SKETCHES), rng.randrange(20, 24)
        self.size = rng.choice([5, 12, 13, 20, 32, 33, 200])
        self.plan = []
        for place in range(rng.randrange(1, 7)):
            own = self.mixed(signature=100 + place) if rng.random() < 0.4 else self.plain(place)
            self.plan.append([own] * rng.choice([1, 1, 2]) + [self.plain(place)] * (place % 2))

    def round(self):
        """Its next round, as a description."""
        rng = self.rng
        if rng.random() < (0.05 if self.mood == "loop" else 0.1):  # six rounds long, twice
            self.change_mood()
        self.count += 1
        given = {"calls": self.calls()}
        self.say(given)
        self.tell_context(given)
        if rng.random() < 0.03:
            given["event"] = rng.choice([1, 2])
        if rng.random() < 0.08:
            given["progress"] = rng.randrange(17) / 16
        if rng.random() < 0.1:
            given["reward"] = rng.randrange(9) / 8
        if rng.random() < 0.1:
            given["success"] = rng.random() < 0.5
        return given

    def tell_context(self, given):
        """How full the context is: mostly fuller, at times fallen, stale, zero or not told."""
        rng = self.rng
        self.tokens += rng.randrange(1_500)
        if rng.random() < 0.08:
            self.tokens = int(self.tokens * rng.choice([0.4, 0.5, 0.89, 0.9, 0.95]))
        if rng.random() < 0.9:
            given["context_tokens"] = self.tokens if rng.random() < 0.96 else 0
        if rng.random() < 0.03:
            given["context_limit"] = rng.choice([0, 8_000, 20_000, 30_000, 30_000, 100_000])

    def say(self, given):
        """Its text, if any: one of a few, or in some moods nearly the one before."""
        rng, babbles = self.rng, self.mood in ("babble", "loop", "idle")
        if self.mood == "blank" or not (self.mood == "babble" or rng.random() < 0.6):
            return
        given["text"] = 1 if babbles and rng.random() < 0.8 else rng.randrange(1, 6)
        if self.sketches:
            sketch = self.sketch if babbles else rng.choice(SKETCHES)
            for place in rng.sample(range(16), rng.choice([0, 0, 1, 2, 3, 5])):
                sketch ^= rng.randrange(1, 16) << 4 * place
            given["sketch"] = sketch if rng.random() < 0.9 else 0

    def calls(self):
        """The calls of its next round."""
        rng, mood = self.rng, self.mood
        if mood in ("idle", "blank") or (mood != "loop" and rng.random() < 0.1):
            return []
        if mood == "loop":
            calls = list(self.plan[self.count % len(self.plan)])
            rng.shuffle(calls)
        else:
            length = rng.randrange(21) if mood == "burst" else rng.choice([1, 1, 1, 2, 3])
            calls = [self.call() for _ in range(length)]
        return [{**one, "size": one["size"] if self.sizes else None} for one in calls]

    def call(self):
        """Its next call."""
        rng, mood = self.rng, self.mood
        other = rng.randrange(1, 9)
        if mood in ("fail", "same_error", "transient"):
            result = self.result if mood != "fail" else rng.randrange(20, 24)
            transient = mood == "transient" and rng.random() < 0.95
            failed = rng.random() < 0.97
            return self.make(other, result, error=failed, transient=transient and failed)
        if mood in ("same_result", "slight"):
            size = self.size if mood == "same_result" else rng.choice([0, 11, 12, 13])
            return self.make(other, self.result, size=size)
        if mood == "acknowledge":
            done = rng.random() < 0.9
            return self.make(other, rng.randrange(20, 23), acknowledged=done, size=20)
        if mood == "empty":
            return self.make(other, rng.randrange(2), empty=True, size=0)
        if mood == "shrink":
            size = max(400 - 30 * self.count % 400, 0)
            return self.make(100 + self.count % 2, 1, error=rng.random() < 0.9, size=size)
        if mood in ("work", "babble"):
            self.fresh = (self.fresh + 1) % FRESH
            return self.make(other, FIRST_FRESH + self.fresh, error=rng.random() < 0.05)
        return self.mixed()

    def make(self, signature, result, size=None, **flags):
        """A call that now and then has a shape in common with others, as ids in it would have."""
        shape = signature if self.rng.random() < 0.7 else 200 + signature // 4
        size = self.size if size is None else size
        return call(signature, signature % len(TOOLS), result, size=size, shape=shape, **flags)

    def mixed(self, signature=None):
        """Anything at all, and often what was there before."""
        rng = self.rng
        signature = signature or rng.randrange(1, 8)
        error = rng.random() < 0.2
        result = rng.randrange(1, 4) if rng.random() < 0.3 else 1
        flags = {
            "empty": not error and rng.random() < 0.15,
            "transient": error and rng.random() < 0.3,
            "acknowledged": not error and rng.random() < 0.1,
        }
        return self.make(signature, result, rng.randrange(300), error=error, **flags)

    def plain(self, place):
        """A call that works and always gives the same."""
        return call(110 + place, place % len(TOOLS), 30 + place, size=self.size)


def random_policy(rng, name, **overrides):
    """A preset with its thresholds, switches and actions moved."""
    any_action = [0, 1, 2, 3, 4]
    rules = {
        "output_loop": {"repeats": rng.randrange(2, 9), "idle_only": rng.random() < 0.5},
        "context_exhausted": {"saturation": rng.choice([0.9, 0.95, 1.2]),
                              "rounds": rng.randrange(1, 4)},
        "round_limit": {"enabled": rng.random() < 0.7, "actions": [rng.choice([2, 4])]},
        "failure_wall": {"failures": rng.randrange(3, 9), "trend": rng.choice([-0.3, -0.1]),
                         "stuck": rng.randrange(3, 11)},
        "true_stagnation": {"stuck": rng.randrange(1, 6), "trend": rng.choice([-0.05, -0.15]),
                            "confidence": rng.choice([0.05, 0.3]), "pause_from": 6,
                            "pause_to": 8, "enabled": rng.random() < 0.8},
        "bad_cycle": {"quality": rng.choice([0.4, 0.6]), "stuck": rng.randrange(1, 4)},
        "context_high": {"saturation": rng.choice([0.3, 0.5, 0.75])},
        "context_critical": {"saturation": rng.choice([0.4, 0.6, 0.85]),
                             "actions": [rng.choice([2, 3])]},
        "failure_chain": {"failures": rng.randrange(2, 6),
                          "actions": rng.sample(any_action, rng.randrange(1, 4))},
        "prolonged_stagnation": {"stuck": rng.randrange(2, 6), "enabled": rng.random() < 0.8},
        "tool_cycle": {"compress_from": rng.choice([None, 0.2, 0.5])},
        "tool_repetition": {"compress_from": rng.choice([None, 0.2, 0.5]),
                            "repetition": rng.choice([0.2, 0.5, 0.7])},
        "mild_stagnation": {"stuck": rng.randrange(1, 3), "actions": rng.sample(any_action, 2)},
        "moderate_stagnation": {"enabled": rng.random() < 0.8, "stuck": rng.randrange(1, 4),
                                "saturation": rng.choice([0.2, 0.5])},
        "slow_progress": {"enabled": rng.random() < 0.8, "trend": rng.choice([0.1, 0.3]),
                          "progress": rng.choice([0.5, 0.8])},
        "progressing": {"progress": rng.choice([None, 0.5, 0.3]), "yields": rng.random() < 0.5,
                        "enabled": rng.random() < 0.9},
        **random_loop_rules(rng),
    }  # fmt: skip
    for rule, given in rules.items():
        if rule in LAST_RESORTS:
            given["after_redirect"] = rng.random() < 0.4
        elif rule not in ("context_exhausted", "round_limit", "progressing", "redirects_ignored"):
            given["alone"] = rng.random() < 0.3
    changes = {
        "ema_alpha": rng.choice([0.2, 0.7, 1.0]),
        "frequent_tools": rng.choice([[], ["search", "read"], TOOLS]),
        "slight_result": rng.choice([0, 12, 30]),
        "slight_error": rng.choice([0, 20, 32]),
        "near_duplicate": rng.randrange(9, 17),
        "tool_limits": random_tool_limits(rng),
        "compress_cooldown": rng.randrange(1, 5),
        "compress_tries": rng.choice([None, 1, 2, 3]),
        "loop_detection": rng.random() < 0.85,
        "feedback": {"round_cost": rng.choice([0.1, 0.5]), "saturation_from": 0.5},
        "rules": rules,
    }
    changes.update({name: rng.random() < 0.5 for name in SWITCHES})
    changes["count_failures"] = rng.choice(["calls", "rounds"])
    changes["count_cycles"] = rng.choice(["calls", "rounds"])
    return Policy.preset(name, **{**changes, **overrides})


def random_loop_rules(rng):
    """The rules that look at what rounds brought."""
    bounds = {
        "redirects_ignored": {"redirects": 5},
        "compression_failed": {},
        "transient_failure": {"patience": 6},
        "transient_persists": {"rounds": 5},
        "repeated_round": {"repeats": 4, "slight_repeats": 5},
        "repeated_call": {"calls": 5, "rounds": 3},
        "repeated_result": {"results": 5, "rounds": 3},
        "repeated_error": {"errors": 4},
        "no_information": {"rounds": 6},
        "little_information": {"rounds": 8},
        "mostly_failing": {"failures": 10, "rounds": 3},
        "repeated_text": {"texts": 5},
        "idle": {"rounds": 6, "blank": 5},
        "loop_suspected": {"rounds": 3, "errors": 3, "no_information": 4, "failures": 4,
                           "texts": 4, "idle": 4, "blank": 4},
    }  # fmt: skip
    rules = {}
    for name, most in bounds.items():
        rules[name] = {parameter: rng.randrange(1, last + 1) for parameter, last in most.items()}
        rules[name]["enabled"] = rng.random() < 0.75
    return rules


def random_tool_limits(rng):
    """Limits of none, one or two of the tools."""
    names = rng.sample(TOOLS, rng.choice([0, 0, 1, 2]))
    return {name: rng.choice([1, 2, 4, "poll", "exempt"]) for name in names}


LAST_RESORTS = ("output_loop", "failure_wall", "true_stagnation", "bad_cycle")
SWITCHES = (
    "empty_is_unproductive", "stale_is_unproductive", "match_results", "newest_run_only",
    "see_through_volatile", "zero_tokens_unknown",
)  # fmt: skip


# --- A crowd -------------------------------------------------------------------------------------
def crowd(arrays, sessions):
    """Random columns of a round of many sessions, made without Python objects."""
    counts = arrays.choice([0, 1, 1, 2, 4, 15], sessions)
    total = counts.sum()
    gives = {"text": 0.7, "context_tokens": 0.9, "progress": 0.2, "reward": 0.2}
    given_here = {name: arrays.random(sessions) < share for name, share in gives.items()}
    few = arrays.integers(1, 4, total)
    return RoundBatch(
        call_offsets=np.concatenate([[0], np.cumsum(counts)]),
        call_tool=few.astype(np.uint64),
        call_signature=few.astype(np.uint64),
        call_result=arrays.integers(0, 2, total).astype(np.uint64),
        call_flags=arrays.choice([0, 0, 1, 2], total).astype(np.uint8),
        call_size=arrays.integers(0, 500, total).astype(np.uint32),
        text=np.where(given_here["text"], arrays.integers(1, 3, sessions), 0).astype(np.uint64),
        context_tokens=np.where(
            given_here["context_tokens"], arrays.integers(0, 110_000, sessions), -1
        ),
        context_limit=np.full(sessions, -1),
        progress=np.where(
            given_here["progress"], arrays.random(sessions), np.nan
        ).astype(np.float32),
        reward=np.where(given_here["reward"], arrays.random(sessions), np.nan).astype(np.float32),
        success=arrays.integers(-1, 2, sessions).astype(np.int8),
        event=arrays.choice([0] * 30 + [1, 2], sessions).astype(np.uint8),
    )  # fmt: skip
