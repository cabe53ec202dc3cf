"""Decorators, the objects they make, import paths, and these in policies."""

import copy
import inspect
import json
import pickle
import subprocess
import sys

import functions_of_users
import numpy as np
import pytest
import yaml
from functions_of_users import (
    Inside,
    given_up,
    going_on,
    half_full,
    stuck_long,
    thrifty,
    when_stuck,
)

from cellium_fast import Action, Fleet, Policy, PolicyError, bias, reward, rule
from cellium_fast._step import FEATURES_DTYPE, feature_record
from cellium_fast.user_code import compiled, functions_of
from cellium_fast.user_functions import RoundOutcome, UserBias, UserReward, UserRule

PATHS = {
    "user_rules": ["functions_of_users:stuck_long", "functions_of_users:given_up"],
    "user_reward": "functions_of_users:thrifty",
    "user_bias": ["functions_of_users:when_stuck", "functions_of_users:going_on"],
}
WITH_ALL = {
    "user_rules": (stuck_long, given_up), "user_reward": thrifty,
    "user_bias": (when_stuck, going_on),
}


def features(**values):
    made = np.zeros(1, FEATURES_DTYPE)
    for name, value in values.items():
        made[name] = value
    return feature_record(made.tobytes())


def line_of(text, function=None):
    """Where this text stands in the file of a function, or in this one."""
    path = inspect.getsourcefile(function or line_of)
    with open(path, encoding="utf-8") as file:
        lines = [number for number, line in enumerate(file, 1) if text in line]
    return f"{path}:{lines[0]}"


def local_rule():
    @rule(proposes="retry")
    def local(features):
        return True

    return local


def inner_function():
    def inner(features):
        return 0.0

    return inner


# --- objects --------------------------------------------------------------------------------------
def test_a_rule_has_what_it_was_given():
    assert isinstance(stuck_long, UserRule)
    assert (stuck_long.name, stuck_long.actions, stuck_long.forces) == (
        "stuck_long", (Action.REDIRECT,), False
    )
    assert (given_up.name, given_up.actions, given_up.forces, given_up.reason) == (
        "hopeless", (Action.TERMINATE,), True, "nothing helps"
    )
    assert half_full.actions == (Action.REDIRECT, Action.COMPRESS)


def test_a_reason_is_safe_text_from_the_docstring_or_the_name():
    assert stuck_long.reason == "Nothing has changed (for long)"
    assert half_full.reason == "half full"

    @rule(proposes="retry")
    def wordy(features):
        """A line that goes on and on, and then on and on, until it is much too long for one."""
        return True

    assert len(wordy.reason) <= 80 and wordy.reason.endswith("…")


def test_a_reward_and_a_bias_have_names():
    assert isinstance(thrifty, UserReward) and thrifty.name == "thrifty"
    assert functions_of_users.as_told.name == "told"
    assert isinstance(when_stuck, UserBias) and when_stuck.action == Action.REDIRECT
    assert (going_on.name, going_on.action) == ("steady", Action.CONTINUE)


def test_they_are_still_functions():
    assert stuck_long(features(stuck_iterations=4)) is True
    assert stuck_long(features(stuck_iterations=3)) is False
    outcome = RoundOutcome(reward=0.5, success=1, told=-1, calls=1, decision_stuck=0)
    assert thrifty(features(context_saturation=1.0), outcome) == 0.25
    assert stuck_long.__doc__.startswith("Nothing has changed")
    assert (stuck_long.__module__, stuck_long.__qualname__) == ("functions_of_users", "stuck_long")
    assert str(inspect.signature(thrifty)) == "(features, outcome)"


def test_they_are_told_by_their_names():
    assert repr(given_up) == "<UserRule hopeless>"
    assert repr(thrifty) == "<UserReward thrifty>"


