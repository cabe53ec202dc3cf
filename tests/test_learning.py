"""Stage 5: returns, credits, decay; a call as the unit of learning of a pool."""

import numpy as np
import pytest
from conftest import Agent, Pair, call, pack, random_policy

from cellium_fast import Fleet, InputError, Policy, Posterior, Round, SessionError, kernels
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES

PRESETS = ("cellium", "default")
UNIT = 2.0**-32  # increments of a pool are whole numbers of this


def learner(preset="default", **changes):
    """A policy under which every decision is continue and every one learns."""
    off = {name: {"enabled": False} for name, _ in Policy().rules}
    return Policy.preset(preset, learn_from="all", tie_break="first", rules=off, **changes)


class Learner:
    """A fleet of one policy, one session by rewards given."""

    def __init__(self, policy, private, sessions=1, **options):
        self.fleet = Fleet(policies={"only": policy}, **options)
        self.ids = self.fleet.open(sessions, private=private)
        self.private = private

    def step(self, *rewards):
        for reward in rewards:
            self.fleet.step(self.ids, pack([{"reward": reward}] * len(self.ids)))
        return self

    def learned(self):
        """(alpha, beta, updates) of continue."""
        if self.private:
            found = self.fleet.private_posterior(self.ids[0])
        else:
            found = self.fleet.posterior()
        assert found["updates"][1:].tolist() == [0] * 4
        return [float(found[name][0]) for name in ("alpha", "beta", "updates")]


# --- Returns -------------------------------------------------------------------------------------
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("n", "gamma", "rewards", "returns"),
    [
        (1, 1.0, [1.0, 0.5], [1.0, 0.5]),
        (2, 1.0, [1.0, 0.5], [0.75]),
        (3, 1.0, [1.0, 0.5], []),
        (3, 1.0, [1.0, 0.5, 0.0], [0.5]),
        (3, 1.0, [1.0, 0.5, 0.0, 1.0], [0.5, 0.5]),
        (4, 1.0, [1.0, 0.5, 0.0, 1.0, 0.5], [0.625, 0.5]),
        (2, 0.5, [1.0, 0.25], [(1 + 0.125) / 1.5]),
        (4, 0.5, [0.0, 1.0, 0.0, 1.0], [(0.5 + 0.125) / 1.875]),
    ],
)
def test_returns_of_the_next_n_rewards(private, n, gamma, rewards, returns):
    learned = Learner(learner(n_step=n, gamma=gamma), private).step(*rewards).learned()
    expected = [2 + sum(returns), 2 + sum(1 - one for one in returns), len(returns)]
    assert learned == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("private", [False, True])
def test_cellium_credits_the_newest_decision_at_once(private):
    # Means of the last three: 1, 0.75, 0.5, 0.1667; only those above 0.5 raise alpha.
    learned = Learner(learner("cellium"), private).step(1.0, 0.5, 0.0, 0.0).learned()
    expected = [2 + 1 + 0.75, 2 + 0.5 + 1 - 0.5 / 3, 4]
    assert learned == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("update", "reward", "gain"),
    [("both", 0.75, (0.75, 0.25)), ("one_side", 0.75, (0.75, 0)), ("one_side", 0.5, (0, 0.5)),
     ("one_side", 0.25, (0, 0.75)), ("both", 0.5, (0.5, 0.5))],
)  # fmt: skip
@pytest.mark.parametrize("private", [False, True])
def test_updates(update, reward, gain, private):
    learned = Learner(learner(n_step=1, update=update), private).step(reward).learned()
    assert learned == [2 + gain[0], 2 + gain[1], 1]


def test_a_given_reward_learns_as_the_decimal_it_was_written():
    learned = Learner(learner(n_step=1), False).step(0.7, 0.1).learned()
    assert learned[0] == pytest.approx(2.8, abs=3 * UNIT)
    assert learned[1] == pytest.approx(3.2, abs=3 * UNIT)


def test_only_decisions_with_several_candidates_learn():
    rules = {name: {"enabled": False} for name, _ in Policy().rules}
    rules["failure_chain"] = {"enabled": True, "failures": 1, "actions": ["retry", "redirect"]}
    for learn_from, updates in (("tiebreak", 1), ("all", 4)):
        policy = Policy(rules=rules, learn_from=learn_from, n_step=1)
        fleet = Fleet(policies={"only": policy})
        ids = fleet.open(1)
        # Decisions: 0 continue, 1 continue, 2 retry or redirect, 3 continue.
        failed = [False, True, False, False]
        for error in failed:
            fleet.step(ids, pack([{"calls": [call(error=error)]}]))
        learned = fleet.posterior()["updates"]
        assert learned.sum() == updates
        assert learned[1] + learned[2] == 1


