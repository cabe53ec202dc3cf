"""`Policy`: its numbers, presets, files and refusals."""

import math
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from policy_tables import (
    CELLIUM,
    DEFAULT,
    FORCING,
    LAST_RESORTS,
    NONSENSE,
    PROPOSING,
    STREAKS,
    WINDOW_COUNTS,
    flat,
    nested,
)
from pydantic import BaseModel

from cellium_fast import Action, Policy, PolicyError, Posterior, UnknownNameError, _rules


def refused(words: tuple[str, ...], **parameters: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**parameters)
    for word in words:
        assert word in str(caught.value)


# --- the numbers themselves -----------------------------------------------------------------------
def test_default_has_the_numbers_of_the_spec():
    assert flat(Policy().model_dump()) == DEFAULT


def test_cellium_differs_from_default_in_what_the_spec_says_and_nothing_else():
    default, cellium = flat(Policy().model_dump()), flat(Policy.preset("cellium").model_dump())
    assert {path: cellium[path] for path in cellium if cellium[path] != default[path]} == CELLIUM
    assert cellium.keys() == default.keys()


def test_preset_default_is_the_plain_policy():
    assert Policy.preset("default") == Policy()


def test_rules_stand_in_the_order_of_their_bits():
    assert tuple(Policy().rules.model_dump()) == tuple(_rules.RULES)


def test_defaults_are_made_without_a_check_but_would_pass_it():
    assert Policy.defaults() == Policy() == Policy(**Policy.defaults().model_dump())
    assert Policy.defaults().model_fields_set == set()


def test_one_thread_at_a_time_builds_the_validators(monkeypatch):
    inside, most = [], []

    def build(cls, **options):
        inside.append(threading.get_ident())
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()

    monkeypatch.setattr(BaseModel, "model_rebuild", classmethod(build))
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            threads.submit(Policy.model_rebuild)
    assert most == [1] * 20


# --- merging -------------------------------------------------------------------------------------
def test_sections_merge_over_the_default():
    policy = Policy(rules={"output_loop": {"repeats": 4}}, feedback={"round_cost": 0.2})
    changed = {"rules.output_loop.repeats": 4, "feedback.round_cost": 0.2}
    assert flat(policy.model_dump()) == DEFAULT | changed


def test_overrides_merge_over_a_preset():
    policy = Policy.preset("cellium", rules={"tool_cycle": {"compress_from": 0.4}}, n_step=2)
    changed = {"rules.tool_cycle.compress_from": 0.4, "n_step": 2}
    assert flat(policy.model_dump()) == DEFAULT | CELLIUM | changed


def test_overriding_a_preset_leaves_the_preset_as_it_was():
    Policy.preset("cellium", rules={"context_high": {"saturation": 0.9}}, credit="forward")
    assert flat(Policy.preset("cellium").model_dump()) == DEFAULT | CELLIUM


def test_replace_merges_and_leaves_the_original():
    first = Policy.preset("cellium")
    second = first.replace(bias={"retry_slow": 0.5}).replace(rules={"bad_cycle": {"stuck": 9}})
    changed = {"bias.retry_slow": 0.5, "rules.bad_cycle.stuck": 9}
    assert flat(second.model_dump()) == DEFAULT | CELLIUM | changed
    assert first == Policy.preset("cellium")


def test_replace_with_nothing_gives_an_equal_policy():
    policy = Policy.preset("cellium", frequent_tools=("ls", "cat"))
    assert policy.replace() == policy


def test_a_section_may_be_a_model():
    policy = Policy.preset("cellium", posterior=Posterior(alpha=3.0, decay_target=1.0))
    assert flat(policy.model_dump()) == DEFAULT | CELLIUM | {"posterior.alpha": 3.0}


def test_actions_may_be_names_codes_or_actions():
    given = [["retry", "compress"], [1, 3], (Action.RETRY, Action.COMPRESS)]
    policies = [Policy(rules={"tool_cycle": {"actions": actions}}) for actions in given]
    assert policies[0] == policies[1] == policies[2]
    assert policies[0].rules.tool_cycle.actions == (Action.RETRY, Action.COMPRESS)


# --- frozen --------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["n_step", "rules", "rules.output_loop.repeats", "tool_limits",
                                  "bias.retry_slow", "posterior.alpha", "feedback.round_cost"])
def test_policies_are_frozen(path):
    policy = Policy()
    *sections, name = path.split(".")
    part: Any = policy
    for section in sections:
        part = getattr(part, section)
    with pytest.raises(PolicyError, match=f"{name}: parameters are frozen"):
        setattr(part, name, getattr(part, name))
    assert policy == Policy()


