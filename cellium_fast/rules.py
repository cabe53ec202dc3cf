"""The rules of a policy: switches, actions and thresholds of each, with the `default` values.

What each one looks at is in `docs/semantics.md`, "Rules"; `src/rules.h` evaluates them.
"""

from typing import Self

from pydantic import Field, StrictBool, model_validator

from cellium_fast import _rules
from cellium_fast.action import Action
from cellium_fast.parameters import (
    Count,
    Fraction,
    Parameters,
    PolicyAction,
    RunCount,
    Saturation,
    Streak,
    Trend,
    WindowCount,
)


class Rule(Parameters):
    """What every rule has."""

    enabled: StrictBool = True
    actions: tuple[PolicyAction, ...] = Field(
        description="What the rule forces (exactly one) or proposes."
    )


class ProposingRule(Rule):
    """What a rule that proposes has besides."""

    alone: StrictBool = Field(
        default=False, description="When it fires, its actions replace every other proposal."
    )

    @model_validator(mode="after")
    def _alone_with_something(self) -> Self:
        if self.alone and not self.actions:
            raise ValueError("alone: wanted at least one action to stand alone")
        return self


class LastResort(Rule):
    """What a rule that forces an end to a loop has besides."""

    after_redirect: StrictBool = Field(
        default=True, description="It fires only once a redirect was given and not heeded."
    )


class OutputLoop(LastResort):
    """Fires when the newest output text repeats, `repeats` times in a row.

    With `idle_only`, not in a round that brought news.
    """

    actions: tuple[PolicyAction, ...] = (Action.TERMINATE,)
    repeats: RunCount = 5
    idle_only: StrictBool = True


class ContextExhausted(Rule):
    """Fires when tokens / limit reaches `saturation`, `rounds` in a row."""

    actions: tuple[PolicyAction, ...] = (Action.TERMINATE,)
    saturation: Saturation = 0.95
    rounds: Streak = 3


class RoundLimit(Rule):
    """Fires when the session's round limit is reached."""

    actions: tuple[PolicyAction, ...] = (Action.TERMINATE,)


class FailureWall(LastResort):
    """Fires on `failures` in a row with trend below `trend` or stuck from `stuck`."""

    actions: tuple[PolicyAction, ...] = (Action.TERMINATE,)
    failures: RunCount = 8
    trend: Trend = -0.3
    stuck: Count = 10


class TrueStagnation(LastResort):
    """Fires when stuck (but not in [pause_from, pause_to)) on a surely falling trend."""

    enabled: StrictBool = False
    actions: tuple[PolicyAction, ...] = (Action.TERMINATE,)
    stuck: Count = 5
    pause_from: Count = 12
    pause_to: Count = 15
    trend: Trend = -0.15
    confidence: Fraction = 0.5

    @model_validator(mode="after")
    def _pause_is_a_range(self) -> Self:
        if self.pause_from > self.pause_to:
            raise ValueError("pause_from: wanted no more than pause_to")
        return self


class BadCycle(LastResort):
    """Fires on a cycle of poor results, trend falling or stuck from `stuck`."""

    actions: tuple[PolicyAction, ...] = (Action.TERMINATE,)
    quality: Fraction = 0.4
    stuck: Count = 2


class ContextHigh(ProposingRule):
    """Fires when tokens / limit reaches `saturation`, while compress is ready."""

    actions: tuple[PolicyAction, ...] = (Action.COMPRESS,)
    saturation: Saturation = 0.75


class ContextCritical(ProposingRule):
    """Fires when tokens / limit reaches `saturation`; to propose compress, that must be ready."""

    actions: tuple[PolicyAction, ...] = (Action.COMPRESS,)
    alone: StrictBool = True
    saturation: Saturation = 0.85


class FailureChain(ProposingRule):
    """Fires on `failures` in a row."""

    actions: tuple[PolicyAction, ...] = (Action.REDIRECT,)
    alone: StrictBool = True
    failures: RunCount = 5


class ProlongedStagnation(ProposingRule):
    """Fires when stuck from `stuck`, unless on a plateau."""

    actions: tuple[PolicyAction, ...] = (Action.RETRY,)
    stuck: Count = 5


class ToolCycle(ProposingRule):
    """Fires on a cycle of calls; proposes compress too from saturation `compress_from`."""

    actions: tuple[PolicyAction, ...] = (Action.REDIRECT,)
    alone: StrictBool = True
    compress_from: Saturation | None = None


class ToolRepetition(ProposingRule):
    """Fires on a repetition score above `repetition`; compress as in `ToolCycle`."""

    actions: tuple[PolicyAction, ...] = (Action.REDIRECT,)
    alone: StrictBool = True
    repetition: Fraction = 0.7
    compress_from: Saturation | None = None


class MildStagnation(ProposingRule):
    """Fires when stuck from `stuck` and not making progress."""

    actions: tuple[PolicyAction, ...] = (Action.RETRY,)
    stuck: Count = 1


class ModerateStagnation(ProposingRule):
    """Fires when stuck from `stuck` at saturation from `saturation`."""

    actions: tuple[PolicyAction, ...] = (Action.COMPRESS,)
    stuck: Count = 3
    saturation: Saturation = 0.5


class SlowProgress(ProposingRule):
    """Fires on a trend in (0, `trend`), progress up to `progress`, stuck from `stuck`."""

    actions: tuple[PolicyAction, ...] = (Action.RETRY,)
    trend: Trend = 0.3
    progress: Fraction = 0.5
    stuck: Count = 1


