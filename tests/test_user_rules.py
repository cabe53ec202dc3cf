"""Rules, rewards and biases of users in every step: against the reference, and when they fail."""

import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numba
import numpy as np
import pytest
import rules_of_users as own
from conftest import COLUMNS, Agent, Pair, pack, random_policy, same_bits
from test_fuzz_fleet import digest, in_numbers

from cellium_fast import (
    Action,
    Fleet,
    HardConstraintRenderer,
    JournalError,
    Policy,
    Round,
    RoundBatch,
    SnapshotError,
    ToolCall,
    UserCodeError,
    _records,
    _rules,
    bias,
    rule,
)
from cellium_fast.cause import Cause, StopCause

PRESETS = ("cellium", "default")
TIE_BREAKS = ("thompson", "greedy", "first")
QUIET = {name: {"enabled": False} for name in _rules.RULES if name != "progressing"}


# --- against the reference -----------------------------------------------------------------------
def test_functions_of_users_equal_the_reference(rng):
    """Policies of all kinds side by side in one batch, so that groups of lanes have several."""
    seen, compared, dropped = Counter(), 0, 0
    for place in range(10):
        policies = {
            name: random_policy(
                rng, PRESETS[place % 2], tie_break=TIE_BREAKS[place % 3], **own.of_users(rng)
            )
            for name in "abc"
        } | {"plain": Policy.preset(PRESETS[place % 2])}
        pair = Pair(policies, seed=rng.getrandbits(64))
        alone = place % 5 == 0      # whole groups of one policy
        ids = [
            one for name in ("a" * 16 if alone else [*policies] * 4)
            for one in pair.open(1, policy=name, private=True, context_limit=30_000,
                                 round_limit=45)
        ]
        agents = [Agent(rng) for _ in ids]
        named = {one: policies["a" if alone else list(policies)[k % 4]]
                 for k, one in enumerate(ids)}
        for _ in range(50):
            decisions = pair.step(ids, [agent.round() for agent in agents])
            for one, mask in zip(ids, decisions.user_rules.tolist(), strict=True):
                for bit, mine in enumerate(named[one].user_rules):
                    seen[mine.name] += mask >> bit & 1
        pair.compare_private()
        compared += pair.compared
        dropped += pair.dropped
    assert set(+seen) == {one.name for one in own.RULES}
    assert compared > 5_000
    assert dropped <= 5


def numbers_of(decision):
    return in_numbers(decision), decision.user_rules, decision.propensity


def fleets_of(policies, seed, sessions):
    """Twice the same fleet, once with handles."""
    fleets = [Fleet(seed=seed, policies=policies) for _ in range(2)]
    names = [list(policies)[place % len(policies)] for place in range(sessions)]
    limits = {"context_limit": 30_000, "round_limit": 40}
    ids = [fleets[0].open(1, policy=name, private=True, **limits)[0] for name in names]
    handles = [fleets[1].session(policy=name, private=True, **limits) for name in names]
    return fleets, ids, handles


def test_one_session_alone_is_as_in_a_batch(rng):
    policies = {
        name: random_policy(rng, "default", **own.of_users(rng)) for name in ("a", "b", "c")
    } | {"plain": Policy()}
    fleets, ids, handles = fleets_of(policies, rng.getrandbits(64), 12)
    for turn in range(40):
        rounds = [
            Round(
                [ToolCall("ls", str(rng.randrange(3)), "x" * rng.randrange(40),
                          error=rng.random() < 0.3) for _ in range(rng.randrange(4))],
                context_tokens=600 * turn, success=rng.choice([None, True, False]),
            )
            for _ in ids
        ]  # fmt: skip
        decisions = fleets[0].step(ids, rounds)
        for place, handle in enumerate(handles):
            alone = handle.step(rounds[place])
            assert numbers_of(alone) == numbers_of(decisions[place])
    assert fleets[0]._memory.sessions.tobytes() == fleets[1]._memory.sessions.tobytes()


@pytest.mark.parametrize("want", [(), ("rules",), ("user_rules",), ("features", "reward")])
def test_what_is_asked_for_does_not_matter(want, rng):
    policies = {"a": random_policy(rng, "default", **own.of_users(rng)), "plain": Policy()}
    fleets = [Fleet(seed=4, policies=policies, threads=2) for _ in range(2)]
    agents = [Agent(rng) for _ in range(30)]
    ids = [[*fleet.open(15, policy="a"), *fleet.open(15, policy="plain")] for fleet in fleets]
    for _ in range(20):
        rounds = pack([agent.round() for agent in agents])
        whole = fleets[0].step(ids[0], rounds)
        part = fleets[1].step(ids[1], rounds, want=want)
        for name in (*want, "action", "candidates"):
            assert same_bits(getattr(whole, name), getattr(part, name))
    for fleet in fleets:
        assert digest(fleet)["sessions"] == digest(fleets[0])["sessions"]