def test_policies_cannot_gain_attributes():
    with pytest.raises(ValueError):
        Policy().threshold = 3


# --- refusals ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in NONSENSE for value in values]
)
def test_nonsense_is_refused_with_field_and_value(path, value):
    words = (path,) if isinstance(value, list | dict) else (path, repr(value))
    refused(words, **nested(path, value))


@pytest.mark.parametrize("path", ["n_step", "ema_alpha", "rules.output_loop.repeats",
                                  "posterior.alpha"])
def test_a_bool_is_no_number(path):
    refused((path, "True"), **nested(path, True))


@pytest.mark.parametrize("path", [
    "treshold", "rules.output_lop", "rules.output_loop.repeat", "bias.terminate", "posterior.gamma",
    "feedback.cost", "name",
])
def test_unknown_keys_are_named(path):
    refused((f"{path}: there is no such parameter",), **nested(path, 1))


@pytest.mark.parametrize("name", ["self", "cls"])
def test_unknown_keys_that_are_python_words_are_named_too(name):
    refused((name, "no such parameter"), **{name: 1})


def test_all_that_is_wrong_is_told_at_once():
    refused(("n_step", "gamma", "rules.x"), n_step=9, gamma=9, rules={"x": 1})


@pytest.mark.parametrize(("rule", "wrong"), [
    ("tool_cycle", {"alone": True, "actions": []}),
    ("idle", {"actions": []}),
    ("true_stagnation", {"pause_from": 20}),
])
def test_what_is_wrong_with_a_section_as_a_whole_is_told_at_its_path(rule, wrong):
    with pytest.raises(PolicyError) as caught:
        Policy(rules={rule: wrong})
    assert [field for field, _ in caught.value.problems] == [f"rules.{rule}"]


@pytest.mark.parametrize("rule", FORCING)
@pytest.mark.parametrize("actions", [[], ["retry", "terminate"]])
def test_a_forcing_rule_forces_exactly_one_action(rule, actions):
    refused((rule, "exactly one"), rules={rule: {"actions": actions}})


@pytest.mark.parametrize("rule", [*PROPOSING, "progressing"])
def test_an_action_stands_once_in_a_rule(rule):
    refused((rule, "twice"), rules={rule: {"actions": ["retry", "retry"]}})


@pytest.mark.parametrize("rule", FORCING)
def test_a_forcing_rule_may_force_another_action(rule):
    policy = Policy(rules={rule: {"actions": ["compress"]}})
    assert getattr(policy.rules, rule).actions == (Action.COMPRESS,)


@pytest.mark.parametrize("name", ["Default", "", "thompson", None, 5])
def test_unknown_presets_are_refused(name):
    with pytest.raises(UnknownNameError, match="preset") as caught:
        Policy.preset(name)
    assert repr(name) in str(caught.value)
    assert "'default', 'cellium'" in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [
    ("alpha", -1), ("beta", math.nan), ("decay", 2), ("decay_every", -1), ("decay_target", "x"),
    ("gamma", 1),
])
def test_a_posterior_of_its_own_is_checked_with_our_exception(name, value):
    with pytest.raises(PolicyError) as caught:
        Posterior(**{name: value})
    assert name in str(caught.value)


# --- files ---------------------------------------------------------------------------------------
FILES = {
    "p.toml": 'preset = "cellium"\nn_step = 2\n[rules.output_loop]\nrepeats = 3\n'
              '[rules.failure_chain]\nactions = ["retry"]\n',
    "p.yaml": "preset: cellium\nn_step: 2\nrules:\n  output_loop: {repeats: 3}\n"
              "  failure_chain:\n    actions: [retry]\n",
    "p.yml": "{preset: cellium, n_step: 2, rules: {output_loop: {repeats: 3}, "
             "failure_chain: {actions: [retry]}}}",
    "p.json": '{"preset": "cellium", "n_step": 2, "rules": {"output_loop": {"repeats": 3}, '
              '"failure_chain": {"actions": ["retry"]}}}',
}


@pytest.fixture
def written(tmp_path):
    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_policy(written, name):
    expected = Policy.preset("cellium", n_step=2, rules={
        "output_loop": {"repeats": 3}, "failure_chain": {"actions": ["retry"]},
    })
    path = written(name, FILES[name])
    assert Policy.from_file(path) == expected
    assert Policy.from_file(str(path)) == expected


@pytest.mark.parametrize(("name", "content"), [
    ("a.toml", "n_step = 1"), ("a.yaml", "n_step: 1"), ("a.json", '{"n_step": 1}'),
    ("A.JSON", '{"n_step": 1}'), ("a.json", '{"preset": "default", "n_step": 1}'),
])
def test_a_file_without_preset_lies_over_the_default(written, name, content):
    assert Policy.from_file(written(name, content)) == Policy(n_step=1)