def test_they_are_frozen():
    with pytest.raises(AttributeError, match="<UserRule hopeless> is frozen, reason cannot be set"):
        given_up.reason = "another"
    with pytest.raises(AttributeError, match="frozen, name cannot be deleted"):
        del given_up.name


@pytest.mark.parametrize("one", [stuck_long, thrifty, when_stuck, Inside.of_a_class])
def test_copies_and_pickles_are_the_same_object(one):
    assert copy.copy(one) is one and copy.deepcopy(one) is one
    assert pickle.loads(pickle.dumps(one)) is one
    assert {one: 1}[one] == 1 and one != object()


# --- refusals -------------------------------------------------------------------------------------
def one_parameter(features):
    return True


def two_parameters(features, outcome):
    return True


async def waits(features):
    return True


def yields(features):
    yield True


def with_default(features, limit=3):
    return True


def with_more(features, *more):
    return True


def with_keyword(features, *, limit):
    return True


REFUSED = [
    (rule(proposes="stop"), one_parameter, "proposes: wanted one of continue, retry, redirect"),
    (rule(proposes=("retry", 7)), one_parameter, "proposes: wanted a code in 0..4 or a name"),
    (rule(proposes=()), one_parameter, "proposes: wanted at least one action, got none"),
    (rule(proposes=2.5), one_parameter, "proposes: 'float' object is not iterable"),
    (rule(proposes=True), one_parameter, "proposes: wanted a code in 0..4 or a name, got True"),
    (rule(forces="no"), one_parameter, "forces: wanted one of continue"),
    (rule(forces=("retry", "redirect")), one_parameter, "forces: wanted one action, got ('retry'"),
    (rule(), one_parameter, "wanted one of proposes and forces, got neither"),
    (rule(proposes=1, forces=1), one_parameter, "wanted one of proposes and forces, got both"),
    (rule(proposes=1, name="two words"), one_parameter, "name: wanted an identifier of at most 40"),
    (rule(proposes=1, name="n" * 41), one_parameter, "name: wanted an identifier of at most 40"),
    (rule(proposes=1, name="größe"), one_parameter, "name: wanted an identifier of at most 40"),
    (rule(proposes=1, name=3), one_parameter, "name: wanted an identifier of at most 40"),
    (rule(proposes=1, name="tool_cycle"), one_parameter, "name: wanted a name that no built-in"),
    (rule(proposes=1, reason=" "), one_parameter, "reason: wanted text of 1 to 80 characters, got"),
    (rule(proposes=1, reason="r" * 81), one_parameter, "reason: wanted text of 1 to 80 characters"),
    (rule(proposes=1, reason=1), one_parameter, "reason: wanted text of 1 to 80 characters, got 1"),
    (rule(proposes=1), two_parameters, "@rule: wanted (features) and no other parameter, got (fea"),
    (rule(proposes=1), with_default, "@rule: wanted (features) and no other parameter, got"),
    (rule(proposes=1), with_more, "@rule: wanted (features) and no other parameter, got"),
    (rule(proposes=1), with_keyword, "@rule: wanted (features) and no other parameter, got"),
    (rule(proposes=1), waits, "@rule: wanted a plain function, it is async"),
    (rule(proposes=1), yields, "@rule: wanted a plain function, it is a generator"),
    (reward, one_parameter, "@reward: wanted (features, outcome) and no other parameter"),
    (reward(name=""), two_parameters, "name: wanted an identifier"),
    (bias("stop"), one_parameter, "@bias: action: wanted one of continue"),
    (bias(None), one_parameter, "@bias: action: wanted a code in 0..4 or a name, got None"),
    (bias(2), two_parameters, "@bias: wanted (features) and no other parameter"),
    (rule, one_parameter, "wanted @rule(proposes=...) or @rule(forces=...), got @rule alone"),
    (bias, one_parameter, 'wanted @bias("redirect") or another action, got @bias alone'),
]


