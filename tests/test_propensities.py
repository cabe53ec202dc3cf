"""Decisions that tell how probable their action was, on every path; and what logs of them tell."""

import random

import numpy as np
import pytest
from conftest import Agent, pack, tying_policy

from cellium_fast import Action, Fleet, Policy, Posterior, Round, RoundBatch, kernels

ARMS = [Action.CONTINUE, Action.RETRY, Action.REDIRECT]
TIED = tying_policy(ARMS)
HELPS = np.array([0.3, 0.5, 0.8, 0.0, 0.0])     # probability by action


def expected(decisions, alpha, beta):
    """By the kernel: the probability of each action that was chosen in a tie, else 1."""
    ties = np.flatnonzero(decisions.tiebreak)
    found = np.ones(len(decisions))
    rows = [np.tile(np.asarray(values, float), (len(ties), 1)) for values in (alpha, beta)]
    candidates, bias = decisions.candidates[ties], np.nan_to_num(decisions.bias[ties])
    probabilities = kernels.propensity(*rows, candidates, bias)
    found[ties] = probabilities[np.arange(len(ties)), decisions.action[ties]]
    return found


def runs(policies, seed):
    """Decisions of agents under these policies, round by round, with the posterior before each."""
    fleet = Fleet(seed=seed, policies=policies)
    ids = np.concatenate([
        fleet.open(12, policy=name, context_limit=30_000) for name in policies
    ])
    rng = np.random.default_rng(seed)
    agents = [Agent(random.Random(int(rng.integers(2**32)))) for _ in ids]
    for _ in range(25):
        before = fleet.posterior()
        yield before, fleet.step(ids, pack([agent.round() for agent in agents]))


def test_it_is_what_the_kernel_says(rng):
    policies = {
        "told": Policy.preset("cellium", propensities=True),
        "untold": Policy.preset("cellium"),
    }
    ties = 0
    for before, decisions in runs(policies, rng.getrandbits(32)):
        told = decisions.propensity[:12]
        assert np.isnan(decisions.propensity[12:]).all()
        assert told.tolist() == expected(decisions, before["alpha"], before["beta"])[:12].tolist()
        ties += int(np.count_nonzero(decisions.tiebreak[:12]))
        for place, decision in enumerate(decisions):
            one = decision.propensity
            assert one == told[place] if place < 12 else one is None
    assert ties > 20


def test_it_changes_no_decision(rng):
    seed = rng.getrandbits(32)
    with_it, without = (
        runs({"only": Policy.preset("cellium", propensities=told)}, seed) for told in (True, False)
    )
    for (learned, one), (same, other) in zip(with_it, without, strict=True):
        for name in ("alpha", "beta"):
            assert np.array_equal(learned[name], same[name])
        for name in ("action", "candidates", "rules", "draws", "bias"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
        assert not np.isnan(one.propensity).any()
        assert np.isnan(other.propensity).all()


def test_threads_have_the_same_bits():
    found = []
    for threads in (1, 3):
        policies = {"only": TIED.replace(propensities=True)}
        fleet = Fleet(seed=4, policies=policies, threads=threads)
        ids = fleet.open(5_000, private=True)
        rewards = np.random.default_rng(4).random((4, len(ids)), np.float32)
        steps = [fleet.step(ids, RoundBatch(reward=row)).propensity for row in rewards]
        found.append(np.array(steps).tobytes())
    assert len(np.unique(steps[-1])) > 1_000
    assert found[0] == found[1]


@pytest.mark.parametrize("private", [False, True])
def test_one_session_has_the_same_bits(private, rng):
    policy = TIED.replace(propensities=True, bias={"continue_unstuck": 0.02})
    together = Fleet(seed=5, policies={"only": policy})
    alone = Fleet(seed=5, policies={"only": policy})
    ids = together.open(6, private=private)
    handles = [alone.session(private=private) for _ in ids]
    assert [handle.decision.propensity for handle in handles] == [None] * 6
    for _ in range(8):
        rewards = [rng.random() for _ in ids]
        decisions = together.step(ids, RoundBatch(reward=np.array(rewards, np.float32)))
        for place, handle in enumerate(handles):
            decision = handle.step(Round(reward=float(np.float32(rewards[place]))))
            if private:
                assert decision.propensity == decisions.propensity[place]
            assert 0 < decision.propensity < 1
    if not private:     # a shared pool learns between the steps of single sessions
        one = Fleet(seed=9, policies={"only": policy})
        single = one.session().step(Round())
        both = Fleet(seed=9, policies={"only": policy})
        assert both.step(both.open(1), RoundBatch()).propensity[0] == single.propensity


@pytest.mark.parametrize("tie_break", ["greedy", "first"])
def test_what_is_certain_has_one(tie_break):
    fleet = Fleet(policies={"only": TIED.replace(tie_break=tie_break, propensities=True)})
    decisions = fleet.step(fleet.open(3), RoundBatch())
    assert decisions.tiebreak.all()
    assert decisions.propensity.tolist() == [1.0] * 3
    lone = tying_policy([Action.RETRY], propensities=True)
    fleet = Fleet(policies={"only": lone})
    assert fleet.session().step(Round()).propensity == 1.0
    column = fleet.step(fleet.open(2), RoundBatch(), want=["propensity"])
    assert column.propensity.tolist() == [1.0] * 2


def test_shares_of_the_choices_match_it():
    pools = {"only": Posterior(alpha=2.0, beta=5.0)}
    policy = TIED.replace(propensities=True, bias={"continue_unstuck": 0.03})
    fleet = Fleet(seed=3, policies={"only": policy}, pools=pools)
    decisions = fleet.step(fleet.open(30_000), RoundBatch())
    for action in ARMS:
        mine = decisions.action == action
        (told,) = set(decisions.propensity[mine].tolist())
        assert abs(mine.mean() - told) < 5 * (told * (1 - told) / len(mine)) ** 0.5


# --- Off-policy evaluation -----------------------------------------------------------------------
def log(sessions, rounds, seed):
    """Actions, propensities and rewards of a policy that learns meanwhile, (rounds, sessions)."""
    fleet = Fleet(seed=seed, policies={"only": TIED.replace(propensities=True)})
    environment = np.random.default_rng(seed)
    ids = fleet.open(sessions, private=True)
    reward, rows = None, []
    for _ in range(rounds):
        decisions = fleet.step(ids, RoundBatch(reward=reward))
        reward = (environment.random(sessions) < HELPS[decisions.action]).astype(np.float32)
        rows.append((decisions.action, decisions.propensity, reward))
    return [np.array(column) for column in zip(*rows, strict=True)]


def far_off(chooses, actions, propensities, rewards):
    """How many standard errors the inverse propensity score is from the truth."""
    weights = np.array(chooses)[actions] / propensities
    by_session = (weights * rewards).mean(axis=0)
    error = by_session.std(ddof=1) / len(by_session) ** 0.5
    return abs(by_session.mean() - np.dot(chooses, HELPS)) / error


def test_logs_tell_what_other_policies_are_worth(rng):
    actions, propensities, rewards = log(3_000, 16, rng.getrandbits(32))
    for chooses in ([1 / 3, 1 / 3, 1 / 3, 0, 0], [0, 0, 1, 0, 0], [0.7, 0.3, 0, 0, 0]):
        assert far_off(chooses, actions, propensities, rewards) < 5
        # Propensities that are wrong do not.
        assert far_off(chooses, actions, np.full_like(propensities, 1 / 3), rewards) > 6