def test_what_a_policy_dumps_as_json_reads_back(written):
    policy = Policy.preset("cellium", frequent_tools=["ls"], posterior={"alpha": 0.1})
    assert Policy.from_file(written("p.json", policy.model_dump_json())) == policy


@pytest.mark.parametrize(("name", "content", "word"), [
    ("a.toml", "n_step =", "Invalid value"),
    ("a.toml", b"\xff", "decode"),
    ("a.yaml", "a: [", "while parsing"),
    ("a.yaml", "!!python/object/apply:os.getcwd []", "python/object"),
    ("a.yaml", "- n_step", "wanted a table"),
    ("a.json", "{", "end of data"),
    ("a.json", b"\xff\xfe", ""),
    ("a.json", "[1]", "wanted a table"),
    ("a.json", '"cellium"', "wanted a table"),
    ("a.json", '{"n_step": 9}', "n_step"),
    ("a.json", '{"rules": {"output_loop": {"repeat": 9}}}', "rules.output_loop.repeat"),
    ("a.json", '{"unheard": 9}', "unheard"),
    ("a.json", '{"preset": "nope"}', "'nope'"),
    ("a.yaml", "preset: [cellium]", "preset"),
    ("a.yaml", "1: 2", "1: there is no such parameter"),
    ("a.yaml", "rules: {1: 2}", "rules.1"),
    ("a.yaml", "rules:", "rules"),
    ("a.ini", "n_step = 2", "wanted a .toml, .yaml or .json file, got .ini"),
    ("policy", "n_step: 2", "wanted a .toml, .yaml or .json file, got no ending"),
])
def test_a_bad_file_is_refused_with_its_path_and_what_is_wrong(written, name, content, word):
    path = written(name, content)
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    assert str(path) in str(caught.value)
    assert word in str(caught.value)


@pytest.mark.parametrize("name", ["name", "cls", "self"])
def test_an_unknown_key_in_a_file_is_refused_whatever_its_name(written, name):
    path = written("a.json", f'{{"{name}": "mine"}}')
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    assert str(path) in str(caught.value)
    assert name in str(caught.value).removeprefix(str(path))


