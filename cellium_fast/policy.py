"""`Policy`: one row of parameters, checked here and handed to the kernels as a packed record.

Field names are those of `docs/semantics.md`. The record's field for the parameter ``stuck`` of the
rule ``failure_wall`` is ``failure_wall_stuck``; `Policy.record` fills it by that convention.
"""

import math
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, StrictBool

from cellium_fast import _records, _rules
from cellium_fast.errors import PolicyError, UnknownNameError, shown
from cellium_fast.parameters import (
    TOOL_LIMITS,
    BelowOne,
    Characters,
    Factor,
    Fraction,
    Parameters,
    Places,
    PositiveFraction,
    Shape,
    Streak,
    ToolLimits,
    merged,
)
from cellium_fast.rules import LastResort, ProposingRule, Rule, Rules
from cellium_fast.user_code import BIASES_OF_USERS, REWARD_OF_USERS, RULES_OF_USERS, functions_of


class Bias(Parameters):
    """What is added to an arm's draw, and the cold-start factor on it."""

    redirect_repetition: Fraction = 0.03
    redirect_stuck: Fraction = 0.04
    retry_stuck: Fraction = 0.02
    retry_slow: Fraction = 0.01
    compress_saturation: Fraction = 0.03
    compress_stuck: Fraction = 0.02
    continue_progress: Fraction = 0.02
    continue_unstuck: Fraction = 0.03
    cold_start_factor: Factor = 5.0
    cold_start_updates: Annotated[int, Field(strict=True, ge=0, le=255)] = 5


class Feedback(Parameters):
    """Reward of a round."""

    round_cost: Fraction = 0.1
    saturation_cost: Fraction = 0.2
    saturation_from: BelowOne = 0.8
    failure_reward: Fraction = 0.3


class Posterior(Parameters):
    """Prior and decay of a pool, or of the private posteriors under a policy.

    A pool decays once per `decay_every` closed sessions, a private posterior once per
    `decay_every` updates. `decay_every=0` switches decay off.
    """

    alpha: Shape = 2.0
    beta: Shape = 2.0
    decay: PositiveFraction = 0.99
    decay_every: Annotated[int, Field(strict=True, ge=0, le=0xFFFF)] = 50
    decay_target: Literal["prior"] | Shape = "prior"

    def fill(self, record: np.void) -> None:
        """Write these parameters into a packed ``Prior`` record."""
        to_prior = self.decay_target == "prior"
        record["alpha"] = self.alpha
        record["beta"] = self.beta
        record["target_alpha"] = self.alpha if to_prior else self.decay_target
        record["target_beta"] = self.beta if to_prior else self.decay_target
        record["decay"] = self.decay
        record["decay_every"] = self.decay_every