def test_without_rules_of_users_the_mask_is_zero():
    fleet = Fleet()
    ids = fleet.open(5)
    for want in (None, ["user_rules"]):
        assert fleet.step(ids, RoundBatch(), want=want).user_rules.tolist() == [0] * 5
    assert fleet.session().step(Round()).user_rules == 0


# --- how rules of users act beside the built-in ones ----------------------------------------------
def decided(policy, rounds, **limits):
    """Decisions of one session, by both paths."""
    fleet, other = (Fleet(policies={"only": policy}) for _ in range(2))
    ids, handle = fleet.open(1, **limits), other.session(**limits)
    seen = []
    for given in rounds:
        decision = fleet.step(ids, [given])[0]
        alone = handle.step(given)
        assert (decision.action, decision.rules) == (alone.action, alone.rules)
        seen.append(alone)
    return seen


@rule(proposes="redirect", name="always_redirect", reason="always")
def redirecting(features):
    return features.round > 0


@rule(forces="retry", name="always_retry")
def retrying(features):
    return features.round > 0


@rule(forces="compress", name="always_compress")
def compressing(features):
    return features.round > 0


@rule(proposes="retry", name="offered_retry")
def offering(features):
    return features.round > 0


FULL = Round(context_tokens=990)
CALM = Round([ToolCall("read", "a", "text of a file, long enough to be news")])


def test_rules_of_users_force_before_all_others_and_in_their_order():
    policy = Policy(user_rules=(retrying, compressing), rules={"context_exhausted": {"rounds": 1}})
    [decision] = decided(policy, [FULL], context_limit=1_000)
    assert "context_exhausted" in decision.rules
    assert decision.rules[-2:] == ("always_retry", "always_compress")
    assert decision.candidates == (Action.RETRY,)
    other = policy.replace(user_rules=(compressing, retrying))
    assert decided(other, [FULL], context_limit=1_000)[0].action == Action.COMPRESS


def test_a_built_in_rule_that_forces_or_stands_alone_overrules_a_proposal():
    forced = Policy(user_rules=(offering,), rules={"context_exhausted": {"rounds": 1}})
    assert decided(forced, [FULL], context_limit=1_000)[0].candidates == (Action.TERMINATE,)
    alone = Policy(user_rules=(offering,))
    critical = Round(context_tokens=900)
    assert decided(alone, [critical], context_limit=1_000)[0].candidates == (Action.COMPRESS,)


def test_a_proposal_stands_beside_those_of_built_in_rules():
    [decision] = decided(Policy(rules=QUIET, user_rules=(offering,)), [CALM])
    assert decision.candidates == (Action.CONTINUE, Action.RETRY)   # it makes progress
    rules = QUIET | {"progressing": {"progress": None, "actions": ["continue"]}}
    silent = Policy(rules=rules, user_rules=(offering,), empty_is_unproductive=True)
    assert decided(silent, [Round()])[0].candidates == (Action.RETRY,)


@pytest.mark.parametrize(("mine", "suspects"), [(redirecting, False), (offering, True)])
def test_a_loop_is_only_suspected_while_no_rule_redirects(mine, suspects):
    same = [Round()] * 4
    plain = decided(Policy(), same)
    place = next(k for k, one in enumerate(plain) if "loop_suspected" in one.rules)
    seen = decided(Policy(user_rules=(mine,)), same)[place]
    assert ("loop_suspected" in seen.rules) == suspects


def test_redirects_of_a_user_s_rule_can_be_ignored():
    policy = Policy(rules=QUIET | {"redirects_ignored": {"enabled": True}},
                    user_rules=(redirecting,))
    same = [Round([ToolCall("ls", "a", "the same")])] * 12
    count = policy.rules.redirects_ignored.redirects
    stop = next(one for one in decided(policy, same) if one.action == Action.TERMINATE)
    assert stop.features.unheeded_redirects == count
    assert stop.rules[-2:] == ("redirects_ignored", "always_redirect")
    assert (stop.cause, stop.stop_cause) == (Cause.IGNORED, StopCause.POLICY)
    assert stop.evidence.rule == "always_redirect"