def test_a_file_nested_too_deep_is_refused(written):
    path = written("a.yaml", "[" * sys.getrecursionlimit())
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    for name in ("none.toml", "folder.toml"):
        with pytest.raises(PolicyError) as caught:
            Policy.from_file(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


# --- limits of tools, and switches ---------------------------------------------------------------
LIMITS = (("ps", "poll"), ("ls", 3), ("top", "exempt"), ("cat", 254))


@pytest.mark.parametrize("given", [dict(LIMITS), LIMITS, list(map(list, LIMITS))])
def test_limits_of_tools_are_kept_as_pairs_in_the_order_given(given):
    policy = Policy(tool_limits=given)
    assert policy.tool_limits == LIMITS
    assert policy == Policy(tool_limits=dict(LIMITS)) != Policy()
    assert Policy().tool_limits == Policy.preset("cellium").tool_limits == ()


def test_limits_of_tools_are_replaced_as_a_whole():
    policy = Policy(tool_limits=LIMITS)
    assert policy.replace(tool_limits={"ls": 5}).tool_limits == (("ls", 5),)
    assert policy.replace(tool_limits={}) == Policy()
    assert policy.replace(n_step=2).tool_limits == policy.tool_limits == LIMITS
    assert Policy.preset("cellium", tool_limits={"ls": 5}).tool_limits == (("ls", 5),)


def test_what_is_given_as_limits_is_not_what_is_kept():
    given = {"ls": 3}
    policy = Policy(tool_limits=given)
    given["ls"] = given["ps"] = 4
    assert policy.tool_limits == (("ls", 3),)


@pytest.mark.parametrize("name", ["default", "cellium"])
def test_equal_policies_have_one_hash(name):
    policies = [
        Policy.preset(name, tool_limits=limits, frequent_tools=["ls"])
        for limits in (dict(LIMITS), LIMITS, dict(reversed(LIMITS)), {})
    ]
    assert hash(policies[0]) == hash(policies[1])
    assert len(set(policies)) == 3
    assert hash(policies[3]) == hash(Policy.preset(name, frequent_tools=["ls"]))


@pytest.mark.parametrize(("limits", "words"), [
    ({"run-tests": 0}, '"run-tests": wanted a number from 1 to 254, "poll" or "exempt", got 0'),
    *(({"a": 5, "ls": value},
       f'"ls": wanted a number from 1 to 254, "poll" or "exempt", got {value!r}')
      for value in (255, -1, 1.5, math.nan, "often", None, [], True, {"ls": 3})),
    ([("ls", 3), ("ps", 4), ("ls", 5)], '"ls": wanted one limit of a tool, got [3, 5]'),
    ({f"tool{place}": 5 for place in range(17)}, "wanted at most 16 tools, got 17"),
    ({1: 5}, "wanted the name of a tool as text, got 1"),
    ({None: 5}, "wanted the name of a tool as text, got None"),
    ([("ls", 3), ["ps"]], "wanted pairs of a tool and its limit, got ['ps']"),
    (["ls"], "wanted pairs of a tool and its limit, got 'ls'"),
    ("ls", "wanted a mapping of tools to limits, or pairs of these, got 'ls'"),
    (None, "wanted a mapping of tools to limits, or pairs of these, got None"),
])
def test_limits_that_are_refused_name_the_tool_and_what_is_wanted(limits, words):
    for make in (Policy, Policy().replace):
        with pytest.raises(PolicyError) as caught:
            make(tool_limits=limits)
        assert str(caught.value) == f"tool_limits: {words}"
        assert caught.value.problems == (("tool_limits", words),)


def test_a_record_holds_as_many_limits_as_are_allowed():
    limits = tuple((f"tool{place}", 5) for place in range(16))
    assert Policy(tool_limits=limits).tool_limits == limits


def test_what_limits_a_policy_has_reads_back(written):
    policy = Policy(tool_limits=LIMITS, compress_tries=None)
    assert Policy.from_file(written("p.json", policy.model_dump_json())) == policy


@pytest.mark.parametrize(("name", "content"), [
    ("p.toml", '[tool_limits]\nps = "poll"\nls = 3\ntop = "exempt"\ncat = 254\n'),
    ("p.yaml", "tool_limits: {ps: poll, ls: 3, top: exempt, cat: 254}"),
    ("p.yaml", "tool_limits:\n- [ps, poll]\n- [ls, 3]\n- [top, exempt]\n- [cat, 254]\n"),
    ("p.json", '{"tool_limits": {"ps": "poll", "ls": 3, "top": "exempt", "cat": 254}}'),
])
def test_limits_of_tools_in_a_file(written, name, content):
    assert Policy.from_file(written(name, content)) == Policy(tool_limits=LIMITS)


def test_a_number_for_a_tool_in_a_file_is_refused(written):
    path = written("p.yaml", "tool_limits: {1: 5}")
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    words = "tool_limits: wanted the name of a tool as text, got 1"
    assert str(caught.value) == f"{path}: {words}"


def test_compress_is_never_given_up_with_none():
    for name, expected in (("default", 2), ("cellium", None)):
        assert Policy.preset(name).compress_tries == expected
    assert Policy(compress_tries=None).replace(compress_tries=254).compress_tries == 254


@pytest.mark.parametrize("path", [*STREAKS, "context_exhausted.rounds"])
def test_the_ends_of_a_streak(path):
    for value in (1, 254):
        policy = Policy(**nested(f"rules.{path}", value))
        assert flat(policy.model_dump())[f"rules.{path}"] == value


@pytest.mark.parametrize("path", WINDOW_COUNTS)
def test_the_ends_of_a_count_in_the_window(path):
    for value in (1, 12):
        policy = Policy(**nested(f"rules.{path}", value))
        assert flat(policy.model_dump())[f"rules.{path}"] == value


@pytest.mark.parametrize("rule", [rule for rule in _rules.RULES if rule not in LAST_RESORTS])
def test_only_a_last_resort_waits_for_a_redirect(rule):
    refused(
        (f"rules.{rule}.after_redirect: there is no such parameter",),
        rules={rule: {"after_redirect": True}},
    )


@pytest.mark.parametrize("rule", [rule for rule in _rules.RULES if rule not in PROPOSING])
def test_alone_is_no_parameter_of_a_rule_that_it_could_not_change(rule):
    with pytest.raises(PolicyError, match=rf"rules.{rule}.alone: there is no such parameter"):
        Policy(rules={rule: {"alone": True}})


def test_a_rule_alone_proposes_something():
    with pytest.raises(PolicyError, match=r"rules.context_critical.*alone: wanted at least one"):
        Policy(rules={"context_critical": {"actions": []}})


def test_a_pause_is_a_range():
    with pytest.raises(PolicyError, match=r"true_stagnation.*pause_from: wanted no more than"):
        Policy(rules={"true_stagnation": {"pause_from": 16}})


def test_an_empty_file_is_the_default(written):
    assert Policy.from_file(written("a.yaml", "")) == Policy()
    assert Policy.from_file(written("a.toml", "")) == Policy()