# --- Closing -------------------------------------------------------------------------------------
CLOSINGS = [
    # policy, rewards, outcome, what is learned in all as returns of continue
    (learner(), [], None, []),
    (learner(), [], True, [1.0]),
    (learner(), [], False, [0.0]),
    (learner(), [0.25], None, [0.25]),
    (learner(), [0.25], True, [0.625, 1.0]),
    (learner(), [0.25, 0.5], False, [0.25, 0.25, 0.0]),
    (learner(), [1.0, 0.5, 0.0], True, [0.5, 0.5, 0.5, 1.0]),
    (learner(), [1.0, 0.5, 0.0], None, [0.5, 0.25, 0.0]),
    (learner(n_step=1), [0.25], True, [0.25, 1.0]),
    (learner(n_step=4), [1.0] * 5, False, [1.0, 1.0, 0.75, 2 / 3, 0.5, 0.0]),
    (learner(n_step=2, gamma=0.5), [0.0], True, [0.5 / 1.5, 1.0]),
    (learner("cellium", update="both"), [1.0, 0.5], None, [1.0, 0.75]),
    (learner("cellium", update="both"), [1.0, 0.5], False, [1.0, 0.75, 0.5]),
    (learner("cellium", update="both"), [], None, []),
]


@pytest.mark.parametrize("case", range(len(CLOSINGS)))
def test_closing_credits_what_is_pending(case):
    policy, rewards, outcome, returns = CLOSINGS[case]
    one = Learner(policy, False).step(*rewards)
    one.fleet.close(one.ids, outcome)
    expected = [2 + sum(returns), 2 + sum(1 - value for value in returns), len(returns)]
    assert one.learned() == pytest.approx(expected, abs=1e-7)


def test_terminate_does_not_settle():
    rules = {"context_exhausted": {"rounds": 1}}
    policy = Policy(learn_from="all", tie_break="first", rules=rules)
    fleet = Fleet(policies={"only": policy})
    ids = fleet.open(1, context_limit=100)
    fleet.step(ids, pack([{"context_tokens": 99, "reward": 0.5}]))
    assert fleet.done(ids)[0]
    assert fleet.posterior()["updates"].sum() == 0
    fleet.close(ids, success=False)
    learned = fleet.posterior()
    assert learned["updates"].tolist() == [1, 0, 0, 0, 1]
    assert learned["beta"].tolist() == pytest.approx([2.75, 2, 2, 2, 3])


def test_with_closes_without_an_outcome_on_an_exception_too():
    for error in (None, ValueError):
        fleet = Fleet(policies={"only": learner()})
        try:
            with fleet.session("s") as session:
                fleet.step([session.id], pack([{"reward": 0.25}]))
                if error:
                    raise error
        except ValueError:
            pass
        assert len(fleet) == 0
        assert fleet.posterior()["updates"][0] == 1
        assert fleet.posterior()["alpha"][0] == 2.25


def test_outcomes_of_many():
    fleet = Fleet(policies={"only": learner()})
    ids = fleet.open(4)
    fleet.close(ids[:3], np.array([1, 0, -1], np.int8))
    learned = fleet.posterior()
    assert (learned["alpha"][0], learned["beta"][0], learned["updates"][0]) == (3, 3, 2)
    with pytest.raises(SessionError, match="closed"):
        fleet.close(ids, True)
    assert len(fleet) == 1, "all or nothing"
    with pytest.raises(InputError, match="success"):
        fleet.close(ids[3:], np.array([2], np.int8))
    assert len(fleet) == 1


def test_a_user_message_leaves_pending_returns():
    one = Learner(learner(), False).step(1.0, 0.5)
    one.fleet.user_message(one.ids)
    assert one.step(0.0).learned() == [2.5, 2.5, 1]


# --- One call is the unit of learning ------------------------------------------------------------
def test_a_pool_learns_at_the_end_of_a_call():
    # Each failed call is a tie; all draws of the second call use the pool after the first.
    rules = {"failure_chain": {"failures": 1}}
    policy = SIXTEEN_RULES.replace(n_step=1, rules=rules, tie_break="greedy", learn_from="all")
    fleet = Fleet(policies={"only": policy})
    ids = fleet.open(50)
    failed = pack([{"calls": [call(error=True)], "reward": 1.0}] * 50)
    first = fleet.step(ids, failed)
    assert np.all(first.draws[:, 1] == 0.5)
    assert fleet.posterior()["alpha"][0] == 2 + 50
    second = fleet.step(ids, failed)
    assert np.all(second.draws[:, 1] == 0.5)
    assert np.all(second.draws[~np.isnan(second.draws[:, 0]), 0] == 52 / 54)