def test_loop_detection_does_not_switch_rules_of_users():
    policy = Policy(loop_detection=False, user_rules=(redirecting,))
    assert decided(policy, [CALM])[0].rules[-1] == "always_redirect"


def test_advice_of_different_rules_is_not_the_same():
    policy = Policy(rules=QUIET, user_rules=(own.every_third, redirecting))
    ages = [one.advice_age for one in decided(policy, [Round()] * 4)]
    # In round 3 the first of them gives the same action.
    assert ages == [0, 1, 0, 0]


def test_the_records_of_policies_hold_the_masks():
    policy = Policy(user_rules=(redirecting, retrying, own.silent), propensities=True)
    record = policy.record()[0]
    assert record["user_action_rules"].tolist() == [0, 0b010, 0b101, 0b100, 0]
    assert (record["user_forcing"], record["propensities"]) == (0b010, 1)
    plain = Policy().record()[0]
    assert not plain["user_action_rules"].any()
    assert (plain["user_forcing"], plain["propensities"]) == (0, 0)


# --- rewards and biases --------------------------------------------------------------------------
def test_a_reward_that_is_told_stands():
    fleet = Fleet(policies={"only": Policy(user_reward=own.halved)})
    session = fleet.session()
    assert session.step(Round(reward=0.875)).reward == 0.875
    assert session.step(Round()).reward == pytest.approx(0.6)


def test_a_bias_is_taken_as_it_is():
    policy = Policy(rules={"progressing": {"actions": ["continue", "redirect"]}},
                    user_bias=(own.never,), tie_break="greedy")
    [decision] = decided(policy, [CALM])
    plain = decided(policy.replace(user_bias=()), [CALM])[0]
    assert decision.bias[Action.CONTINUE] == -0.25
    assert decision.bias[Action.REDIRECT] == plain.bias[Action.REDIRECT]
    assert plain.bias[Action.CONTINUE] > 0
    assert (plain.action, decision.action) == (Action.CONTINUE, Action.REDIRECT)


# --- functions that fail -------------------------------------------------------------------------
def filled(size, place, tokens=1_000):
    """A round of each session; at one place the context is full."""
    columns = np.full(size, 10, np.int64)
    columns[place] = tokens
    return RoundBatch(context_tokens=columns, text=np.arange(size, dtype=np.uint64) % 5)


def whole(fleet):
    """A digest of all that a fleet is, with what its handles show."""
    return hashlib.sha256(repr(digest(fleet)).encode()).hexdigest()


def tying(**functions):
    """A policy with ties in every round, so that biases are asked for."""
    return Policy(rules=QUIET | {"progressing": {"actions": ["continue", "redirect"]}},
                  compress_cooldown=1, **functions)


@pytest.mark.parametrize("name", own.FAILING)
def test_a_step_that_fails_changes_nothing(name):
    policies = {"plain": Policy(), "failing": tying(**own.FAILING[name])}
    fleet, other = (Fleet(seed=3, policies=policies) for _ in range(2))
    size = 1_030
    ids, _ = (
        each.open(size, context_limit=1_000, policy="failing", private=True)
        for each in (fleet, other)
    )
    handle = fleet.attach(5)
    other.attach(5)
    fleet.step(ids, filled(size, 0, 10))
    other.step(ids, filled(size, 0, 10))
    out = fleet.step(fleet.open(size, context_limit=1_000, policy="failing"),
                     filled(size, 0, 10), want=COLUMNS)
    other.open(size, context_limit=1_000, policy="failing")
    other.step(np.arange(size, 2 * size), filled(size, 0, 10))
    columns = {name: column.copy() for name, column in out.columns().items()}
    before = whole(fleet)
    assert before == whole(other)
    for place in (0, 7, 511, 512, size - 1):
        with pytest.raises(UserCodeError, match=f"rules_of_users.py:.*{name}") as caught:
            fleet.step(ids, filled(size, place), out=out)
        assert caught.value.function == name
        assert whole(fleet) == before
        assert all(same_bits(column, columns[each]) for each, column in out.columns().items())
    with pytest.raises(UserCodeError, match=r"rules_of_users\.py"):
        handle.step(Round(context_tokens=1_000))
    assert whole(fleet) == before
    for each in (fleet, other):
        each.step(ids, filled(size, 0, 20))
    assert whole(fleet) == whole(other)