@pytest.mark.parametrize(("decorate", "function", "problem"), REFUSED)
def test_what_cannot_be_is_refused_with_function_file_and_line(decorate, function, problem):
    with pytest.raises(PolicyError) as caught:
        decorate(function)
    place = line_of(f"def {function.__name__}(")
    assert str(caught.value).startswith(f"{place}: {function.__name__}: ")
    assert problem in str(caught.value)


def test_the_line_is_that_of_the_definition_and_not_of_its_decorators():
    with pytest.raises(PolicyError) as caught:
        rule(proposes="retry")(half_full)
    place = line_of("def half_full", half_full.function)
    assert str(caught.value) == f"{place}: half_full: is decorated twice, @rule the second time"


@pytest.mark.parametrize(("given", "problem"), [
    (len, "len: @rule: wanted a plain function, got a builtin_function_or_method"),
    (functions_of_users.doubled, "wanted a plain function, got a CPUDispatcher; leave out @njit"),
    (lambda features: True, "<lambda>: name: wanted an identifier of at most 40 characters"),
    (5, "5: name: wanted"),
])
def test_what_is_no_function_with_a_name_is_refused(given, problem):
    with pytest.raises(PolicyError) as caught:
        rule(proposes="retry")(given)
    assert problem in str(caught.value) or "wanted a plain function" in str(caught.value)


# --- import paths ---------------------------------------------------------------------------------
def test_an_import_path_leads_back():
    assert stuck_long.import_path == "functions_of_users:stuck_long"
    assert given_up.import_path == "functions_of_users:given_up"      # not by its name in decisions
    assert Inside.of_a_class.import_path == "functions_of_users:Inside.of_a_class"


def test_a_function_within_a_function_has_none():
    local = local_rule()
    with pytest.raises(PolicyError) as caught:
        _ = local.import_path
    assert str(caught.value) == (
        f"@rule local ({line_of('def local(features)')}): wanted a function that can be imported "
        "again: it is defined within a function; define it at the top of a module"
    )
    with pytest.raises(PolicyError, match="can be imported again"):
        pickle.dumps(local)


def test_a_function_whose_name_was_given_away_has_none(monkeypatch):
    monkeypatch.setattr(functions_of_users, "stuck_long", half_full)
    with pytest.raises(PolicyError, match="functions_of_users:stuck_long leads to another one"):
        _ = stuck_long.import_path
    monkeypatch.delattr(functions_of_users, "stuck_long")
    with pytest.raises(PolicyError, match="there is no stuck_long in functions_of_users; keep "):
        _ = stuck_long.import_path


# --- policies -------------------------------------------------------------------------------------
def test_a_policy_takes_objects_and_import_paths():
    assert Policy(**WITH_ALL) == Policy(**PATHS)
    assert Policy(**PATHS).user_rules == (stuck_long, given_up)
    assert Policy(**PATHS).user_reward is thrifty
    assert hash(Policy(**PATHS)) == hash(Policy(**WITH_ALL))
    assert Policy().user_rules == () and Policy().user_reward is None and Policy().user_bias == ()
    assert Policy(**WITH_ALL) != Policy()


def test_a_policy_keeps_them_when_something_else_changes():
    policy = Policy(**WITH_ALL)
    assert policy.replace(n_step=1).user_rules == (stuck_long, given_up)
    assert policy.replace(user_rules=[half_full]).user_rules == (half_full,)
    assert policy.replace(user_reward=None).user_reward is None
    local = local_rule()
    assert Policy(user_rules=[local]).replace(n_step=1).user_rules == (local,)
    assert copy.deepcopy(policy) == policy and pickle.loads(pickle.dumps(policy)) == policy


def test_a_policy_as_json_names_them_by_import_path():
    told = Policy(**WITH_ALL).as_json()
    assert {name: told[name] for name in PATHS} == PATHS
    assert Policy(**json.loads(json.dumps(told))) == Policy(**WITH_ALL)


