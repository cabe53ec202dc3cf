"""What a type checker is to see of the package: mypy reads this file, and it also runs.

Run by `tests/test_typing.py`, and by hand with ``mypy tests/typing_cases.py``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from cellium_fast import (
    Action,
    Cause,
    Decision,
    Decisions,
    Fleet,
    HardConstraintRenderer,
    Policy,
    Posterior,
    Round,
    RoundBatch,
    Session,
    ToolCall,
    _ingest,
    _records,
    _rules,
    _step,
    bias,
    kernels,
    reward,
    rule,
    traces,
)
from cellium_fast.user_functions import Features, RoundOutcome, UserBias, UserReward, UserRule

# The compiled modules.
assert_type(_records.mix(7), int)
assert_type(_records.FEATURES, np.dtype[np.void])
assert_type(_records.RUN_WINDOW, int)
assert_type(_rules.RULES, tuple[str, ...])
assert_type(_ingest.hash_text(None), int)
assert_type(_ingest.Packer().pack_columns([Round()]), dict[str, NDArray[Any]])

# One session.
fleet = Fleet(seed=7)
with fleet.session("ticket", context_limit=1000, tools=["search"]) as session:
    assert_type(session, Session)
    assert_type(session.done, bool)
    decision = session.step(Round([ToolCall("search", {"q": "x"}, "found")]))
    assert_type(session.prompt, str)
assert_type(decision, Decision)
assert_type(decision.action, Action)
assert_type(decision.candidates, tuple[Action, ...])
assert_type(decision.rules, tuple[str, ...])
assert_type(decision.reward, float | None)
assert_type(decision.cause, Cause)
assert_type(decision.scores, dict[Action, float])
assert_type(decision.explain(), str)
features = decision.features
assert_type(features, _step.FeatureRecord)
assert_type(features.progress_score, float)
assert_type(features.stuck_iterations, int)
assert_type(features.recent_tools, tuple[int, int, int])
assert_type(features.plateau, bool)

# A batch.
ids = fleet.open(2)
assert_type(ids, NDArray[np.int64])
decisions = fleet.step(ids, RoundBatch(context_tokens=np.array([10, 20])))
assert_type(decisions, Decisions)
assert_type(decisions.action, NDArray[np.uint8])
assert_type(decisions.rules, NDArray[np.uint32])
assert_type(decisions.reward, NDArray[np.float32])
assert_type(decisions.scores, NDArray[np.float64])
assert_type(decisions[0], Decision)
assert_type(fleet.done(ids), NDArray[np.bool_])
assert_type(HardConstraintRenderer().render_many(decisions), list[str])

# Policies.
policy = Policy.preset("cellium")
assert_type(policy, Policy)
assert_type(policy.ema_alpha, float)
assert_type(policy.rules.failure_wall.stuck, int)
assert_type(policy.rules.tool_cycle.compress_from, float | None)
assert_type(policy.posterior, Posterior)



# Functions of users.
@rule(proposes=("redirect", "compress"))
def stuck_long(features: Features) -> bool:
    return features.stuck_iterations > 3


@reward
def thrifty(features: Features, outcome: RoundOutcome) -> float:
    return outcome.reward * (1.0 - features.context_saturation)


@reward(name="told")
def as_told(features: Features, outcome: RoundOutcome) -> int:
    return outcome.success


@bias("redirect")
def when_stuck(features: Features) -> float:
    return 0.1 if features.plateau else 0.0


assert_type(stuck_long, UserRule)
assert_type(stuck_long.actions, tuple[Action, ...])
assert_type(thrifty, UserReward)
assert_type(as_told, UserReward)
assert_type(when_stuck, UserBias)
mine = Policy(user_rules=[stuck_long], user_reward=thrifty, user_bias=[when_stuck])
assert_type(mine.user_rules, tuple[UserRule, ...])
assert_type(mine.user_reward, UserReward | None)
assert_type(mine.propensities, bool)

# Kernels.
assert_type(kernels.ema([1.0], [0.0], 0.5), NDArray[np.float64])
assert_type(kernels.decay([1.0], [1.0], 0.5, 2.0)[0], NDArray[np.float64])

# Recorded runs.
assert_type(traces.read(Path("run.json")), Iterator[traces.RecordedRun | traces.Problem])

# As the README has it: a section as a mapping.
assert_type(Policy(rules={"tool_repetition": {"repetition": 0.4}}).rules.tool_repetition.repetition,
            float)