def test_decisions_given_for_output_are_as_they_were_after_an_interrupt(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)

    @rule(proposes="retry")
    def interrupted(features):
        raise KeyboardInterrupt

    fleet = Fleet(policies={"first": Policy(), "second": Policy(user_rules=(interrupted,))})
    out = fleet.step(fleet.open(2, policy="first"), [Round()] * 2)
    with pytest.raises(KeyboardInterrupt):
        fleet.step(fleet.open(2, policy="second"), [Round()] * 2, out=out)
    assert out.setting_rows.tolist() == [0, 0]


@pytest.mark.parametrize("place", [0, 4_095, 4_096, 9_999])
def test_a_step_in_threads_that_fails_changes_nothing(place):
    size = 10_000
    fleet = Fleet(policies={"failing": tying(**own.FAILING["raises"])}, threads=2)
    ids = fleet.open(size, context_limit=1_000)
    fleet.step(ids, filled(size, 0, 10))
    before = whole(fleet)
    with pytest.raises(UserCodeError, match="it is full"):
        fleet.step(ids, filled(size, place))
    assert whole(fleet) == before
    fleet.step(ids, filled(size, place, 800))


def test_the_first_session_that_fails_is_told():
    """By whichever function, and however the batch is cut into chunks and spans."""
    said = {}
    for threads in (1, 2):
        fleet = Fleet(policies={
            "a": tying(**own.FAILING["too_much"]), "b": tying(**own.FAILING["raises"]),
        }, threads=threads)  # fmt: skip
        ids = np.concatenate([fleet.open(1, policy="ab"[k % 2], context_limit=1_000)
                              for k in range(9_000)])
        for first, second in ((4_001, 100), (100, 4_001), (8_001, 8_002), (4_500, 4_501)):
            tokens = np.full(9_000, 10)
            tokens[[first, second]] = 1_000
            with pytest.raises(UserCodeError) as caught:
                fleet.step(ids, RoundBatch(context_tokens=tokens))
            assert caught.value.function == ("too_much", "raises")[min(first, second) % 2]
            said.setdefault((first, second), set()).add(str(caught.value))
    assert all(len(texts) == 1 for texts in said.values())


def test_only_sessions_under_a_policy_that_may_fail_are_kept():
    fleet = Fleet(policies={"plain": Policy(), "failing": tying(**own.FAILING["raises"])})
    assert not fleet._is_fallible(np.array([0, 0]))
    assert fleet._is_fallible(np.array([0, 1]))
    assert not Fleet(policies={"fine": Policy(user_rules=(own.failed,))})._is_fallible(
        np.array([0])
    )


# --- durable fleets ------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["raises", "too_much", "too_little"])
def test_what_failed_is_not_in_the_journal(name, tmp_path):
    policies = {"failing": tying(**own.FAILING[name])}
    with Fleet.open_durable(tmp_path / "fleet", seed=1, policies=policies) as fleet:
        ids = fleet.open(20, context_limit=1_000)
        handle = fleet.session("ticket", context_limit=1_000)
        for turn in range(4):
            fleet.step(ids, filled(20, 0, 10))
            handle.step(Round(text=str(turn)))
            with pytest.raises(UserCodeError):
                fleet.step(ids, filled(20, 3))
            with pytest.raises(UserCodeError):
                handle.step(Round(context_tokens=1_000))
        before = whole(fleet)
    with Fleet.open_durable(tmp_path / "fleet") as fleet:
        assert fleet.recovered.entries == 2 + 8
        assert whole(fleet) == before


class FullDisk:
    """A journal that takes no entry."""

    def entry_of_step(self, *facts):
        return 4, []

    def append(self, entry):
        raise JournalError("journal", "no space")

    def append_round(self, *facts):
        raise JournalError("journal", "no space")


def test_a_journal_that_takes_no_entry_leaves_a_tried_step_undone():
    fleet = Fleet(policies={"failing": tying(**own.FAILING["raises"])})
    ids, handle = fleet.open(20, context_limit=1_000), fleet.session("ticket")
    fleet.step(ids, filled(20, 0, 10))
    before = whole(fleet)
    fleet._journal = fleet._stepper.journal = FullDisk()
    with pytest.raises(JournalError, match="no space"):
        fleet.step(ids, filled(20, 0, 10))
    with pytest.raises(JournalError, match="no space"):
        handle.step(Round())
    assert whole(fleet) == before


