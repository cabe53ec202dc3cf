"""`policy="auto"`: which policy a session is opened under, and what is learned of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable_runs import copied, facts, recovered
from old_snapshots import DATA
from reference_choice import Choices

from cellium_fast import (
    Fleet,
    InputError,
    Policy,
    PolicyChoice,
    Posterior,
    Round,
    RoundBatch,
    SessionError,
    UnknownNameError,
    UserCodeError,
    _choice,
    reward,
)
from cellium_fast.arguments import MAX_CHOICES

POLICIES = {"calm": "default", "strict": "cellium", "other": "default"}


def new_fleet(**options: Any) -> Fleet:
    return Fleet(**{"policies": POLICIES, "pools": ["large", "small"], **options})


def rewards(*values: float) -> RoundBatch:
    """One round of each session, with these rewards."""
    return RoundBatch(reward=np.array(values, np.float32))


# --- as the reference -----------------------------------------------------------------------------
class Both:
    """A fleet and the reference that get the same calls."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.ids = fleet, []
        self.known = Choices(fleet.seed, fleet.policies)

    def open(self, count: int, **options: Any) -> list[int]:
        """Sessions by choice of the fleet; returns their ids."""
        opened = self.fleet._memory.opened
        ids = self.fleet.open(count, policy="auto", **options).tolist()
        pool = options.get("pool", "large")
        names = [self.known.choose(opened + place, pool) for place in range(count)]
        assert self.fleet.policy_of(ids) == names
        for one, name in zip(ids, names, strict=True):
            self.known.open(one, pool, name)
        self.ids += ids
        return ids

    def step(self, ids: list[int], rewarded: list[float]) -> None:
        self.fleet.step(ids, rewards(*rewarded))
        for one, share in zip(ids, rewarded, strict=True):
            self.known.reward(one, share)

    def close(self, ids: list[int], told: list[bool | None]) -> None:
        self.fleet.close(ids, np.array([-1 if one is None else one for one in told], np.int8))
        for one, success in zip(ids, told, strict=True):
            self.known.close(one, success)
            self.ids.remove(one)

    def compare(self) -> None:
        for pool in self.fleet.pools:
            for name, found in self.fleet.policy_choice(pool).items():
                alpha, beta = self.known.shapes(pool, name)
                assert found.alpha == pytest.approx(alpha, abs=1e-7)
                assert found.beta == pytest.approx(beta, abs=1e-7)
                assert found.opened == self.known.opened[pool, name]
                assert found.learned == self.known.learned[pool, name]


def play(both: Both, rng: random.Random, rounds: int) -> None:
    """Calls at random."""
    for _ in range(rounds):
        both.open(rng.randrange(5), pool=rng.choice(["large", "small"]), private=rng.random() < 0.3)
        some = rng.sample(both.ids, rng.randrange(len(both.ids) + 1))
        both.step(some, [rng.randrange(9) / 8 for _ in some])
        if some and rng.random() < 0.2:
            name = rng.choice(list(POLICIES))
            both.fleet.use_policy(some[:1], name)
            both.known.use(some[0], name)
        ends = rng.sample(both.ids, rng.randrange(min(len(both.ids), 4) + 1))
        both.close(ends, [rng.choice([None, False, True, True]) for _ in ends])
        both.fleet.close(both.fleet.open(1, policy="strict"), True)     # teaches nobody
        both.compare()


def test_the_fleet_chooses_and_learns_as_the_reference(rng: random.Random) -> None:
    both = Both(new_fleet(seed=rng.getrandbits(64), threads=1))
    play(both, rng, 60)
    assert min(both.known.opened.values()) > 0
    assert sum(both.known.learned.values()) > 30


def test_more_draws_than_are_made_at_once() -> None:
    policies = {f"policy {place}": "default" for place in range(150)}
    both = Both(Fleet(seed=11, policies=policies, pools=["large"]))
    both.open(7)
    assert len(set(both.fleet.policy_of(both.ids))) > 3


# --- what it is for -------------------------------------------------------------------------------
CHANCES = {"calm": 0.8, "strict": 0.4}