class Policy(Parameters):
    """Parameters of a session's control loop; frozen.

    ``Policy()`` is the `default` policy; ``Policy.preset("cellium")`` is the system this package
    speeds up. Sections merge: ``Policy(rules={"output_loop": {"repeats": 4}})`` leaves the rest of
    the rules as they are.

    Raises
    ------
    PolicyError
        An unknown name or a value out of range; the message names the field.

    Examples
    --------
    >>> Policy().rules.context_high.saturation
    0.75
    >>> Policy.preset("cellium", tie_break="first").rules.context_high.saturation
    0.5
    """

    ema_alpha: PositiveFraction = 0.3
    empty_is_unproductive: StrictBool = False
    stale_is_unproductive: StrictBool = True
    match_results: StrictBool = Field(
        default=True, description="Repetition and cycles: equal calls have equal results too."
    )
    newest_run_only: StrictBool = Field(
        default=True, description="Repetition: only the run that ends at the newest call."
    )
    see_through_volatile: StrictBool = Field(
        default=True, description="A call's shape stands in for its signature."
    )
    count_failures: Literal["calls", "rounds"] = "rounds"
    count_cycles: Literal["calls", "rounds"] = "rounds"
    frequent_tools: tuple[str, ...] = Field(default=(), max_length=_records.MAX_FREQUENT_TOOLS)
    slight_result: Characters = 24
    slight_error: Characters = 32
    near_duplicate: Places = 12
    tool_limits: ToolLimits = Field(
        default=(),
        description="How often in a row a round of a tool may be repeated before it is a loop. "
        "Given as a mapping or as pairs, kept as pairs.",
    )
    zero_tokens_unknown: StrictBool = True
    compress_cooldown: Streak = 3
    compress_tries: Streak | None = 2
    loop_detection: StrictBool = True
    repeat_interval: Streak = Field(
        default=5, description="Rounds after which unchanged advice is given again."
    )
    rules: Rules = Rules.defaults()
    tie_break: Literal["thompson", "greedy", "first"] = "thompson"
    bias: Bias = Bias.defaults()
    feedback: Feedback = Feedback.defaults()
    n_step: Annotated[int, Field(strict=True, ge=1, le=_records.MAX_STEPS)] = 3
    gamma: PositiveFraction = 1.0
    credit: Literal["forward", "newest"] = Field(
        default="forward",
        description="n-step returns of each decision, or the last rewards to the newest one.",
    )
    update: Literal["both", "one_side"] = Field(
        default="both", description="A return G adds to alpha and beta, or to one by G > 0.5."
    )
    learn_from: Literal["tiebreak", "all"] = "tiebreak"
    posterior: Posterior = Posterior.defaults()
    user_rules: RULES_OF_USERS = Field(
        default=(), description="Functions made with `rule`, or their import paths."
    )
    user_reward: REWARD_OF_USERS | None = Field(
        default=None, description="A function made with `reward`, in place of `feedback`."
    )
    user_bias: BIASES_OF_USERS = Field(
        default=(), description="Functions made with `bias`, in place of an action's `bias`."
    )
    propensities: StrictBool = Field(
        default=False,
        description="Decisions tell the probability with which their action was to be chosen.",
    )

    if TYPE_CHECKING:
        # A section may be given as a mapping, which merges; the fields cannot say so.
        def __init__(self, /, **parameters: Any) -> None: ...

    @classmethod
    def preset(cls, name: str, /, **overrides: Any) -> Self:
        """A shipped policy, ``"default"`` or ``"cellium"``, with some parameters changed.

        Raises
        ------
        UnknownNameError
            There is no such preset.
        PolicyError
            An override does not make sense.
        """
        if not isinstance(name, str) or name not in PRESETS:
            raise UnknownNameError("preset", name, PRESETS)
        return cls(**merged(PRESETS[name], overrides))

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Read a policy from a ``.toml``, ``.yaml``/``.yml`` or ``.json`` file.

        The file holds the parameters that differ; a key ``preset`` names the policy they are laid
        over (``default`` if left out). What stands under ``provenance`` is passed over: it says
        where the policy comes from, see `cellium_fast.tuning`.

        Raises
        ------
        PolicyError
            The file cannot be read, or does not make sense; the message names file and field.
        """
        if not isinstance(path, str | PathLike):
            raise PolicyError(f"path: wanted the path of a file, got {shown(path)}")
        path = Path(path)
        parse = PARSERS.get(path.suffix.lower())
        if parse is None:
            raise PolicyError(
                f"{path}: wanted a .toml, .yaml or .json file, got {path.suffix or 'no ending'}"
            )
        try:
            values = parse(_read_small(path))
        except OSError as error:
            raise PolicyError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise PolicyError(f"{path}: {error}") from None
        if values is None:      # an empty YAML file
            values = {}
        if not isinstance(values, dict):
            raise PolicyError(f"{path}: wanted a table of parameters, got {type(values).__name__}")
        try:
            name = values.pop("preset", "default")
            values.pop("provenance", None)
            return cls.preset(name, **{str(key): value for key, value in values.items()})
        except (PolicyError, UnknownNameError) as error:
            raise PolicyError(f"{path}: {error}") from None

    def replace(self, /, **overrides: Any) -> Self:
        """This policy with some parameters changed; sections merge.

        `tool_limits` are one parameter: what is given takes the place of all there were.

        >>> Policy().replace(feedback={"round_cost": 0.2}).feedback.round_cost
        0.2
        >>> Policy(tool_limits={"ls": 3}).replace(tool_limits={"ps": "poll"}).tool_limits
        (('ps', 'poll'),)
        """
        return self.model_copy(update=overrides)

    def as_json(self) -> dict[str, Any]:
        """All parameters as JSON values; functions as their import paths.

        Raises
        ------
        PolicyError
            No import path leads to a function; the message names it.
        """
        for function in functions_of(self):
            function.import_path        # noqa: B018   raises; pydantic would wrap the exception
        return super().as_json()

    def record(self) -> np.ndarray:
        """The packed record that kernels read: one row of dtype ``_records.POLICY``."""
        from cellium_fast import _ingest

        record = np.zeros(1, _records.POLICY)
        row = record[0]
        for name in ("ema_alpha", "empty_is_unproductive", "stale_is_unproductive",
                     "match_results", "newest_run_only", "see_through_volatile", "slight_result",
                     "slight_error", "near_duplicate", "zero_tokens_unknown",
                     "compress_cooldown", "repeat_interval", "n_step",
                     "gamma"):
            row[name] = getattr(self, name)
        row["count_failed_rounds"] = self.count_failures == "rounds"
        row["count_round_cycles"] = self.count_cycles == "rounds"
        row["compress_tries"] = ANY_NUMBER if self.compress_tries is None else self.compress_tries
        row["limited_tool_count"] = len(self.tool_limits)
        for place, (tool, limit) in enumerate(self.tool_limits):
            row["limited_tools"][place] = _records.mix(_ingest.hash_tool(tool))
            row["tool_limits"][place] = limit if isinstance(limit, int) else TOOL_LIMITS[limit]
        row["frequent_tool_count"] = len(self.frequent_tools)
        for place, tool in enumerate(self.frequent_tools):
            row["frequent_tools"][place] = _records.mix(_ingest.hash_tool(tool))
        row["tie_break"] = _records.TIE_BREAKS.index(self.tie_break)
        row["backward_credit"] = self.credit == "newest"
        row["threshold_update"] = self.update == "one_side"
        row["learn_from_all"] = self.learn_from == "all"
        row["propensities"] = self.propensities
        for place, rule in enumerate(self.user_rules):
            bit = np.uint32(1 << place)
            row["user_action_rules"][[*rule.actions]] |= bit
            row["user_forcing"] |= bit * rule.forces
        for place, name in enumerate(_rules.RULES):
            _fill_rule(row, place, name, getattr(self.rules, name))
        if not self.loop_detection:
            row["rules_enabled"] &= ~np.uint32(_rules.LOOP_RULES)
        for name, value in self.bias:
            row[name if name.startswith("cold") else f"bias_{name}"] = value
        for name, value in self.feedback:
            row[name] = value
        self.posterior.fill(row["prior"])
        return record


# What rules have in common, and kernels read from masks.
SWITCHES = frozenset({*ProposingRule.model_fields, *LastResort.model_fields})


def _fill_rule(row: np.void, bit: int, name: str, rule: Rule) -> None:
    row["rules_enabled"] |= np.uint32(rule.enabled << bit)
    alone = isinstance(rule, ProposingRule) and rule.alone
    row["rules_alone"] |= np.uint32(alone << bit)
    last_resort = isinstance(rule, LastResort) and rule.after_redirect
    row["rules_after_redirect"] |= np.uint32(last_resort << bit)
    for action in rule.actions:
        row["action_rules"][action] |= np.uint32(1 << bit)
    for parameter, value in rule:
        if parameter not in SWITCHES:
            row[f"{name}_{parameter}"] = math.inf if value is None else value


def _read_small(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"wanted at most {LARGEST_FILE:,} bytes, there are more")
    return data


def _parse_toml(text: bytes) -> Any:
    import tomllib

    return tomllib.loads(text.decode())


def _parse_yaml(text: bytes) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            # A few lines of merges of merges are more than any memory holds.
            super().flatten_mapping(node)
            if len(node.value) > MOST_KEYS:
                raise ValueError(f"wanted at most {MOST_KEYS:,} keys in a mapping")

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"a value does not fit its tag ({error})") from None    # "!!int ''"


def _parse_json(text: bytes) -> Any:
    import orjson

    return orjson.loads(text)


ANY_NUMBER = 256        # of tries: kernels count to 255
LARGEST_FILE = 1 << 16  # bytes of a policy file: parsers take the square of a length for some
MOST_KEYS = 1_000       # keys of a mapping of a YAML file, those merged into it included

PARSERS = {
    ".toml": _parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": _parse_json,
}


# What differs from the default policy.
CELLIUM: dict[str, Any] = {
    "empty_is_unproductive": True,
    "stale_is_unproductive": False,
    "match_results": False,
    "newest_run_only": False,
    "see_through_volatile": False,
    "count_failures": "calls",
    "count_cycles": "calls",
    "zero_tokens_unknown": False,
    "compress_cooldown": 1,
    "compress_tries": None,
    "repeat_interval": 1,
    "rules": {
        "output_loop": {"after_redirect": False, "idle_only": False},
        "context_exhausted": {"rounds": 1},
        "failure_wall": {"after_redirect": False},
        "bad_cycle": {"after_redirect": False},
        "round_limit": {"enabled": False},
        "true_stagnation": {"enabled": True, "after_redirect": False, "trend": -0.3},
        "context_high": {"saturation": 0.5},
        "context_critical": {"actions": ("redirect",), "alone": False},
        "failure_chain": {"actions": ("retry", "redirect"), "alone": False, "failures": 4},
        "prolonged_stagnation": {"actions": ("redirect",)},
        "tool_cycle": {"alone": False},
        "tool_repetition": {"alone": False},
        "moderate_stagnation": {"enabled": False},
        "slow_progress": {"enabled": False},
        "progressing": {"progress": None, "yields": False},
        **{name: {"enabled": False} for name in _rules.RULES[16:]},
    },
    "feedback": {"failure_reward": 0.0},
    "credit": "newest",
    "update": "one_side",
    "posterior": {"decay_target": 1.0},
}
PRESETS: dict[str, dict[str, Any]] = {"default": {}, "cellium": CELLIUM}