MODULE = '''
from cellium_fast import rule

@rule(proposes="redirect")
def mine(features):
    return features.round {comparison} 2
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module with a rule, and what writes it anew, or removes it."""
    monkeypatch.syspath_prepend(tmp_path / "modules")
    path = tmp_path / "modules" / "policy_of_mine.py"
    path.parent.mkdir()

    def write(comparison):
        sys.modules.pop(path.stem, None)
        if comparison is None:
            path.unlink()
        else:
            path.write_text(MODULE.format(comparison=comparison))

    write(">")
    yield write
    sys.modules.pop(path.stem, None)


PATHS = {"user_rules": ["policy_of_mine:mine"]}


def test_a_snapshot_whose_function_is_gone_is_refused(module, tmp_path):
    fleet = Fleet(policies={"a": Policy(**PATHS)})
    ids = fleet.open(2)
    for _ in range(2):
        fleet.step(ids, RoundBatch())
    fleet.save(tmp_path / "fleet")
    again = Fleet.load(tmp_path / "fleet")
    assert again.step(ids, RoundBatch()).user_rules.tolist() == [1, 1]
    module(None)
    with pytest.raises(SnapshotError, match="policy_of_mine") as caught:
        Fleet.load(tmp_path / "fleet")
    assert caught.value.reason == "code"


def test_a_durable_fleet_whose_function_is_gone_stays_as_it_is(module, tmp_path):
    for late in (False, True):
        directory = tmp_path / f"fleet-{late}"
        policies = {"a": Policy()} if late else {"a": Policy(**PATHS)}
        with Fleet.open_durable(directory, policies=policies) as fleet:
            if late:
                fleet.set_policy("a", Policy(**PATHS))
            ids = fleet.open(2)
            fleet.step(ids, RoundBatch())
            before = whole(fleet)
        files = {path.name: path.read_bytes() for path in directory.iterdir()}
        module(None)
        wanted = JournalError if late else SnapshotError
        with pytest.raises(wanted, match="policy_of_mine"):
            Fleet.open_durable(directory)
        left = {path.name: path.read_bytes() for path in directory.iterdir()}
        assert {name: left[name] for name in files if name[0] in "js"} == {
            name: data for name, data in files.items() if name[0] in "js"
        }
        module(">")
        with Fleet.open_durable(directory) as fleet:
            assert whole(fleet) != ""
            assert len(fleet) == 2
        assert before


def test_a_function_that_fails_where_it_did_not_is_no_damage(module, tmp_path):
    with Fleet.open_durable(tmp_path / "fleet", policies={"a": Policy(**PATHS)}) as fleet:
        fleet.step(fleet.open(2), RoundBatch())
    module("/ (features.round - 1) >")
    with pytest.raises(JournalError, match=r"entry 2 cannot be taken again: .*policy_of_mine"):
        Fleet.open_durable(tmp_path / "fleet")
    module(">")
    with Fleet.open_durable(tmp_path / "fleet") as fleet:
        assert fleet.recovered.entries == 2


# --- in words ------------------------------------------------------------------------------------
def test_a_rule_of_a_user_is_called_by_its_name():
    policy = Policy(rules=QUIET, user_rules=(own.every_third, own.hopeless))
    same = Round([ToolCall("ls", "a", "the same")])
    seen = decided(policy, [same] * 6)
    redirect = seen[2]
    stop = next(one for one in seen if one.action == Action.TERMINATE)
    assert redirect.rules[-1] == "every_third"
    assert (redirect.cause, redirect.stop_cause) == (Cause.USER_RULE, None)
    assert redirect.evidence.rule == "every_third"
    assert redirect.evidence.count is None
    assert "redirect (cause: user_rule, every third round)" in redirect.explain()
    assert "every_third  every third round" in redirect.explain()
    assert "\nReason: every third round." in redirect.prompt
    assert (stop.action, stop.cause, stop.stop_cause) == (
        Action.TERMINATE, Cause.USER_RULE, StopCause.POLICY,
    )
    assert "Forced by hopeless: terminate" in stop.explain()
    assert "Reason: hopeless." in stop.prompt
    assert repr(stop).endswith(",hopeless>")


@rule(forces="terminate", reason="goal achieved")
def boastful(features):
    return features.round > 0


def test_a_stop_is_no_success_by_a_user_s_reason_either():
    [decision] = decided(Policy(user_rules=(boastful,)), [Round()])
    assert "achieved" not in decision.prompt
    assert "Reason: a rule of your own." in decision.prompt


def test_many_constraints_are_as_each_by_itself(rng):
    policies = {name: random_policy(rng, "default", **own.of_users(rng)) for name in "abcd"}
    policies["all"] = Policy(user_rules=own.RULES)
    fleet = Fleet(seed=rng.getrandbits(64), policies=policies)
    ids = np.concatenate([fleet.open(6, policy=name, context_limit=30_000) for name in policies])
    agents = [Agent(rng) for _ in ids]
    renderer, causes = HardConstraintRenderer(), Counter()
    for _ in range(30):
        decisions = fleet.step(ids, pack([agent.round() for agent in agents]))
        texts = renderer.render_many(decisions, fuse=True)
        assert texts == [renderer.render(one, fuse=True) for one in decisions]
        for one in decisions:
            causes[one.cause] += 1
            assert one.evidence is None or one.explain()
    assert causes[Cause.USER_RULE] > 20


def test_first_rules_are_called_by_their_names():
    from cellium_fast.quality import Detector, judge
    from cellium_fast.traces import RecordedRun

    rounds = [Round([ToolCall("search", {"q": str(k)}, f"found {k}")]) for k in range(5)]
    run = RecordedRun("made-up", Path("runs.json"), "1", rounds, [0] * 5, success=False)
    judged = judge([run], Policy(rules=QUIET, user_rules=(own.failed, own.every_third)))
    assert judged.first_rules(Detector.POLICY, success=False)["every_third"] == 1
    assert judged.part(np.array([True])).first_rules(Detector.POLICY, False)["every_third"] == 1


# --- as Python -----------------------------------------------------------------------------------
PLAY = '''
import hashlib, random, sys
sys.path.insert(0, "tests")
import rules_of_users as own
from conftest import Agent, pack
from cellium_fast import Fleet, Policy, Round
rng = random.Random(7)
policies = {
    "a": Policy(user_rules=own.RULES, user_reward=own.halved, user_bias=own.BIASES),
    "b": Policy(user_rules=own.RULES[::-1], user_reward=own.as_told),
}
fleet = Fleet(seed=5, policies=policies)
ids = [*fleet.open(9, policy="a", context_limit=30_000), *fleet.open(9, policy="b")]
handle = fleet.session(policy="a", private=True)
agents = [Agent(rng) for _ in ids]
for _ in range(40):
    fleet.step(ids, pack([agent.round() for agent in agents]))
    handle.step(Round(text=str(rng.randrange(2))))