def regret(seed: int, sessions: int, together: int = 1) -> tuple[float, float]:
    """Successes missed to always opening the better policy, and how often that one was chosen.

    The sessions are opened and closed so many together.
    """
    fleet = Fleet(seed=seed, policies={name: POLICIES[name] for name in CHANCES})
    chance = np.random.default_rng(seed)
    for _ in range(sessions // together):
        ids = fleet.open(together, policy="auto")
        chances = np.array([CHANCES[name] for name in fleet.policy_of(ids)])
        fleet.close(ids, chance.random(together) < chances)
    known = fleet.policy_choice()
    missed = sum((0.8 - chance) * known[name].opened for name, chance in CHANCES.items())
    return missed, known["calm"].opened / sessions


def finds_the_better_policy(seed: int) -> bool:
    missed, share = regret(seed, 500)
    return share >= 0.9 and missed < 20


def test_the_better_policy_is_found(rng: random.Random) -> None:
    seeds = [rng.getrandbits(32) for _ in range(20)]
    assert sum(map(finds_the_better_policy, seeds)) >= 19, seeds


@pytest.mark.parametrize("wrong", ["in turn", "upside down", "by one draw"])
def test_a_wrong_sampler_does_not_find_it(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(choices: Any, key: int, first: int, out: Any) -> None:
        if wrong == "in turn":
            out[:] = (first + np.arange(len(out))) % len(choices)
        elif wrong == "upside down":
            one = 2**31
            swapped = choices.copy()
            swapped["won"] = choices["learned"] * one - choices["won"]
            right(swapped, key, first, out)
        else:
            blind = choices.copy()
            blind["won"] = blind["learned"] = 0
            right(blind, key, first, out)

    right = _choice.choose
    monkeypatch.setattr(_choice, "choose", choose)
    assert not any(map(finds_the_better_policy, range(5)))


def test_regret_grows_slower_than_the_sessions() -> None:
    seeds = range(10)
    short = np.mean([regret(seed, 200)[0] for seed in seeds])
    long = np.mean([regret(seed, 2_000)[0] for seed in seeds])
    assert long < 3 * short     # chosen at random it would be 10 times as much: 400 successes
    assert long < 15
    assert np.mean([regret(seed, 2_000, together=50)[0] for seed in seeds]) < 30


# --- what counts ----------------------------------------------------------------------------------
def gained(fleet: Fleet, name: str) -> tuple[float, float]:
    """What the outcomes of a policy's sessions added."""
    known = fleet.policy_choice()[name]
    return known.alpha - 1, known.beta - 1


def test_what_nobody_tells_is_the_mean_reward() -> None:
    fleet = Fleet()
    with fleet.session(policy="auto") as session:
        for share in (0.25, 0.5, 1.0, 0.25):
            session.step(Round(reward=share))
    assert gained(fleet, "default") == (0.5, 0.5)
    one, other = fleet.open(2, policy="auto").tolist()
    fleet.step([one, other], rewards(0.0, 1.0))
    fleet.step([other], rewards(0.5))
    fleet.close([other, one])
    assert gained(fleet, "default") == (1.25, 1.75)


def test_what_is_told_counts_instead_of_rewards() -> None:
    fleet = Fleet()
    for told, share in ((True, 0.0), (False, 1.0), (False, 1.0)):
        session = fleet.session(policy="auto")
        session.step(Round(reward=share))
        session.close(told)
    fleet.close(fleet.open(1, policy="auto"), True)     # also without a round
    assert gained(fleet, "default") == (2, 2)


def test_a_session_without_a_round_and_outcome_teaches_nothing() -> None:
    fleet = Fleet()
    fleet.close(fleet.open(5, policy="auto"))
    assert gained(fleet, "default") == (0, 0)
    assert (fleet.policy_choice()["default"].opened, fleet.policy_choice()["default"].learned) == (
        5, 0,
    )


def test_a_session_of_a_named_policy_teaches_nothing() -> None:
    fleet = Fleet()
    auto, named = fleet.open(1, policy="auto"), fleet.open(1, policy="default")
    fleet.step([*auto, *named], rewards(1, 1))
    fleet.close([*auto, *named], True)
    fleet.close(fleet.open(1), True)        # in the slot of one that was chosen
    assert fleet.policy_choice()["default"].learned == 1


def test_a_session_that_left_its_policy_teaches_nothing() -> None:
    fleet = new_fleet()
    ids = fleet.open(30, policy="auto")
    names = fleet.policy_of(ids)
    fleet.use_policy(ids, "calm")
    fleet.use_policy(ids, "strict")
    fleet.use_policy(ids, "calm")
    fleet.close(ids, True)
    for name, known in fleet.policy_choice().items():
        assert (known.opened, known.learned) == (names.count(name), 0)
    stays = fleet.open(1, policy="auto")
    fleet.use_policy(stays, fleet.policy_of(stays)[0])
    fleet.close(stays, True)
    assert sum(known.learned for known in fleet.policy_choice().values()) == 1


def test_other_parameters_under_the_same_name_keep_what_was_learned() -> None:
    fleet = Fleet()
    ids = fleet.open(2, policy="auto")
    fleet.close(ids[:1], True)
    fleet.set_policy("default", "cellium")
    fleet.close(ids[1:], True)
    assert gained(fleet, "default") == (2, 0)


def test_pools_learn_apart_and_private_sessions_choose_too() -> None:
    fleet = new_fleet()
    fleet.close(fleet.open(3, policy="auto", pool="small", private=True), True)
    assert sum(known.opened for known in fleet.policy_choice("large").values()) == 0
    assert sum(known.learned for known in fleet.policy_choice("small").values()) == 3


def test_who_has_to_go_counts_with_the_mean_reward() -> None:
    fleet = Fleet(max_sessions=2)
    ids = fleet.open(2, policy="auto")
    fleet.step(ids, rewards(0.25, 0.5))
    fleet.open(1)
    assert gained(fleet, "default") == (0.25, 0.75)
    fleet.open(2, policy="auto")
    assert gained(fleet, "default") == (0.75, 1.25)
    assert fleet.policy_choice()["default"].opened == 4


def test_a_handle_has_the_policy_that_was_chosen() -> None:
    fleet = new_fleet(seed=3)
    sessions = [fleet.session(policy="auto") for _ in range(20)]
    assert len({session.policy for session in sessions}) == 3
    for session in sessions:
        assert session.decision.setting.policy == fleet.policies[session.policy]
        assert fleet.policy_of([session.id]) == [session.policy]
    session.use_policy("strict")
    assert session.policy == "strict"
    session.close()
    with pytest.raises(SessionError, match="closed"):
        session.policy  # noqa: B018


def half_the_first(features: Any, outcome: Any) -> float:
    if features.round > 2:
        raise ValueError("only two rounds")
    return 0.5 * features.round


def test_rewards_of_users_count_and_failed_steps_do_not() -> None:
    fleet = Fleet(policies={"own": Policy(user_reward=reward(half_the_first))})
    ids = fleet.open(2, policy="auto")
    session = fleet.session(policy="auto")
    for _ in range(2):
        fleet.step(ids, [Round()] * 2)
        session.step(Round())
    before = fleet._memory.base.trials.tobytes()
    for step in (lambda: fleet.step(ids, [Round()] * 2), lambda: session.step(Round())):
        with pytest.raises(UserCodeError, match="only two rounds"):
            step()
        assert fleet._memory.base.trials.tobytes() == before
    fleet.close(ids)
    session.close()
    assert gained(fleet, "own") == (2.25, 0.75)


def test_rounds_of_a_block_count() -> None:
    fleet = Fleet()
    ids = fleet.open(3, policy="auto")
    with fleet.block(ids, given=["reward"]) as block:
        for share in (0.25, 0.75):
            block.rounds.reward[:] = share
            block.step()
        block.close([1], True)
    fleet.close(ids[[0, 2]])
    assert gained(fleet, "default") == (2, 1)


# --- what it does not depend on -------------------------------------------------------------------
def test_one_by_one_is_as_all_together() -> None:
    one, other = new_fleet(seed=5), new_fleet(seed=5)
    together = one.policy_of(one.open(200, policy="auto"))
    singly = [other.session(policy="auto").policy for _ in range(200)]
    assert singly == together
    assert one.policy_choice() == other.policy_choice()


def test_the_order_of_closing_does_not_matter(rng: random.Random) -> None:
    known = []
    order = list(range(60))
    given = [rng.random() for _ in order]
    told = [rng.choice([-1, -1, 0, 1]) for _ in order]
    for _ in range(5):
        fleet = new_fleet(seed=5)
        ids = fleet.open(60, policy="auto")
        for _ in range(3):
            fleet.step(ids, rewards(*given))
        waiting = rng.sample(order, 60)
        while waiting:
            count = rng.randrange(1, 30)
            some, waiting = waiting[:count], waiting[count:]
            fleet.close(ids[some], np.array(told, np.int8)[some])
        known.append(fleet.policy_choice())
    assert all(one == known[0] for one in known)
    assert any(one.alpha % 1 for one in known[0].values())


def test_threads_and_batches_make_no_difference() -> None:
    known = []
    for threads in (1, 3):
        fleet = new_fleet(seed=5, threads=threads)
        ids = fleet.open(20_000, policy="auto")
        fleet.step(ids, rewards(*np.linspace(0, 1, len(ids))))
        fleet.close(ids)
        known.append(fleet.policy_choice())
    assert known[0] == known[1]
    assert sum(one.learned for one in known[0].values()) == 20_000


def test_memory_that_grows_keeps_what_it_knows() -> None:
    fleet = Fleet()
    ids = fleet.open(1, policy="auto")
    fleet.step(ids, rewards(0.5))
    fleet.open(5_000)
    fleet.close(ids)
    assert gained(fleet, "default") == (0.5, 0.5)


# --- limits ---------------------------------------------------------------------------------------
def test_no_policy_is_called_auto() -> None:
    with pytest.raises(InputError, match="policies: 'auto' asks the fleet to choose"):
        Fleet(policies={"auto": "default"})
    with pytest.raises(UnknownNameError, match="none called 'auto'"):
        Fleet().use_policy([], "auto")


def test_more_pairs_than_can_be_kept_are_refused() -> None:
    pools = {f"pool {place}": Posterior() for place in range(2**12)}
    policies = {f"policy {place}": "default" for place in range(MAX_CHOICES // 2**12 + 1)}
    fleet = Fleet(policies=policies, pools=pools)
    for opening in (lambda: fleet.open(1, policy="auto"), lambda: fleet.session(policy="auto")):
        with pytest.raises(InputError, match=r"at most 1,048,576 such pairs"):
            opening()
    assert len(fleet) == fleet._memory.opened == 0
    assert fleet._memory.choices is None


def test_learning_stops_where_its_counter_does() -> None:
    fleet = Fleet()
    ids = fleet.open(2, policy="auto")
    fleet._memory.choices["learned"] = _choice.MOST_LEARNED - 1
    fleet._memory.choices["won"] = (_choice.MOST_LEARNED - 1) * 2**31
    fleet.close(ids, True)
    known = fleet.policy_choice()["default"]
    assert known.learned == _choice.MOST_LEARNED
    assert (known.alpha, known.beta) == (_choice.MOST_LEARNED + 1, 1)
    assert fleet.policy_of(fleet.open(3, policy="auto")) == ["default"] * 3


# --- what outlives the process --------------------------------------------------------------------
def resumed(fleet: Fleet, file: Path) -> Fleet:
    """The fleet, saved and loaded."""
    fleet.save(file)
    return Fleet.load(file)


def test_a_fleet_that_is_loaded_goes_on_choosing(tmp_path: Path, rng: random.Random) -> None:
    both = Both(new_fleet(seed=rng.getrandbits(64)))
    for _ in range(6):
        play(both, rng, 5)
        both.fleet = resumed(both.fleet, tmp_path / "fleet")
    assert sum(both.known.learned.values()) > 10


def test_a_fleet_that_never_chose_has_nothing_to_save(tmp_path: Path) -> None:
    fleet = new_fleet()
    fleet.open(0, policy="auto")
    assert fleet._state().choices is fleet._state().trials is None
    assert resumed(fleet, tmp_path / "fleet").policy_choice() == fleet.policy_choice()


def test_what_version_2_had_chosen_nothing() -> None:
    fleet = Fleet.load(DATA / "snapshot-v2.safetensors")
    for pool in fleet.pools:
        assert set(fleet.policy_choice(pool).values()) == {PolicyChoice(1.0, 1.0, 0, 0)}
    fleet.close(fleet.open(1, policy="auto"), True)
    assert sum(known.learned for known in fleet.policy_choice().values()) == 1


def test_recovery_takes_what_was_chosen_and_chooses_nothing(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"policies": POLICIES, "pools": ["large", "small"], "seed": 9}
    both = Both(recovered(tmp_path / "fleet", **options))
    play(both, rng, 25)
    with both.fleet.session("ticket", policy="auto", tools=["search"]) as session:
        session.step(Round(reward=0.25))
        wanted, name = facts(both.fleet, sources=False), session.policy
        assert wanted["choices"] is not None and wanted["trials"] is not None
        crash = copied(tmp_path / "fleet", tmp_path / "crash")
        with monkeypatch.context() as patched:
            patched.delattr(_choice, "choose")
            with recovered(crash) as again:
                assert facts(again, sources=False) == wanted
                assert again.attach("ticket").policy == name
    both.fleet.compact()
    wanted = facts(both.fleet, sources=False)
    both.fleet.shut()
    with recovered(tmp_path / "fleet") as again:
        assert facts(again, sources=False) == wanted