class Progressing(Rule):
    """Fires when nothing was proposed, or the session makes progress.

    With a `progress` threshold, progress above it at stuck 0 counts too. With `yields`, progress
    does not count beside prolonged stagnation, a tool cycle or tool repetition.
    """

    actions: tuple[PolicyAction, ...] = (Action.CONTINUE,)
    progress: Fraction | None = 0.5
    yields: StrictBool = True


class RedirectsIgnored(Rule):
    """Fires when redirect is proposed once more and `redirects` were not heeded."""

    actions: tuple[PolicyAction, ...] = (Action.TERMINATE,)
    redirects: Streak = 5


class RedirectingRule(ProposingRule):
    """What the rules have that leave one right action: another way."""

    actions: tuple[PolicyAction, ...] = (Action.REDIRECT,)
    alone: StrictBool = True


class CompressionFailed(RedirectingRule):
    """Fires in a critical context that compress did not help."""


class TransientFailure(ProposingRule):
    """Fires when all calls failed by what may pass, for less than `patience` rounds in a row."""

    actions: tuple[PolicyAction, ...] = (Action.RETRY,)
    alone: StrictBool = True
    patience: Streak = 6


class TransientPersists(RedirectingRule):
    """Fires when all calls failed by what may pass, `rounds` in a row."""

    rounds: Streak = 6


class RepeatedRound(RedirectingRule):
    """Fires on `repeats` equal rounds in a row; on `slight_repeats` if their results are slight."""

    repeats: Streak = 3
    slight_repeats: Streak = 4


class RepeatedCall(RedirectingRule):
    """Fires on `calls` equal ones in the window, in `rounds` without information.

    On `interleaved` equal ones whatever came between them.
    """

    calls: WindowCount = 3
    rounds: Streak = 3
    interleaved: WindowCount = 8


class RepeatedResult(RedirectingRule):
    """Fires on `results` equal ones in the window, in `rounds` without information."""

    results: WindowCount = 3
    rounds: Streak = 4


class RepeatedError(RedirectingRule):
    """Fires on the same masked error in `errors` rounds in a row, whatever the arguments."""

    errors: Streak = 3


class NoInformation(RedirectingRule):
    """Fires on `rounds` without information."""

    rounds: Streak = 5


class LittleInformation(RedirectingRule):
    """Fires on `rounds` with no or little information."""

    rounds: Streak = 8


class MostlyFailing(RedirectingRule):
    """Fires on `failures` among the calls of the window, in `rounds` without information."""

    failures: WindowCount = 8
    rounds: Streak = 2


class RepeatedText(RedirectingRule):
    """Fires on `texts` in a row that are nearly the one before, in rounds without news."""

    texts: Streak = 5


class Idle(RedirectingRule):
    """Fires on `rounds` in a row without a call, or `blank` without a text either."""

    rounds: Streak = 8
    blank: Streak = 5


class LoopSuspected(ProposingRule):
    """Fires on the first signs of what the rules above redirect for, while none of them does."""

    actions: tuple[PolicyAction, ...] = (Action.RETRY,)
    alone: StrictBool = True
    rounds: Streak = 2
    errors: Streak = 2
    no_information: Streak = 3
    failures: Streak = 3
    texts: Streak = 3
    idle: Streak = 4
    blank: Streak = 3


class Rules(Parameters):
    """The thirty rules; a rule's bit is its place here. Bits 0 to 5 and 16 force an action."""

    output_loop: OutputLoop = OutputLoop.defaults()
    context_exhausted: ContextExhausted = ContextExhausted.defaults()
    round_limit: RoundLimit = RoundLimit.defaults()
    failure_wall: FailureWall = FailureWall.defaults()
    true_stagnation: TrueStagnation = TrueStagnation.defaults()
    bad_cycle: BadCycle = BadCycle.defaults()
    context_high: ContextHigh = ContextHigh.defaults()
    context_critical: ContextCritical = ContextCritical.defaults()
    failure_chain: FailureChain = FailureChain.defaults()
    prolonged_stagnation: ProlongedStagnation = ProlongedStagnation.defaults()
    tool_cycle: ToolCycle = ToolCycle.defaults()
    tool_repetition: ToolRepetition = ToolRepetition.defaults()
    mild_stagnation: MildStagnation = MildStagnation.defaults()
    moderate_stagnation: ModerateStagnation = ModerateStagnation.defaults()
    slow_progress: SlowProgress = SlowProgress.defaults()
    progressing: Progressing = Progressing.defaults()
    redirects_ignored: RedirectsIgnored = RedirectsIgnored.defaults()
    compression_failed: CompressionFailed = CompressionFailed.defaults()
    transient_failure: TransientFailure = TransientFailure.defaults()
    transient_persists: TransientPersists = TransientPersists.defaults()
    repeated_round: RepeatedRound = RepeatedRound.defaults()
    repeated_call: RepeatedCall = RepeatedCall.defaults()
    repeated_result: RepeatedResult = RepeatedResult.defaults()
    repeated_error: RepeatedError = RepeatedError.defaults()
    no_information: NoInformation = NoInformation.defaults()
    little_information: LittleInformation = LittleInformation.defaults()
    mostly_failing: MostlyFailing = MostlyFailing.defaults()
    repeated_text: RepeatedText = RepeatedText.defaults()
    idle: Idle = Idle.defaults()
    loop_suspected: LoopSuspected = LoopSuspected.defaults()

    @model_validator(mode="after")
    def _forcing_rules_force_one_action(self) -> Self:
        for place, name in enumerate(type(self).model_fields):
            rule: Rule = getattr(self, name)
            if _rules.FORCING >> place & 1 and len(rule.actions) != 1:
                raise ValueError(f"{name} forces: its actions must be exactly one")
            if len(set(rule.actions)) != len(rule.actions):
                raise ValueError(f"{name}: an action stands twice in its actions")
        return self