def test_a_policy_as_json_refuses_a_function_that_cannot_be_imported():
    policy = Policy(user_rules=[stuck_long, local_rule()])
    with pytest.raises(PolicyError, match=r"^@rule local \(.*: it is defined within a function"):
        policy.as_json()


@pytest.mark.parametrize("ending", ["json", "yaml", "toml"])
def test_a_policy_file_names_them_by_import_path(tmp_path, ending):
    path = tmp_path / f"policy.{ending}"
    rules, biases = map(json.dumps, (PATHS["user_rules"], PATHS["user_bias"]))
    path.write_text({
        "json": json.dumps(PATHS),
        "yaml": yaml.safe_dump(PATHS),
        "toml": f'user_rules = {rules}\nuser_reward = "{PATHS["user_reward"]}"\n'
                f"user_bias = {biases}\n",
    }[ending])
    assert Policy.from_file(path) == Policy(**WITH_ALL)


def test_a_module_is_imported_when_a_policy_names_it(tmp_path, monkeypatch):
    (tmp_path / "seldom_used.py").write_text(
        "from cellium_fast import rule\n"
        "@rule(proposes='retry')\ndef always(features):\n    return True\n"
    )
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert Policy(user_rules=["seldom_used:always"]).user_rules[0].name == "always"
    with pytest.raises(PolicyError, match="cannot import broken_module: ZeroDivisionError: div"):
        Policy(user_rules=["broken_module:always"])
    # A script that ends by itself is no reason to end the program that reads a policy.
    (tmp_path / "a_script.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(PolicyError, match="cannot import a_script: SystemExit: 3"):
        Policy(user_rules=["a_script:always"])
    monkeypatch.delitem(sys.modules, "seldom_used")


@pytest.mark.parametrize(("field", "given", "problem"), [
    ("user_rules", ["no_such_module:x"],
     "user_rules.0: no_such_module:x: cannot import no_such_module: ModuleNotFoundError: No module "
     "named 'no_such_module'; is it installed, or its directory in PYTHONPATH?"),
    ("user_rules", ["functions_of_users:nothing"], "there is no nothing in functions_of_users"),
    ("user_rules", ["functions_of_users:Inside.nothing"], "there is no nothing in functions_of"),
    ("user_rules", ["functions_of_users:thrifty"],
     "wanted a function decorated with @rule, got <UserReward thrifty>"),
    ("user_rules", ["functions_of_users:not_decorated"],
     "wanted a function decorated with @rule, got <built-in function len>"),
    ("user_rules", ["functions_of_users.stuck_long"], 'wanted an import path such as "package.'),
    ("user_rules", ["functions_of_users:"], 'wanted an import path such as "package.module:name"'),
    ("user_rules", ["../evil:x"], 'wanted an import path such as "package.module:name"'),
    ("user_rules", ["m" * 600 + ":x"], 'wanted an import path such as "package.module:name"'),
    ("user_rules", [len], "wanted a function decorated with @rule, or"),
    ("user_rules", [when_stuck], "decorated with @rule, or \"package.module:name\", got <UserBias"),
    ("user_rules", "functions_of_users:stuck_long", "user_rules: wanted a valid tuple"),
    ("user_rules", stuck_long, "user_rules: wanted a valid tuple"),
    ("user_rules", [stuck_long, half_full, stuck_long],
     "stuck_long: wanted rules of different names, there are several of this one"),
    ("user_reward", stuck_long, "user_reward: wanted a function decorated with @reward, or"),
    ("user_reward", [thrifty], "user_reward: wanted a function decorated with @reward, or"),
    ("user_bias", [when_stuck, when_stuck], "redirect: wanted one bias of an action"),
    ("user_bias", [None], "user_bias.0: wanted a function decorated with @bias"),
    ("propensities", 1, "propensities: wanted a valid boolean"),
])
def test_a_policy_says_what_is_wrong_with_a_function(field, given, problem):
    with pytest.raises(PolicyError) as caught:
        Policy(**{field: given})
    assert problem in str(caught.value)
    assert caught.value.problems[0][0].startswith(field)


def test_a_policy_has_at_most_sixteen_rules():
    def named(number):
        return rule(proposes="retry", name=f"rule_{number}")(one_parameter)

    assert len(Policy(user_rules=[named(number) for number in range(16)]).user_rules) == 16
    with pytest.raises(PolicyError, match="user_rules: wanted at most 16 rules, got 17"):
        Policy(user_rules=[named(number) for number in range(17)])


# --- saved ----------------------------------------------------------------------------------------
def test_a_snapshot_has_them_by_import_path(tmp_path):
    policy = Policy(**WITH_ALL)
    Fleet(policies={"mine": policy}).save(tmp_path / "fleet")
    assert Fleet.load(tmp_path / "fleet").policies["mine"] == policy


def test_a_snapshot_of_a_function_that_cannot_be_imported_is_refused(tmp_path):
    fleet = Fleet(policies={"mine": Policy(user_rules=[local_rule()])})
    with pytest.raises(PolicyError, match=r"@rule local .* wanted a function that can be imported"):
        fleet.save(tmp_path / "fleet")
    assert list(tmp_path.iterdir()) == []


def test_a_durable_fleet_has_them_by_import_path(tmp_path):
    with Fleet.open_durable(tmp_path, policies={"mine": Policy(user_rules=[half_full])}) as fleet:
        fleet.set_policy("mine", Policy(**WITH_ALL))
    with Fleet.open_durable(tmp_path) as fleet:
        assert fleet.policies["mine"] == Policy(**WITH_ALL)


def test_a_durable_fleet_refuses_a_function_that_cannot_be_imported(tmp_path):
    local = Policy(user_bias=[bias("retry")(inner_function())])
    with pytest.raises(PolicyError, match=r"@bias inner .* wanted a function that can be imported"):
        Fleet.open_durable(tmp_path / "fleet", policies={"mine": local})
    assert list((tmp_path / "fleet").iterdir()) == []
    with Fleet.open_durable(tmp_path / "fleet", policies={"mine": Policy()}) as fleet:
        before = {path.name: path.read_bytes() for path in fleet.directory.iterdir()}
        with pytest.raises(PolicyError, match=r"@bias inner .* wanted a function that can be imp"):
            fleet.set_policy("mine", local)
        assert fleet.policies["mine"] == Policy()
        assert before == {path.name: path.read_bytes() for path in fleet.directory.iterdir()}


# --- what kernels get -----------------------------------------------------------------------------
def test_a_policy_without_functions_needs_no_numba():
    code = (
        "import sys, cellium_fast as c\n"
        "from cellium_fast.user_code import compiled\n"
        "@c.rule(proposes='retry')\ndef a(features):\n    return True\n"
        "code = compiled(c.Policy())\n"
        "print(code.rules, code.reward, code.bias, code.cannot_fail)\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "() None (None, None, None, None, None) True", "False"
    ]


def test_compiled_code_of_a_policy_has_its_rules_in_order_and_masks_of_actions():
    policy = Policy(user_rules=[half_full, given_up, stuck_long], **{
        name: value for name, value in WITH_ALL.items() if name != "user_rules"
    })
    code = compiled(policy)
    assert [one.source for one in code.rules] == [half_full, given_up, stuck_long]
    record = policy.record()[0]
    assert record["user_action_rules"].tolist() == [0, 0, 0b101, 0b001, 0b010]
    assert record["user_forcing"] == 0b010
    assert code.reward.source is thrifty
    assert [one and one.source for one in code.bias] == [going_on, None, when_stuck, None, None]
    assert not code.cannot_fail             # a reward may be out of range
    assert compiled(Policy(user_rules=[half_full])).cannot_fail
    assert compiled(policy).rules[0] is code.rules[0]
    assert functions_of(policy) == (half_full, given_up, stuck_long, thrifty, when_stuck, going_on)