memory = fleet._memory
print(hashlib.sha256(memory.sessions.tobytes() + memory.pools.tobytes()).hexdigest())
'''


def test_interpreted_functions_decide_the_same(monkeypatch):
    digests = set()
    for disabled in ("0", "1"):
        monkeypatch.setenv("NUMBA_DISABLE_JIT", disabled)
        digests.add(subprocess.run(
            [sys.executable, "-c", PLAY], cwd=Path(__file__).parent.parent, check=True,
            capture_output=True, text=True,
        ).stdout)
    assert len(digests) == 1
    assert len(digests.pop()) == 65


def test_places_of_functions_are_those_of_the_kernels():
    assert _records.USER_REWARD == _records.MAX_USER_RULES
    assert _records.USER_BIAS == _records.USER_REWARD + 1
    assert _records.USER_CODE["address"].shape == (_records.USER_BIAS + len(Action),)


# --- propensities ---------------------------------------------------------------------------------
def test_a_propensity_counts_the_biases_of_users():
    # Sessions alike, each with draws of its own: how often each action comes is its propensity.
    count = 20_000

    @rule(proposes=("continue", "redirect", "compress"))
    def always(features):
        return True

    @bias("redirect")
    def up(features):
        return 0.3

    @bias("continue")
    def down(features):
        return -0.2

    policy = Policy(propensities=True, user_rules=(always,), user_bias=(up, down))
    fleet = Fleet(seed=11, policies={"mine": policy})
    rounds = RoundBatch(call_offsets=np.zeros(count + 1, np.int64))
    decisions = fleet.step(fleet.open(count), rounds)
    total = 0.0
    for action in (Action.CONTINUE, Action.REDIRECT, Action.COMPRESS):
        taken = decisions.action == action
        (propensity,) = np.unique(decisions.propensity[taken])
        deviation = np.sqrt(propensity * (1.0 - propensity) / count)
        assert abs(np.mean(taken) - propensity) < 5.0 * deviation
        total += propensity
    assert abs(total - 1.0) < 1e-8
    assert np.mean(decisions.action == Action.REDIRECT) > 0.7      # 0.24 without biases
