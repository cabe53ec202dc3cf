"""The step of `SIXTEEN_RULES` as a good NumPy user would write it: the one to beat.

That policy is the `default` one but for what came after its first sixteen rules: evidence over the
whole session, which is not stated here a second time. The kernels work it out all the same.

Sessions are rows of arrays. They step together, each with one tool call a round and a known context
limit, which is the easiest case: all rings have one position, and no session is looked up. Run
lengths and cycles are counters that are updated, not windows that are searched; what only a few
sessions need is worked out for these rows alone. No round limits, user messages, private
posteriors; `docs/semantics.md` says what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import Action, Policy, RoundBatch, _records, _rules
from cellium_fast.action import mask_of

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
Columns = dict[str, NDArray[Any]]

COLUMNS = ("call_tool", "call_signature", "call_result", "call_flags", "call_size", "text",
           "context_tokens")

STATED = _rules.RULES[:16]
SIXTEEN_RULES = Policy(
    see_through_volatile=False,
    count_cycles="calls",
    zero_tokens_unknown=False,
    compress_cooldown=1,
    compress_tries=None,
    rules={
        "output_loop": {"after_redirect": False, "idle_only": False},
        "context_exhausted": {"rounds": 1},
        "failure_wall": {"after_redirect": False},
        "true_stagnation": {"enabled": True, "after_redirect": False},
        "bad_cycle": {"after_redirect": False},
        "failure_chain": {"actions": ["retry", "redirect"], "alone": False, "failures": 4},
        "prolonged_stagnation": {"actions": ["redirect"]},
        "tool_cycle": {"alone": False, "compress_from": 0.5},
        "tool_repetition": {"alone": False, "compress_from": 0.5},
        **{rule: {"enabled": False} for rule in _rules.RULES if rule not in STATED},
    },
)

ARMS = len(Action)
WINDOW, RECENT, SIZES, HISTORY = 12, 4, 5, 10
LONGEST = np.uint8(10)      # a counter of equal things in a row stops here
MIXER = np.uint64(0xFF51AFD7ED558CCD)
NOT_LEARNING = 255
TIE_ORDER = np.array([
    Action.CONTINUE, Action.RETRY, Action.COMPRESS, Action.REDIRECT, Action.TERMINATE
])


class Ring:
    """The last values of every session, (length, N); age 0 is the newest."""

    def __init__(self, length: int, count: int, dtype: type, fill: float = 0) -> None:
        self._rows: NDArray[Any] = np.full((length, count), fill, dtype)
        self._newest = 0

    def push(self, values: NDArray[Any]) -> None:
        """Take one value more of each session; the oldest go."""
        self._newest = (self._newest + 1) % len(self._rows)
        self._rows[self._newest] = values

    def __getitem__(self, age: int) -> NDArray[Any]:
        row: NDArray[Any] = self._rows[self._newest - age]
        return row

    def of(self, sessions: Integers, newest: int) -> NDArray[Any]:
        """(newest, sessions) values of some sessions, newest first."""
        return np.stack([self[age][sessions] for age in range(newest)])


@dataclass(slots=True)
class Seen:
    """The features of a round that rules and bias look at; all (N,)."""

    progress: Floats
    trend: Floats
    confidence: Floats
    quality: Floats
    repetition: Floats
    context: Floats
    stuck: NDArray[np.int32]
    cycle: Bools
    output_repeats: Integers
    plateau: Bools
    making_progress: Bools


class NumpyFleet:
    """N sessions in one shared pool.

    Parameters
    ----------
    count
        Sessions, N.
    context_limit
        Tokens, of all of them.
    policy
        `SIXTEEN_RULES`; its `tie_break` may be "greedy" instead of "thompson".
    seed
        Of the Beta draws.
    """

    def __init__(
        self, count: int, context_limit: int, policy: Policy = SIXTEEN_RULES, seed: int = 0
    ) -> None:
        self.policy = policy
        self._limit = context_limit
        self._chance = np.random.default_rng(seed)
        self.alpha = np.full(ARMS, self.policy.posterior.alpha)
        self.beta = np.full(ARMS, self.policy.posterior.beta)
        self.updates = np.zeros(ARMS, np.int64)
        self._round = 0
        # calls
        self._signature = np.zeros(count, np.uint64)
        self._calls = Ring(WINDOW, count, np.uint64)    # signature and result in one hash
        self._twins = Ring(RECENT, count, np.uint8)
        self._tools = Ring(RECENT, count, np.uint64)
        self._sizes = Ring(SIZES, count, np.float64)
        self._same_signature = np.zeros(count, np.uint8)    # in a row, newest included
        self._like_before = [np.zeros(count, np.uint8) for _ in range(3)]  # as the 1, 2, 3 before
        self._error_bits = np.zeros(count, np.uint8)
        self._empty_bits = np.zeros(count, np.uint8)
        self._errors = np.zeros(count, np.int32)
        self._empties = np.zeros(count, np.int32)
        self._failures = np.zeros(count, np.uint8)
        self._text = np.zeros(count, np.uint64)
        self._same_text = np.zeros(count, np.uint8)
        # progress
        self._progress = np.zeros(count)
        self._trend = np.zeros(count)
        self._history = Ring(HISTORY, count, np.float32)
        self._stuck = np.zeros(count, np.int32)
        self._decision_stuck = np.zeros(count, np.int32)
        # learning
        self._rewards = Ring(self.policy.n_step, count, np.float64)
        self._pending = Ring(self.policy.n_step, count, np.uint8, NOT_LEARNING)

    def step(self, rounds: RoundBatch) -> tuple[NDArray[np.uint8], NDArray[np.uint8],
                                                NDArray[np.uint32], Floats]:
        """Return action, candidates, rules and reward of every session, (N,) each."""
        self._round += 1
        column: Columns = {name: np.asarray(getattr(rounds, name)) for name in COLUMNS}
        context: Floats = column["context_tokens"] / self._limit
        error: Bools = (column["call_flags"] & _records.CALL_ERROR) != 0
        empty: Bools = (column["call_flags"] & _records.CALL_EMPTY) != 0
        reward = self._reward(context, error)
        learned = self._learn(reward)
        self._take(column, error, empty)
        seen = self._features(context)
        candidates, rules = self._rules(seen)
        action = self._choose(candidates, seen)
        several = candidates & (candidates - 1) != 0
        self._pending.push(np.where(several, action, np.uint8(NOT_LEARNING)))
        np.copyto(self._decision_stuck, self._stuck)
        self._stuck[action == Action.REDIRECT] = 0
        self._apply(learned)
        return action, candidates, rules, reward

    # --- feedback, learning ----------------------------------------------------------------------
    def _reward(self, context: Floats, error: Bools) -> Floats:
        p = self.policy.feedback
        over = np.maximum(context - p.saturation_from, 0.0) / (1.0 - p.saturation_from)
        good = np.clip(1.0 - p.saturation_cost * over, 0.0, 1.0)
        bad = p.failure_reward * (1.0 - np.minimum(self._decision_stuck / 5.0, 1.0))
        return np.where(error, bad, good)

    def _learn(self, reward: Floats) -> tuple[Floats, Floats, Integers] | None:
        n = self.policy.n_step
        self._rewards.push(reward)
        if self._round < n:
            return None
        action = self._pending[n - 1]
        rows = np.flatnonzero(action != NOT_LEARNING)
        action = action[rows]
        returned = self._rewards.of(rows, n).sum(axis=0) / n
        gained = np.bincount(action, returned, ARMS).astype(np.float64)
        counts = np.bincount(action, minlength=ARMS)
        return gained, counts - gained, counts

    def _apply(self, learned: tuple[Floats, Floats, Integers] | None) -> None:
        # At the end of the call: its draws use the pool as it stood before.
        if learned is not None:
            self.alpha += learned[0]
            self.beta += learned[1]
            self.updates += learned[2]

    # --- features --------------------------------------------------------------------------------
    def _take(self, column: Columns, error: Bools, empty: Bools) -> None:
        signature = column["call_signature"]
        call = (signature ^ column["call_result"] * MIXER) * MIXER
        for lag, counter in enumerate(self._like_before):
            _count_in_row(counter, call == self._calls[lag] if self._round > lag + 1 else None)
        _count_in_row(self._same_signature, signature == self._signature)
        self._twins.push(self._distance_to_twin(call))
        self._calls.push(call)
        self._signature = signature.copy()
        self._tools.push(column["call_tool"])
        self._sizes.push(column["call_size"])
        self._error_bits = self._error_bits << np.uint8(1) | error
        self._empty_bits = self._empty_bits << np.uint8(1) | empty
        self._errors += error
        self._empties += empty
        _count_in_row(self._failures, error)
        _count_in_row(self._same_text, column["text"] == self._text)
        self._text = column["text"].copy()

    def _distance_to_twin(self, call: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """How far back in the window the nearest call like this one is; 0 = nowhere."""
        distance = np.zeros(len(call), np.uint8)
        for age in range(min(self._round - 1, WINDOW - 1) - 1, -1, -1):
            distance[self._calls[age] == call] = age + 1
        return distance

    def _features(self, context: Floats) -> Seen:
        calls = self._round
        productive = self._productive(min(calls, RECENT))
        progress = self._progress_score(productive)
        raw = progress - self._progress
        a = self.policy.ema_alpha
        self._trend = a * raw + (1.0 - a) * self._trend
        self._progress = progress
        self._history.push(progress)
        self._update_stuck(raw, productive)
        error_rate = self._errors / calls
        quality = _quality(error_rate, self._empties / calls, self._growth(SIZES))
        confidence = self._confidence()
        plateau = (
            (np.abs(self._trend) < 0.03) & (np.abs(raw) < 0.05)
            & (self._stuck > 0) & (self._stuck < 5)
            & (quality >= 0.55) & (error_rate < 0.5) & (confidence < 0.6)
        )
        like_last, like_second, like_third = self._like_before
        return Seen(
            progress, self._trend, confidence, quality, _repetition(like_last, LONGEST), context,
            self._stuck,
            # Counters hold how many calls in a row were like the one before, two before, ...
            cycle=((like_second >= 2) & (like_last == 0)) | (like_third >= 3),
            output_repeats=self._same_text + 1 if calls > 1 else np.zeros_like(self._same_text),
            plateau=plateau,
            making_progress=(self._trend > 0.03) | (progress >= 0.7) | plateau,
        )

    def _productive(self, count: int) -> list[Bools]:
        """Of the newest calls, newest first: neither an error nor stale."""
        known = min(self._round, WINDOW)
        flags = []
        for age in range(count):
            twin = self._twins[age]
            stale = (twin > 0) & (twin < known - age)
            flags.append(~stale & (self._error_bits >> np.uint8(age) & 1 == 0))
        return flags

    def _growth(self, count: int) -> Floats:
        count = min(count, self._round)
        if count < 2:
            return np.full(len(self._stuck), 0.5)
        first = self._sizes[count - 1]
        grown = (self._sizes[0] - first) / np.maximum(first, 1.0)
        growth: Floats = np.clip(grown, -1.0, 1.0) / 2.0 + 0.5
        return growth

    def _recent_quality(self, count: int) -> Floats:
        count = min(count, self._round)
        return _quality(
            _share(self._error_bits, count), _share(self._empty_bits, count), self._growth(count)
        )

    def _progress_score(self, productive: Sequence[Bools]) -> Floats:
        count = len(productive)
        repetition = _repetition(self._like_before[0], np.uint8(count))
        tools = [self._tools[age] for age in range(count)]
        distinct = np.ones(len(repetition))
        for age in range(1, count):
            distinct += np.logical_and.reduce([tools[age] != tool for tool in tools[:age]])
        good = sum(flags.astype(np.int64) for flags in productive)
        score = (
            0.3 * self._recent_quality(count)
            + 0.3 * (1.0 - (count - good) / count)
            + 0.15 * (1.0 - _share(self._empty_bits, count))
            + 0.15 * np.maximum(distinct / count - repetition / 2.0, 0.0)
            + np.where(productive[0], 0.1, 0.0)
            - 0.1 * repetition
        )
        clipped: Floats = np.clip(score, 0.0, 1.0)
        return clipped

    def _update_stuck(self, raw: Floats, productive: Sequence[Bools]) -> None:
        last, quality = productive[0], self._recent_quality(3)
        two_failures = ~last & ~productive[1] if len(productive) > 1 else np.zeros_like(last)
        worse = (
            (raw < -0.03) | two_failures
            | ((raw < 0.05) & ~last & (quality < 0.6) & (self._same_signature >= 2))
        )
        better = (raw > 0.08) | (last & (quality >= 0.6))
        eased = (raw > 0.0) & (self._stuck > 0)
        self._stuck = np.where(
            worse, self._stuck + 1, np.where(better, 0, self._stuck - eased)
        ).astype(np.int32)

    def _confidence(self) -> Floats:
        """R squared of a line through the history, of those sessions whose rules look at it."""
        confidence = np.zeros(len(self._stuck))
        count = min(self._round + 1, HISTORY)
        rows = np.flatnonzero(self._stuck > 0)
        if count < 3 or not len(rows):
            return confidence
        y = self._history.of(rows, count).astype(np.float64)
        y -= y[0]
        total = y.sum(axis=0)
        across = np.square(y).sum(axis=0) - total * total / count
        covariance = np.arange(count) @ y - (count - 1) / 2.0 * total
        along = count * (count * count - 1.0) / 12.0
        varies = across >= 1e-12
        fitted = covariance * covariance / (along * np.where(varies, across, 1.0))
        confidence[rows] = np.where(varies, np.minimum(fitted, 1.0), 0.0)
        return confidence

    # --- rules -----------------------------------------------------------------------------------
    def _rules(self, seen: Seen) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        fired = self._conditions(seen)
        rules = self.policy.rules
        candidates = np.zeros(len(seen.stuck), np.uint8)
        for name in PROPOSING:
            rule = getattr(rules, name)
            candidates |= fired[name] * np.uint8(mask_of(rule.actions))
            if getattr(rule, "compress_from", None) is not None:
                full = fired[name] & (seen.context >= rule.compress_from)
                candidates |= full * np.uint8(Action.COMPRESS.mask)
        looping = fired["prolonged_stagnation"] | fired["tool_cycle"] | fired["tool_repetition"]
        assert rules.progressing.progress is not None    # of this policy
        smooth = (seen.progress > rules.progressing.progress) & (seen.stuck == 0)
        fired["progressing"] = (candidates == 0) | (~looping & (seen.making_progress | smooth))
        candidates |= fired["progressing"] * np.uint8(Action.CONTINUE.mask)
        candidates[fired["context_critical"]] = Action.COMPRESS.mask
        forced = np.logical_or.reduce([fired[name] for name in FORCING])
        candidates[forced] = Action.TERMINATE.mask
        masks = np.zeros(len(candidates), np.uint32)
        for bit, name in enumerate(STATED):
            if name in fired:
                masks |= fired[name] * np.uint32(1 << bit)
        return candidates, masks

    def _conditions(self, seen: Seen) -> dict[str, Bools]:
        """Which sessions each rule but the last fires for; the round limit never does."""
        r = self.policy.rules
        stuck, trend, failures, context = seen.stuck, seen.trend, self._failures, seen.context
        paused = (stuck >= r.true_stagnation.pause_from) & (stuck < r.true_stagnation.pause_to)
        return {
            "output_loop": seen.output_repeats >= r.output_loop.repeats,
            "context_exhausted": context >= r.context_exhausted.saturation,
            "failure_wall": (failures >= r.failure_wall.failures) & (
                (trend < r.failure_wall.trend) | (stuck >= r.failure_wall.stuck)
            ),
            "true_stagnation": (
                (stuck >= r.true_stagnation.stuck) & ~paused & ~seen.plateau
                & (trend < r.true_stagnation.trend)
                & (seen.confidence > r.true_stagnation.confidence)
            ),
            "bad_cycle": seen.cycle & (seen.quality < r.bad_cycle.quality) & (
                (trend < 0) | (stuck >= r.bad_cycle.stuck)
            ),
            "context_high": context >= r.context_high.saturation,
            "context_critical": context >= r.context_critical.saturation,
            "failure_chain": failures >= r.failure_chain.failures,
            "prolonged_stagnation": (stuck >= r.prolonged_stagnation.stuck) & ~seen.plateau,
            "tool_cycle": seen.cycle,
            "tool_repetition": seen.repetition > r.tool_repetition.repetition,
            "mild_stagnation": (stuck >= r.mild_stagnation.stuck) & ~seen.making_progress,
            "moderate_stagnation": (stuck >= r.moderate_stagnation.stuck)
            & (context >= r.moderate_stagnation.saturation),
            "slow_progress": (
                (trend > 0) & (trend < r.slow_progress.trend)
                & (seen.progress <= r.slow_progress.progress)
                & (stuck >= r.slow_progress.stuck)
            ),
        }

    # --- bandit ----------------------------------------------------------------------------------
    def _choose(self, candidates: NDArray[np.uint8], seen: Seen) -> NDArray[np.uint8]:
        action = LOWEST[candidates]
        rows = np.flatnonzero(candidates & (candidates - 1))
        place, order = np.nonzero(candidates[rows, None] >> TIE_ORDER & 1)
        arms = TIE_ORDER[order]
        if self.policy.tie_break == "greedy":
            values = (self.alpha / (self.alpha + self.beta))[arms]
        else:
            values = self._chance.beta(self.alpha[arms], self.beta[arms])
        scores = np.full((len(rows), ARMS), -np.inf)
        scores[place, order] = values + self._bias(rows, seen)[place, arms]
        # argmax takes the first of equal scores: the milder action.
        action[rows] = TIE_ORDER[scores.argmax(axis=1)]
        return action

    def _bias(self, rows: Integers, seen: Seen) -> Floats:
        b = self.policy.bias
        stuck, trend, progress = seen.stuck[rows], seen.trend[rows], seen.progress[rows]
        repetition = seen.repetition[rows]
        bias = np.zeros((len(rows), ARMS))
        bias[:, Action.CONTINUE] = np.maximum(
            b.continue_progress * (progress > 0.5), b.continue_unstuck * (stuck == 0)
        )
        bias[:, Action.RETRY] = np.maximum(
            b.retry_stuck * ((stuck >= 1) & (stuck < 5)),
            b.retry_slow * ((trend > 0) & (trend < 0.3)),
        )
        bias[:, Action.REDIRECT] = np.maximum(
            b.redirect_repetition * repetition * (repetition > 0.7), b.redirect_stuck * (stuck >= 5)
        )
        bias[:, Action.COMPRESS] = np.maximum(
            b.compress_saturation * (seen.context[rows] > 0.6), b.compress_stuck * (stuck >= 2)
        )
        bias *= np.where(self.updates < b.cold_start_updates, b.cold_start_factor, 1.0)
        return bias


FORCING = tuple(
    name for bit, name in enumerate(STATED) if _rules.FORCING >> bit & 1 and name != "round_limit"
)
PROPOSING = tuple(
    name for bit, name in enumerate(STATED)
    if not _rules.FORCING >> bit & 1 and name != "progressing"
)
# The lowest action of each mask of actions; 0 for the empty one.
LOWEST = np.array(
    [max((mask & -mask).bit_length() - 1, 0) for mask in range(1 << ARMS)], np.uint8
)


def _count_in_row(counter: NDArray[np.uint8], holds: Bools | None) -> None:
    """Count up where it holds, start anew where it does not."""
    if holds is None:
        counter[:] = 0
    else:
        np.minimum((counter + np.uint8(1)) * holds, LONGEST, out=counter)


def _repetition(like_last: NDArray[np.uint8], calls: np.uint8) -> Floats:
    """Score of the run that ends at the newest call, within the last `calls` calls."""
    length = np.minimum(like_last + np.uint8(1), calls)
    return np.where(length < 3, 0.0, np.minimum((length - 2.0) / 4.0, 1.0))


def _share(bits: NDArray[np.uint8], count: int) -> Floats:
    shares: Floats = np.bitwise_count(bits & np.uint8((1 << count) - 1)) / count
    return shares


def _quality(error_rate: Floats, empty_rate: Floats, growth: Floats) -> Floats:
    return 0.4 * (1.0 - error_rate) + 0.3 * (1.0 - empty_rate) + 0.3 * growth