def test_a_scalar_step_is_a_call():
    policy = learner(n_step=1)
    fleet = Fleet(policies={"only": policy}, pools=["a", "b"])
    session = fleet.session("s", pool="b")
    fleet.step([session.id], pack([{"reward": 0.75}]))
    session.step(Round(reward=0.25))
    assert fleet.posterior("b")["updates"][0] == 2
    assert fleet.posterior("b")["alpha"][0] == 3.0
    assert fleet.posterior("a")["updates"][0] == 0


def test_the_sum_of_a_call_has_no_order(rng):
    rewards = [rng.random() for _ in range(3_000)]
    learned = []
    for _ in range(4):
        rng.shuffle(rewards)
        fleet = Fleet(policies={"only": learner(n_step=1)})
        fleet.step(fleet.open(len(rewards)), pack([{"reward": one} for one in rewards]))
        learned.append(fleet.posterior()["alpha"][0])
    assert len(set(learned)) == 1
    assert learned[0] == pytest.approx(2 + sum(rewards), abs=1e-3)


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.0), (1.0, 1.0, 0.0)])
def test_increments_are_rounded_to_whole_numbers(rewards):
    alpha, beta, _ = Learner(learner(n_step=3), False).step(*rewards).learned()
    assert (alpha - 2) / UNIT == round(2**32 * sum(rewards) / 3)
    assert (beta - 2) / UNIT == round(2**32 * (3 - sum(rewards)) / 3)


def test_a_private_posterior_learns_before_its_session_decides():
    rules = {"failure_chain": {"failures": 1}}
    policy = SIXTEEN_RULES.replace(n_step=1, rules=rules, tie_break="greedy", learn_from="all")
    fleet = Fleet(policies={"only": policy})
    ids = fleet.open(1, private=True)
    failed = pack([{"calls": [call(error=True)], "reward": 1.0}])
    assert fleet.step(ids, failed).draws[0, 0] == pytest.approx(3 / 5)
    assert fleet.posterior()["updates"].sum() == 0, "its pool learns nothing"


# --- Decay ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("posterior", "after"),
    [
        (Posterior(), (2 + 0.99 * 0.5, 2 + 0.99 * 0.5)),
        (Posterior(decay_target=1.0), (1 + 0.99 * 1.5, 1 + 0.99 * 1.5)),
        (Posterior(alpha=4, beta=1, decay=0.5), (4.25, 1.25)),
        (Posterior(decay=1.0), (2.5, 2.5)),
        (Posterior(decay_every=0), (2.5, 2.5)),
        (Posterior(decay_every=25), (2 + 0.99**2 * 0.5, 2 + 0.99**2 * 0.5)),
        (Posterior(decay_every=51), (2.5, 2.5)),
    ],
)
def test_a_pool_decays_once_per_so_many_closed_sessions(posterior, after):
    fleet = Fleet(policies={"only": learner(n_step=1)}, pools={"only": posterior})
    ids = fleet.open(50)
    fleet.step(ids[:1], pack([{"reward": 0.5}]))
    fleet.close(ids[:24])
    if posterior.decay_every == 50:
        assert fleet.posterior()["alpha"][0] == posterior.alpha + 0.5, "not yet"
    fleet.close(ids[24:])
    learned = fleet.posterior()
    assert learned["alpha"][0] == pytest.approx(after[0])
    assert learned["beta"][0] == pytest.approx(after[1])
    untouched = posterior.decay_target in ("prior", posterior.alpha)
    expected = posterior.alpha if untouched else 1 + 0.99 * (posterior.alpha - 1)
    assert learned["alpha"][1:].tolist() == pytest.approx([expected] * 4)


def test_closing_adds_then_decays():
    fleet = Fleet(policies={"only": learner()}, pools={"only": Posterior(decay=0.5)})
    ids = fleet.open(100)
    fleet.close(ids, success=True)
    # 100 returns of 1 to decision 0, then two decays towards the prior.
    assert fleet.posterior()["alpha"][0] == pytest.approx(2 + 100 / 4)
    assert fleet.posterior()["updates"][0] == 100


@pytest.mark.parametrize("sizes", [[130], [49, 1, 80], [1] * 130, [50, 50, 30], [99, 31]])
def test_the_count_of_decays_does_not_depend_on_the_grouping(sizes):
    fleet = Fleet(policies={"only": learner(n_step=1)})
    ids = fleet.open(130)
    fleet.step(ids[:1], pack([{"reward": 1.0}]))
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        fleet.close(ids[start : start + size])
    # In the last case the first 99 sessions are one decay, the next 31 the second.
    assert fleet.posterior()["alpha"][0] == pytest.approx(2 + 0.99**2, abs=1e-12)


