"""Stage 3: the draws are the papers', the biases the page's, and ties go in the page's order."""

import numpy as np
import pytest
import reference
import reference_random
from conftest import Agent, Pair, call, pack, reference_policy
from scipy import special

from cellium_fast import Action, Fleet, Policy, Posterior, _bandit, _records, kernels
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES
from cellium_fast.decision import Decisions

# A failed call is a tie of continue, retry and redirect.
TYING = SIXTEEN_RULES.replace(rules={"failure_chain": {"failures": 1}})
CONTINUE, RETRY, REDIRECT, COMPRESS, TERMINATE = range(5)


def choose(policy, rows, candidates, alpha=2.0, beta=2.0, updates=99, seed=1, private=False):
    """Stage 3 on its own: decisions on features and candidate masks, one session each."""
    sessions = np.zeros(len(rows), _records.SESSION)
    sessions["uid"] = np.arange(len(rows))
    pools = np.zeros(1, _records.POOL)
    sessions["flags"] = 4 if private else 0
    for record in (pools, sessions):
        record["alpha"], record["beta"], record["updates"] = alpha, beta, updates
    decisions = Decisions(len(rows), np.zeros(len(rows), np.uint16), [])
    decisions.features[:] = np.zeros(1, _records.FEATURES)
    for record, row in zip(decisions.features, rows, strict=True):
        for name, value in row.items():
            record[name] = value
    decisions.candidates[:] = candidates
    batch = _records.Batch()
    batch.set_memory(sessions=sessions, policies=policy.record(), pools=pools, key=seed)
    batch.set_input(slots=np.arange(len(rows)))
    batch.set_output(**decisions.columns())
    _bandit.tie_break(batch, 0, len(rows))
    return decisions


# --- Draws ---------------------------------------------------------------------------------------
def check_draws(seed, uids, round, decisions, posteriors):
    """Every draw equals the second writing's, from the posterior it was drawn from."""
    drawn = 0
    for place, uid in enumerate(uids):
        alpha, beta = posteriors[place]
        for arm in np.flatnonzero(~np.isnan(decisions.draws[place])):
            a, b = float(alpha[arm]), float(beta[arm])
            expected = reference_random.beta(a, b, seed, uid, round, int(arm))
            assert decisions.draws[place, arm] == pytest.approx(expected, rel=1e-12, abs=0)
            drawn += 1
    return drawn


def test_draws_of_a_pool_are_a_function_of_seed_uid_round_and_arm(rng):
    seed = rng.getrandbits(64)
    fleet = Fleet(seed=seed, policies={"only": Policy.preset("cellium")})
    fleet._memory.opened = 2**40 + 5  # a number that needs the counter's second word
    ids = fleet.open(8, context_limit=30_000)
    agents = [Agent(rng) for _ in ids]
    drawn = 0
    for t in range(30):
        before = fleet.posterior()
        decisions = fleet.step(ids, pack([agent.round() for agent in agents]))
        posteriors = [(before["alpha"], before["beta"])] * len(ids)
        uids = range(2**40 + 5, 2**40 + 13)
        drawn += check_draws(seed, uids, t + 1, decisions, posteriors)
    assert drawn > 50
    assert before["updates"].sum() > 20, "the pool has learned meanwhile"


def test_draws_of_a_private_posterior_come_after_it_learned(rng):
    fleet = Fleet(seed=4, policies={"only": Policy.preset("cellium", learn_from="all")})
    ids = fleet.open(6, context_limit=30_000, private=True)
    agents = [Agent(rng) for _ in ids]
    drawn = 0
    for t in range(30):
        decisions = fleet.step(ids, pack([agent.round() for agent in agents]))
        # Nothing learns between the decision and this look.
        learned = [fleet.private_posterior(one) for one in ids]
        posteriors = [(one["alpha"], one["beta"]) for one in learned]
        drawn += check_draws(4, range(6), t + 1, decisions, posteriors)
    assert drawn > 40


def test_one_candidate_draws_nothing():
    decisions = choose(Policy(), [{}] * 5, [1 << code for code in range(5)])
    assert decisions.action.tolist() == list(range(5))
    assert np.isnan(decisions.draws).all()
    assert np.isnan(decisions.bias).all()
    assert not decisions.tiebreak.any()


def test_exactly_the_candidates_are_drawn_for():
    masks = np.arange(1, 32, dtype=np.uint8)
    decisions = choose(Policy(), [{}] * 31, masks)
    for place, mask in enumerate(masks.tolist()):
        candidates = {code for code in range(5) if mask >> code & 1}
        drawn = set(np.flatnonzero(~np.isnan(decisions.draws[place])).tolist())
        assert drawn == (candidates if len(candidates) > 1 else set())
        assert decisions.action[place] in candidates
        assert decisions.tiebreak[place] == (len(candidates) > 1)


