"""What users of bandits have complained about: rewards, decay, credit, random numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cellium_fast import (
    Decision,
    Fleet,
    InputError,
    LearnedPosterior,
    Policy,
    Posterior,
    Round,
    RoundBatch,
    ToolCall,
    kernels,
)

NO_DECAY = Posterior(decay_every=0)


def learner(**how: Any) -> Policy:
    """Every decision is continue, and every one learns."""
    off = {name: {"enabled": False} for name, _ in Policy().rules}
    return Policy(learn_from="all", tie_break="first", rules=off, **how)


def one_step(posterior: Posterior = NO_DECAY, **how: Any) -> Fleet:
    return Fleet(policies={"own": learner(n_step=1, posterior=posterior, **how)})


def of_continue(fleet: Fleet, session_id: int | None = None) -> tuple[float, float]:
    found = fleet.posterior() if session_id is None else fleet.private_posterior(session_id)
    return float(found["alpha"][0]), float(found["beta"][0])


# --- B64: rewards outside {0, 1} and outside [0, 1] ----------------------------------------------
def give_to_session(fleet: Fleet, reward: Any, private: bool = False) -> int:
    session = fleet.session(private=private)
    session.step(Round(reward=reward))
    return session.id


def give_as_objects(fleet: Fleet, reward: Any, private: bool = False) -> int:
    ids = fleet.open(2, private=private)
    fleet.step(ids, [Round(reward=0.5), Round(reward=reward)])
    return int(ids[1])


def give_as_column(fleet: Fleet, reward: Any, private: bool = False) -> int:
    ids = fleet.open(2, private=private)
    fleet.step(ids, RoundBatch(reward=[0.5, reward]))
    return int(ids[1])


def give_as_array(fleet: Fleet, reward: Any, private: bool = False) -> int:
    ids = fleet.open(2, private=private)
    fleet.step(ids, RoundBatch(reward=np.array([0.5, reward], np.float32)))
    return int(ids[1])


WAYS: list[Callable[..., int]] = [
    give_to_session, give_as_objects, give_as_column, give_as_array,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("reward", [0, 0.3, 0.5, 0.7, 1, np.float32(0.25), np.float64(0.7)])
def test_a_reward_adds_itself_and_the_rest(
    way: Callable[..., int], private: bool, reward: float
) -> None:
    fleet = one_step()
    session = way(fleet, reward, private)
    if private:
        assert of_continue(fleet) == (2.0, 2.0)
        assert of_continue(fleet, session) == pytest.approx((2 + reward, 3 - reward), abs=1e-6)
    else:
        beside = 0.0 if way is give_to_session else 0.5
        assert of_continue(fleet) == pytest.approx(
            (2 + beside + reward, 3 + beside - reward), abs=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_rewards_are_symmetric_around_one_half(way: Callable[..., int]) -> None:
    for reward in (0.0, 0.1, 0.3, 0.5):
        learned = []
        for given in (reward, 1 - reward):
            fleet = one_step()
            way(fleet, given)
            learned.append(of_continue(fleet))
        assert learned[0] == pytest.approx(learned[1][::-1], abs=1e-9)


NUMBERS = [1.1, -0.1, math.nan, math.inf, -math.inf]


# An array of numbers holds nothing else.
@pytest.mark.parametrize(("way", "reward"), [
    *((way, reward) for way in WAYS for reward in NUMBERS),
    *((way, reward) for way in WAYS if way is not give_as_array
      for reward in ("0.4", b"1", [0.5, 0.5], 1j, {}, 10**400)),
])
def test_any_other_reward_is_refused_and_nothing_learned(
    way: Callable[..., int], reward: Any
) -> None:
    fleet = one_step()
    if reward != reward and way in (give_as_column, give_as_array):
        way(fleet, reward)      # in columns NaN is: not given
        assert of_continue(fleet) == pytest.approx((3.5, 2.5))
        return
    with pytest.raises(InputError, match="reward") as said:
        way(fleet, reward)
    assert "wanted" in str(said.value)
    assert of_continue(fleet) == (2.0, 2.0)
    assert fleet.posterior()["updates"].sum() == 0


def test_no_reward_is_the_computed_one() -> None:
    fleet = one_step()
    assert fleet.session().step(Round(reward=None)).reward == 1.0
    failed = Round([ToolCall("read", error="gone")], reward=None)
    assert fleet.session().step(failed).reward == pytest.approx(0.3)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, "0.4", None])
def test_kernels_refuse_what_is_no_number(reward: Any) -> None:
    out = np.full((1, 2), 7.0)
    with pytest.raises(InputError, match="rewards"):
        kernels.nstep_returns([[0.5, reward]], 2, out=out)
    assert out.tolist() == [[7.0, 7.0]]


@pytest.mark.parametrize("update", ["both", "one_side"])
def test_a_posterior_stays_finite_and_positive(update: str) -> None:
    chance = random.Random(4)
    fleet = one_step(Posterior(alpha=1e-3, beta=1e-3, decay=0.5, decay_every=1), update=update)
    for _ in range(300):
        session = fleet.session()
        session.step(Round(reward=chance.choice([0.0, 1.0, 0.5, 1e-7, chance.random()])))
        session.close(chance.choice([True, False, None]))
    learned = fleet.posterior()
    for name in ("alpha", "beta"):
        assert np.isfinite(learned[name]).all() and (learned[name] >= 1e-3).all()


# --- B65: decay ----------------------------------------------------------------------------------
@pytest.mark.parametrize("target", ["prior", 1.5])
def test_a_million_decays_end_at_the_target(target: Any) -> None:
    posterior = Posterior(alpha=2.0, beta=3.0, decay=0.99, decay_every=1, decay_target=target)
    fleet = one_step(posterior)
    for _ in range(20):
        fleet.session().step(Round(reward=0.75))
    before = of_continue(fleet)
    goal = (2.0, 3.0) if target == "prior" else (1.5, 1.5)
    for count in (1, 999, 999_000):
        fleet.close(fleet.open(count))
        learned = fleet.posterior()
        for name, least, start in zip(("alpha", "beta"), goal, before, strict=True):
            assert (learned[name] >= least).all(), "never below"
            assert learned[name][0] < start
    assert of_continue(fleet) == pytest.approx(goal, rel=1e-12)
    assert fleet.export_posterior().closed == 1_000_000
    alpha, beta = kernels.decay(before[0], before[1], 0.99, goal, 1_000_000)
    assert (float(alpha), float(beta)) == pytest.approx(goal, rel=1e-12)


def test_no_decay_changes_no_bit() -> None:
    for posterior in (Posterior(decay=1.0, decay_every=1), NO_DECAY):
        fleet = one_step(posterior)
        fleet.session().step(Round(reward=0.7))
        before = of_continue(fleet)
        fleet.close(fleet.open(1_000))
        assert of_continue(fleet) == before
    alpha, beta = kernels.decay([0.1, 7.3], [0.2, 9.9], 1.0, 2.0, 1_000)
    assert alpha.tolist() == [0.1, 7.3] and beta.tolist() == [0.2, 9.9]


@pytest.mark.parametrize("decay", [0, 1.2, -1, math.nan, math.inf, "0.9", None, True])
def test_a_decay_outside_its_range_is_refused_everywhere(decay: Any) -> None:
    with pytest.raises(InputError, match="decay"):
        Posterior(decay=decay)
    with pytest.raises(InputError, match=r"posterior\.decay"):
        Policy(posterior={"decay": decay})
    with pytest.raises(InputError, match="factor"):
        kernels.decay(2.0, 2.0, decay, 1.0)
    state = one_step().export_posterior().as_json()
    state["settings"]["decay"] = decay
    with pytest.raises(InputError, match=r"settings\.decay"):
        LearnedPosterior.from_fields(state)


@pytest.mark.parametrize("cut", range(12))
def test_no_decay_is_lost_or_doubled_by_an_export(cut: int) -> None:
    posterior = Posterior(decay=0.5, decay_every=4)
    one, other = one_step(posterior), one_step(posterior)
    for number in range(12):
        if number == cut:       # also where a decay is due with the next session, or was just done
            text = other.export_posterior().to_json()
            other = one_step(posterior)
            other.import_posterior(LearnedPosterior.from_json(text))
        for fleet in (one, other):
            session = fleet.session()
            session.step(Round(reward=0.75))
            session.close()
        assert other.export_posterior().actions == one.export_posterior().actions
    kept = Fraction(3, 4) * (4 + 2 + 1) * 4 / 8     # three decays by one half, of four rewards each
    assert of_continue(one)[0] == 2 + float(kept)


# --- B68: credit goes to the decision that led to it ---------------------------------------------
def forced(first: str) -> Policy:
    """A failed round leads to this decision, all others to continue, and every one learns."""
    rules: dict[str, Any] = {name: {"enabled": False} for name, _ in Policy().rules}
    rules["failure_chain"] = {"enabled": True, "failures": 1, "actions": [first]}
    return Policy(learn_from="all", tie_break="first", rules=rules, n_step=3)


def test_a_decision_gets_what_came_after_it() -> None:
    fleet = Fleet(policies={"own": forced("redirect")}, pools={"p": NO_DECAY})
    session = fleet.session()
    actions = []
    for number, reward in enumerate([1.0, 0.0, 1.0, 1.0]):
        call = ToolCall("look", number, f"found {number}", error=number == 0)
        actions.append(str(session.step(Round([call], reward=reward)).action))
    assert actions == ["redirect", "continue", "continue", "continue"]
    learned = fleet.posterior()
    # Decision 0 is continue and had 1, 0, 1; then redirect had 0, 1, 1; the others are pending.
    assert learned["updates"].tolist() == [1, 0, 1, 0, 0]
    assert learned["alpha"][2] == pytest.approx(2 + 2 / 3, abs=1e-6)
    assert learned["beta"][2] == pytest.approx(2 + 1 / 3, abs=1e-6)
    assert learned["alpha"][0] == pytest.approx(2 + 2 / 3, abs=1e-6)


def learned_by(ids: Any, fleet: Fleet) -> list[list[list[float]]]:
    return [
        [values.tolist() for values in fleet.private_posterior(one).values()] for one in ids
    ]


@pytest.mark.parametrize("credit", ["forward", "newest"])
def test_sessions_stepped_together_learn_each_from_its_own(credit: str) -> None:
    rewards = np.array([[1, 1, 1, 1], [0, 0, 0, 0]], np.float32)
    results = []
    for way in ("batch", "other order", "one by one", "interleaved"):
        fleet = Fleet(policies={"own": learner(n_step=3, credit=credit, posterior=NO_DECAY)})
        ids = fleet.open(2, private=True)
        if way in ("batch", "other order"):
            order = [0, 1] if way == "batch" else [1, 0]
            for column in rewards.T:
                fleet.step(ids[order], RoundBatch(reward=column[order].copy()))
        else:
            places = [(one, t) for one in (0, 1) for t in range(4)]
            if way == "interleaved":
                places.sort(key=lambda place: place[1])
            for one, t in places:
                fleet.step(ids[[one]], [Round(reward=float(rewards[one, t]))])
        results.append(learned_by(ids, fleet))
    (good, bad), *others = results
    assert all(other == results[0] for other in others)
    updates = 2 if credit == "forward" else 4
    assert [good[0][0], good[1][0], good[2][0]] == [2 + updates, 2, updates]
    assert [bad[0][0], bad[1][0], bad[2][0]] == [2, 2 + updates, updates]


def test_a_pool_learns_the_same_however_sessions_are_stepped() -> None:
    chance = random.Random(8)
    rewards = [[chance.random() for _ in range(6)] for _ in range(20)]
    learned = []
    for together in (True, False):
        fleet = Fleet(policies={"own": learner(n_step=3, posterior=NO_DECAY)})
        ids = fleet.open(20)
        if together:
            for t in range(6):
                fleet.step(ids, [Round(reward=of[t]) for of in rewards])
        else:
            for one, of in zip(ids, rewards, strict=True):
                for reward in of:
                    fleet.step([one], [Round(reward=reward)])
        fleet.close(ids)
        learned.append(of_continue(fleet))
        assert fleet.posterior()["updates"][0] == 20 * 6
    assert learned[0] == pytest.approx(learned[1], rel=1e-12)


# --- B70: the random numbers of the program around it --------------------------------------------
def tied(seed: int, meanwhile: Callable[[], None]) -> list[Any]:
    """Decisions that draw, of a session and of a batch, with something in between."""
    rules: dict[str, Any] = {"failure_chain": {"failures": 1, "actions": ["retry", "redirect"]}}
    fleet = Fleet(seed=seed, policies={"own": Policy(rules=rules)})
    session, ids = fleet.session(), fleet.open(40)
    found: list[Any] = []
    for number in range(12):
        failed = Round([ToolCall("read", number, "gone", error=True)])
        meanwhile()
        decision = session.step(failed)
        meanwhile()
        decisions = fleet.step(ids, [failed] * 40)
        found += [seen(decision), decisions.action.tolist(), decisions.draws.tolist()]
    return found


def seen(decision: Decision) -> tuple[Any, ...]:
    return decision.action, decision.draws, decision.tiebreak


def disturb() -> None:
    np.random.seed(0)
    random.seed(0)
    np.random.random(7)
    random.random()


def test_global_random_states_neither_disturb_nor_are_disturbed() -> None:
    quiet = tied(3, lambda: None)
    assert any(isinstance(one, tuple) and one[2] for one in quiet), "it has drawn"
    assert str(tied(3, disturb)) == str(quiet)
    assert str(tied(4, disturb)) != str(quiet)
    disturb()
    before = random.getstate(), str(np.random.get_state())
    tied(3, lambda: None)
    fleet = one_step()
    fleet.session().close(True)
    fleet.export_posterior()
    kernels.sample_beta(2.0, 2.0, key=5)
    assert (random.getstate(), str(np.random.get_state())) == before