def test_sessions_with_a_posterior_of_their_own_do_not_count_as_closed():
    fleet = Fleet(policies={"only": learner(n_step=1)})
    ids = fleet.open(1)
    fleet.step(ids, pack([{"reward": 1.0}]))
    fleet.close(fleet.open(500, private=True))
    assert fleet.posterior()["alpha"][0] == 3.0


@pytest.mark.parametrize("preset", PRESETS)
def test_a_private_posterior_decays_once_per_fifty_updates(preset):
    one = Learner(learner(preset, n_step=1), True).step(*[1.0] * 49)
    assert one.learned()[0] == pytest.approx(51)
    target = 1.0 if preset == "cellium" else 2.0
    assert one.step(1.0).learned()[0] == pytest.approx(target + 0.99 * (52 - target), rel=1e-6)
    assert one.learned()[1] == pytest.approx(target + 0.99 * (2 - target), rel=1e-6)
    assert one.step(*[1.0] * 250).learned()[2] == 255, "a count that saturates"


# --- Against the reference -----------------------------------------------------------------------
VARIANTS = [
    {"n_step": n, "gamma": gamma, "credit": credit, "update": update, "learn_from": learn_from}
    for n, gamma, credit, update, learn_from in [
        (1, 1.0, "forward", "both", "all"),
        (2, 0.9, "forward", "both", "tiebreak"),
        (3, 0.5, "forward", "one_side", "all"),
        (4, 0.7, "forward", "both", "all"),
        (4, 1.0, "newest", "one_side", "tiebreak"),
        (3, 1.0, "newest", "both", "all"),
        (2, 1.0, "newest", "one_side", "all"),
    ]
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda one: "-".join(map(str, one.values())))
@pytest.mark.parametrize("preset", PRESETS)
def test_learning_equals_the_reference(preset, variant, rng):
    posterior = {"decay": 0.9, "decay_every": 7}
    policy = random_policy(rng, preset, posterior=posterior, **variant)
    pools = {
        "a": Posterior(decay=0.8, decay_every=3),
        "b": Posterior(alpha=1, beta=3, decay=0.5, decay_every=4, decay_target=1.5),
    }
    pair = Pair({"only": policy}, pools=pools, seed=rng.getrandbits(64))
    agents = {}
    for _ in range(40):
        for pool, private in (("a", False), ("b", False), ("a", True)):
            for one in pair.open(1, pool=pool, private=private, context_limit=30_000):
                agents[one] = Agent(rng)
        ids = [one for one in agents if rng.random() < 0.8]
        rng.shuffle(ids)
        pair.step(ids, [agents[one].round() for one in ids])
        # Rewards are kept as float32.
        pair.compare_pools(tolerance=1e-5)
        pair.compare_private()
        closing = [one for one in agents if rng.random() < 0.2]
        pair.close(closing, [rng.choice([None, True, False]) for _ in closing])
        pair.compare_pools(tolerance=1e-5)
        for one in closing:
            del agents[one]
    assert pair.pools["a"]["closed"] > 20
    assert sum(pair.pools["b"]["updates"]) > 5


def test_the_kernel_returns_what_the_fleet_credits(rng):
    rewards = [rng.randrange(9) / 8 for _ in range(12)]
    expected = kernels.nstep_returns(np.array([rewards]), 3, 0.5)[0, :10]
    one = Learner(learner(n_step=3, gamma=0.5), False)
    gained = [one.learned()[0]]
    for reward in rewards:
        gained.append(one.step(reward).learned()[0])
    found = np.diff(gained)[2:]
    np.testing.assert_allclose(found, expected, atol=2 * UNIT)


@pytest.mark.parametrize("rewards", [(0.2, 0.9, 0.4), (0.1, 0.6, 0.8), (0.3, 0.3, 0.9)])
def test_rewards_that_average_one_half_count_as_one_half(rewards):
    policy = Policy.preset("cellium", learn_from="all", n_step=3, credit="forward")
    fleet = Fleet(policies={"half": policy})
    session = fleet.session(private=True)
    for reward in rewards:
        session.step(Round(reward=reward))
    # Decision 0 (continue) has its three rewards, one half on average: beta alone is raised.
    learned = fleet.private_posterior(session.id)
    assert learned["alpha"][0] == 2.0
    assert learned["beta"][0] == pytest.approx(2.5, abs=1e-6)