def test_the_action_has_the_highest_score():
    rows = [{"stuck_iterations": k % 7, "progress_score": k % 11 / 10} for k in range(500)]
    decisions = choose(Policy(), rows, 0b11111)
    assert decisions.action.tolist() == decisions.scores.argmax(axis=1).tolist()
    assert set(decisions.action.tolist()) == set(range(5))


def test_arms_are_drawn_apart():
    decisions = choose(Policy(), [{}] * 4_000, 0b11111, alpha=0.7, beta=3.0)
    uniform = special.betainc(0.7, 3.0, decisions.draws)
    correlations = np.corrcoef(uniform.T)[np.triu_indices(5, 1)]
    assert np.abs(correlations).max() < 4.5 / 4_000**0.5
    assert np.abs(uniform.mean(axis=0) - 0.5).max() < 4.5 * (1 / 12 / 4_000) ** 0.5


def test_rounds_are_drawn_apart():
    fleet = Fleet(policies={"only": TYING})
    ids = fleet.open(2_000)
    failed = pack([{"calls": [call(error=True)]}] * len(ids))
    first, second = (fleet.step(ids, failed).draws[:, RETRY] for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / len(ids) ** 0.5
    assert len(set(first) | set(second)) == 2 * len(ids)


# --- Bias ----------------------------------------------------------------------------------------
# action, the features it depends on, the bias of the page (warm)
BIASES = [
    (REDIRECT, {}, 0.0),
    (REDIRECT, {"repetition_score": 0.7}, 0.0),
    (REDIRECT, {"repetition_score": 0.75}, 0.0225),
    (REDIRECT, {"repetition_score": 1.0}, 0.03),
    (REDIRECT, {"stuck_iterations": 4}, 0.0),
    (REDIRECT, {"stuck_iterations": 5}, 0.04),
    (REDIRECT, {"stuck_iterations": 5, "repetition_score": 1.0}, 0.04),
    (RETRY, {}, 0.0),
    (RETRY, {"stuck_iterations": 1}, 0.02),
    (RETRY, {"stuck_iterations": 4}, 0.02),
    (RETRY, {"stuck_iterations": 5}, 0.0),
    (RETRY, {"progress_trend": 0.01}, 0.01),
    (RETRY, {"progress_trend": 0.3}, 0.0),
    (RETRY, {"progress_trend": -0.01}, 0.0),
    (RETRY, {"progress_trend": 0.1, "stuck_iterations": 2}, 0.02),
    (COMPRESS, {}, 0.0),
    (COMPRESS, {"context_ratio": 0.6, "context_known": True}, 0.0),
    (COMPRESS, {"context_ratio": 0.61, "context_known": True}, 0.03),
    (COMPRESS, {"stuck_iterations": 1}, 0.0),
    (COMPRESS, {"stuck_iterations": 2}, 0.02),
    (COMPRESS, {"stuck_iterations": 2, "context_ratio": 1.5, "context_known": True}, 0.03),
    (CONTINUE, {}, 0.03),
    (CONTINUE, {"stuck_iterations": 1}, 0.0),
    (CONTINUE, {"stuck_iterations": 1, "progress_score": 0.5}, 0.0),
    (CONTINUE, {"stuck_iterations": 1, "progress_score": 0.51}, 0.02),
    (CONTINUE, {"progress_score": 0.51}, 0.03),
    (TERMINATE, {"stuck_iterations": 9, "repetition_score": 1.0}, 0.0),
]


@pytest.mark.parametrize(("updates", "factor"), [(0, 5.0), (4, 5.0), (5, 1.0), (200, 1.0)])
@pytest.mark.parametrize("private", [False, True])
def test_bias(updates, factor, private):
    rows = [row for _, row, _ in BIASES]
    decisions = choose(Policy(), rows, 0b11111, updates=updates, private=private)
    found = [decisions.bias[place, arm] for place, (arm, _, _) in enumerate(BIASES)]
    expected = [factor * bias for _, _, bias in BIASES]
    assert found == pytest.approx(expected)


def test_bias_counts_the_updates_of_each_arm():
    updates = np.array([4, 5, 4, 5, 0])
    row = {"stuck_iterations": 2, "progress_score": 0.6}
    decisions = choose(Policy(), [row], 0b11111, updates=updates)
    assert decisions.bias[0] == pytest.approx([0.1, 0.02, 0.0, 0.02, 0.0])


def test_bias_parameters(rng):
    values = {name: rng.randrange(1, 100) / 100 for name, _ in Policy().bias}
    values["cold_start_updates"], values["cold_start_factor"] = 3, 2.5
    policy = Policy(bias=values)
    rows = [row for _, row, _ in BIASES]
    for updates in (2, 3):
        decisions = choose(policy, rows, 0b11111, updates=updates)
        for place, row in enumerate(rows):
            full = {**reference.opening_features(), **row}
            expected = reference.bias(full, reference_policy(policy), [updates] * 5)
            assert decisions.bias[place] == pytest.approx(expected)


# --- Ties, means, the first ----------------------------------------------------------------------
def test_ties_go_to_the_milder_action():
    greedy = Policy(tie_break="greedy", bias={"continue_unstuck": 0.0})
    order = [CONTINUE, RETRY, COMPRESS, REDIRECT, TERMINATE]
    for first in range(4):
        candidates = sum(1 << code for code in order[first:])
        decisions = choose(greedy, [{}], candidates)
        assert len(set(decisions.scores[0][order[first:]])) == 1
        assert decisions.action[0] == order[first]
    assert choose(greedy, [{}], 0b01100).action[0] == COMPRESS


def test_greedy_compares_the_means():
    alpha, beta = np.array([2.0, 3.0, 8.0, 5.0, 1.0]), np.array([2.0, 1.0, 1.0, 5.0, 9.0])
    for private in (False, True):
        policy = Policy(tie_break="greedy")
        decisions = choose(policy, [{}], 0b11111, alpha, beta, private=private)
        assert decisions.draws[0] == pytest.approx(alpha / (alpha + beta))
        assert decisions.action[0] == REDIRECT
        assert choose(policy, [{}], 0b11011, alpha, beta, private=private).action[0] == RETRY
    near = choose(Policy(tie_break="greedy"), [{"stuck_iterations": 2}], 0b00011, 2.0, 2.0)
    assert near.action[0] == RETRY, "the bias counts too"


def test_first_takes_the_first_candidate_and_reads_no_posterior():
    masks = np.arange(1, 32, dtype=np.uint8)
    decisions = choose(Policy(tie_break="first"), [{}] * 31, masks, alpha=np.nan)
    lowest = [(mask & -mask).bit_length() - 1 for mask in masks.tolist()]
    assert decisions.action.tolist() == lowest
    assert np.isnan(decisions.draws).all()
    assert np.isnan(decisions.bias).all()


def test_thompson_wins_as_often_as_the_law_says():
    # P(Beta(3, 1) > Beta(1, 1)) = E[1 - X^3] = 3/4
    alpha, beta = np.array([2.0, 3.0, 1.0, 2.0, 2.0]), np.array([2.0, 1.0, 1.0, 2.0, 2.0])
    row = {"stuck_iterations": 6}  # no bias for retry; redirect's is switched off
    policy = Policy(bias={"redirect_stuck": 0.0})
    count = 40_000
    decisions = choose(policy, [row] * count, 0b00110, alpha, beta)
    share = np.mean(decisions.action == RETRY)
    assert abs(share - 0.75) < 4.5 * (0.75 * 0.25 / count) ** 0.5


# --- The kernel for users ------------------------------------------------------------------------
def test_the_kernel_draws_what_the_fleet_draws(rng):
    seed = rng.getrandbits(64)
    pair = Pair({"only": Policy.preset("cellium")}, seed=seed)
    ids = pair.open(20, context_limit=30_000)
    agents = [Agent(rng) for _ in ids]
    ties = 0
    for t in range(20):
        before = pair.fleet.posterior()
        decisions = pair.step(ids, [agent.round() for agent in agents])
        rows = np.flatnonzero(decisions.tiebreak)
        ties += len(rows)
        alpha, beta = (np.tile(before[name], (len(rows), 1)) for name in ("alpha", "beta"))
        chosen = kernels.thompson(
            alpha, beta, decisions.candidates[rows], np.nan_to_num(decisions.bias[rows]), seed,
            rows.astype(np.uint64), t + 1,
        )  # fmt: skip
        assert chosen.tolist() == decisions.action[rows].tolist()
    assert ties > 20


def test_decisions_show_draws_bias_and_scores():
    fleet = Fleet(policies={"only": TYING})
    decisions = fleet.step(fleet.open(3), pack([{"calls": [call(error=True)]}] * 3))
    for place, decision in enumerate(decisions):
        assert set(decision.draws) == {Action.CONTINUE, Action.RETRY, Action.REDIRECT}
        for action, score in decision.scores.items():
            assert score == decision.draws[action] + decision.bias[action]
            assert score == decisions.scores[place, action]
        assert decision.action == max(decision.scores, key=decision.scores.get)


@pytest.mark.parametrize("prior", [(1e-3, 1e-3), (1e6, 1.0), (0.5, 3.0)])
def test_a_pools_prior_is_drawn_from(prior):
    pools = {"only": Posterior(alpha=prior[0], beta=prior[1])}
    policies = {"only": TYING}
    fleet = Fleet(seed=2, policies=policies, pools=pools)
    decisions = fleet.step(fleet.open(40), pack([{"calls": [call(error=True)]}] * 40))
    posteriors = [([prior[0]] * 5, [prior[1]] * 5)] * 40
    assert check_draws(2, range(40), 1, decisions, posteriors) == 120
