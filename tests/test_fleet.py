"""`Fleet`: opening, closing and growing, policies and pools by name, events, seeds, threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cellium_fast import (
    Action,
    Decisions,
    Fleet,
    Policy,
    Posterior,
    Round,
    RoundBatch,
    SessionError,
    ToolCall,
)
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES

# Under it many a decision is a tie, and one round in a full context ends a session.
TYING = SIXTEEN_RULES
FAILED = Round([ToolCall("a", {"q": 1}, "x", error=True)])
FINE = Round([ToolCall("a", {"q": 2}, "found it")])
LAST_ROUND = Round(context_tokens=99)   # of a context of 100: exhausted


def tying(**how) -> Fleet:
    return Fleet(policies={"tying": TYING}, **how)


def batch_of(chance: np.random.Generator, count: int) -> RoundBatch:
    """Rounds with one call each, of agents that fail and repeat themselves."""
    return RoundBatch(
        call_offsets=np.arange(count + 1),
        call_tool=chance.integers(1, 4, count).astype(np.uint64),
        call_signature=chance.integers(1, 4, count).astype(np.uint64),
        call_result=chance.integers(1, 3, count).astype(np.uint64),
        call_flags=(chance.random(count) < 0.6).astype(np.uint8),
        call_size=chance.integers(0, 500, count).astype(np.uint32),
        text=chance.integers(0, 20, count).astype(np.uint64),
        context_tokens=chance.integers(0, 80_000, count),
    )


def drawn(decisions: Decisions) -> tuple[bytes, ...]:
    return (decisions.action.tobytes(), decisions.rules.tobytes(), decisions.reward.tobytes(),
            decisions.draws.tobytes(), decisions.bias.tobytes())


def rows(fleet: Fleet, ids: np.ndarray) -> dict[str, bytes]:
    """The records of some sessions field by field, without what pads them."""
    sessions = fleet._memory.sessions
    return {name: sessions[name][ids].tobytes() for name in sessions.dtype.names}


def posterior(fleet: Fleet, pool: str | None = None) -> dict[str, list]:
    return {name: values.tolist() for name, values in fleet.posterior(pool).items()}


# --- opening and closing --------------------------------------------------------------------------
def test_ids_of_open_sessions():
    fleet = Fleet()
    ids = fleet.open(3)
    assert (ids.dtype, ids.tolist(), len(fleet)) == (np.int64, [0, 1, 2], 3)
    assert fleet.open(0).tolist() == []
    fleet.close(ids[1:2])
    assert len(fleet) == 2
    fleet.close([])
    assert len(fleet) == 2
    fleet.close(ids[[0, 2]])
    assert len(fleet) == 0


def test_slots_are_used_again_and_ids_never():
    chance = np.random.default_rng(3)
    fleet = Fleet()
    open_ids: list[int] = []
    seen: set[int] = set()
    for _ in range(600):
        new = fleet.open(int(chance.integers(0, 40))).tolist()
        assert seen.isdisjoint(new)
        seen.update(new)
        open_ids += new
        chance.shuffle(open_ids)
        leaving = int(chance.integers(0, min(len(open_ids), 60) + 1))
        fleet.close(open_ids[:leaving], success=True)
        del open_ids[:leaving]
        assert len(fleet) == len(open_ids)
    assert len(seen) > 10_000
    assert len(fleet._memory.sessions) < 4_096
    fleet.done(open_ids)
    for gone in seen.difference(open_ids):
        with pytest.raises(SessionError, match="closed"):
            fleet.done([gone])


def test_a_slot_whose_ids_have_run_out_is_given_up():
    fleet = Fleet()
    fleet.close(fleet.open(1))
    fleet._memory.sessions["generation"][0] = 2**31 - 2
    last = fleet.open(1)
    assert last.tolist() == [(2**31 - 2) << 32]
    fleet.step(last, [FAILED])
    fleet.close(last)
    assert fleet.open(2).tolist() == [1, 2]
    with pytest.raises(SessionError, match="closed"):
        fleet.step(last, [FAILED])


def test_a_reused_slot_remembers_nothing():
    fresh, used = Fleet(seed=5), Fleet(seed=5, policies={"a": Policy(), "b": Policy()})
    old = used.open(1, context_limit=100, round_limit=5, policy="b", private=True)
    for _ in range(12):
        used.step(old, [Round([ToolCall("x", error=True)] * 3, text="t", context_tokens=99)])
    used.close(old)
    fresh.open(1)   # the uid is part of every draw
    names = [name for name in fresh._memory.sessions.dtype.names if name not in ("generation",)]
    left, right = fresh._memory.sessions[fresh.open(1)][0], used._memory.sessions[0]
    assert used.open(1).tolist() == [1 << 32]
    assert {n: left[n].tolist() for n in names} == {n: right[n].tolist() for n in names}


@pytest.mark.parametrize("steps", [[64, 100_000], [64, 65, 129, 1_000, 100_000]])
def test_growing_changes_no_session_s_future(steps):
    growing, still = tying(seed=9), tying(seed=9)
    ids = growing.open(steps[0], context_limit=100_000)
    still.open(steps[0], context_limit=100_000)
    chances = [np.random.default_rng(1), np.random.default_rng(1)]
    tiebreaks = 0
    for size in [*steps[1:], *[0] * 20]:
        for _ in range(5):
            left, right = (
                fleet.step(ids, batch_of(chance, len(ids)))
                for fleet, chance in zip((growing, still), chances, strict=True)
            )
            assert drawn(left) == drawn(right)
            tiebreaks += int(left.tiebreak.sum())
        if size:
            growing.open(size - len(growing))
            assert len(growing) == size
    assert tiebreaks > 100
    assert posterior(growing) == posterior(still)
    assert rows(growing, ids) == rows(still, ids)


def test_limits_for_each_session():
    fleet = Fleet()
    ids = fleet.open(3, context_limit=[100, 200, 0], round_limit=np.array([5, 6, 7], np.int32))
    features = fleet.step(ids, RoundBatch(context_tokens=[50, 50, 50])).features
    assert features["context_ratio"].tolist() == [0.5, 0.25, 0.0]
    assert features["context_known"].tolist() == [True, True, False]
    assert features["rounds_left"].tolist() == [4, 5, 6]


@pytest.mark.parametrize("limit", [None, float("inf"), np.inf])
def test_no_round_limit(limit):
    fleet = Fleet()
    decisions = fleet.step(fleet.open(1, round_limit=limit), [FINE])
    assert decisions.features["rounds_left"].tolist() == [-1]


@pytest.mark.parametrize("limit", [1, np.int8(1), np.uint64(1)])
def test_a_round_limit_ends_a_session(limit):
    fleet = Fleet()
    assert fleet.step(fleet.open(1, round_limit=limit), [FINE])[0].action == Action.TERMINATE


@pytest.mark.parametrize("limit", [None, 0])
def test_an_unknown_context_limit_fires_no_rule(limit):
    fleet = Fleet()
    decision = fleet.step(fleet.open(1, context_limit=limit), [Round(context_tokens=10**9)])[0]
    assert (decision.action, decision.rules) == (Action.CONTINUE, ("progressing",))


# --- policies and pools ---------------------------------------------------------------------------
def test_the_first_policy_and_pool_are_the_default():
    own = Policy(rules={
        "output_loop": {"actions": ["compress"], "repeats": 1, "after_redirect": False},
    })
    fleet = Fleet(policies={"own": own, "usual": "default"}, pools=["a", "b"])
    ids = np.concatenate([
        fleet.open(1), fleet.open(1, policy="own"), fleet.open(1, policy="usual", pool="b"),
        [fleet.session(policy="usual").id],
    ])
    for _ in range(2):
        decisions = fleet.step(ids, [Round(text="again")] * 4)
    assert decisions.action.tolist() == [3, 3, 0, 0]
    assert fleet._memory.sessions["pool"][:4].tolist() == [0, 0, 1, 0]


def test_one_policy_and_one_pool_when_nothing_is_named():
    fleet = Fleet()
    assert fleet.policies == {"default": Policy()}
    assert fleet.pools == {"default": Posterior()}
    assert repr(fleet) == "<Fleet of 0 sessions, policies default, pools default>"


def test_repr_and_len():
    fleet = Fleet(policies={"a": "cellium", "b": Policy()}, pools=["x", "y"])
    fleet.close(fleet.open(3)[:1])
    assert repr(fleet) == "<Fleet of 2 sessions, policies a/b, pools x/y>"
    assert len(fleet) == 2


def test_presets_by_name():
    fleet = Fleet(policies={"mine": "cellium"})
    assert fleet.policies == {"mine": Policy.preset("cellium")}


def test_pools_by_name_have_the_posterior_of_the_first_policy():
    policy = Policy(posterior={"alpha": 3.0, "beta": 5.0})
    fleet = Fleet(policies={"a": policy, "b": "default"}, pools=["x", "y"])
    for pool in (None, "x", "y"):
        assert posterior(fleet, pool) == {
            "alpha": [3.0] * 5, "beta": [5.0] * 5, "updates": [0] * 5,
        }


def test_pools_may_have_a_posterior_of_their_own():
    fleet = Fleet(pools={"x": Posterior(alpha=1.0), "y": Posterior(beta=9.0)})
    assert posterior(fleet)["alpha"] == posterior(fleet, "x")["alpha"] == [1.0] * 5
    assert posterior(fleet, "y")["beta"] == [9.0] * 5
    assert list(fleet.pools) == ["x", "y"]


def test_only_the_session_s_pool_learns():
    fleet = tying(pools=["x", "y", "z"])
    ids = fleet.open(2, pool="y")
    before = posterior(fleet, "x")
    for _ in range(12):
        fleet.step(ids, [FAILED] * 2)
    fleet.close(ids, success=False)
    assert posterior(fleet, "x") == posterior(fleet, "z") == before
    assert sum(posterior(fleet, "y")["updates"]) > 0


def test_what_a_fleet_hands_out_is_a_copy():
    fleet = Fleet()
    fleet.policies.clear()
    fleet.pools.clear()
    fleet.posterior()["alpha"][:] = 99
    private = fleet.open(1, private=True)
    fleet.private_posterior(int(private[0]))["alpha"][:] = 99
    assert fleet.policies == {"default": Policy()}
    assert posterior(fleet)["alpha"] == [2.0] * 5
    assert fleet.private_posterior(int(private[0]))["alpha"].tolist() == [2.0] * 5


def test_a_change_of_the_caller_s_tables_does_not_reach_the_fleet():
    policies, pools = {"a": Policy()}, ["x"]
    fleet = Fleet(policies=policies, pools=pools)
    policies["b"] = Policy()
    pools.append("y")
    assert repr(fleet) == "<Fleet of 0 sessions, policies a, pools x>"


# --- changing policies --------------------------------------------------------------------------
AGAIN = Round([ToolCall("a", {"q": 1}, "one and the same long result")])
OFF = Policy(loop_detection=False)


def test_a_policy_is_replaced_for_all_sessions_under_it_from_their_next_round():
    fleet = Fleet(seed=1, policies={"a": Policy(), "b": Policy()})
    one, other = fleet.open(2), fleet.open(1, policy="b")
    ids = np.concatenate([one, other])
    for _ in range(4):
        before = fleet.step(ids, [AGAIN] * 3)
    assert before.action.tolist() == [Action.REDIRECT] * 3
    explained = [decision.explain() for decision in before]
    fleet.set_policy("a", OFF)
    after = fleet.step(ids, [AGAIN] * 3)
    assert (after.action == Action.REDIRECT).tolist() == [False, False, True]
    assert fleet.policies == {"a": OFF, "b": Policy()}
    assert [after.setting(place).policy for place in range(3)] == [OFF, OFF, Policy()]
    # Decisions taken before are what they were.
    assert [before.setting(place).policy for place in range(3)] == [Policy()] * 3
    assert [decision.explain() for decision in before] == explained
    fleet.set_policy("a", "default")
    assert fleet.step(ids, [AGAIN] * 3).action[0] in (Action.REDIRECT, Action.TERMINATE)


def test_sessions_move_to_another_policy():
    fleet = Fleet(seed=1, policies={"a": Policy(), "b": OFF})
    ids = fleet.open(3)
    for _ in range(4):
        before = fleet.step(ids, [AGAIN] * 3)
    fleet.use_policy(ids[1:2], "b")
    after = fleet.step(ids, [AGAIN] * 3)
    assert (after.action == Action.REDIRECT).tolist() == [True, False, True]
    assert [after.setting(place).policy for place in range(3)] == [Policy(), OFF, Policy()]
    assert before.setting(1).policy == Policy()
    fleet.use_policy(ids, "b")
    assert (fleet.step(ids, [AGAIN] * 3).action != Action.REDIRECT).all()
    fleet.use_policy([], "a")
    assert fleet.step(fleet.open(1), [AGAIN]).setting(0).policy == Policy()


def test_a_change_of_policy_goes_with_the_slot_only_while_its_session_is_open():
    fleet = Fleet(policies={"a": Policy(), "b": OFF})
    ids = fleet.open(1)
    fleet.use_policy(ids, "b")
    fleet.close(ids)
    assert fleet.step(fleet.open(1), [FINE]).setting(0).policy == Policy()


def test_a_change_of_policy_leaves_what_was_learned():
    fleet = Fleet(seed=2, policies={"a": TYING, "b": TYING.replace(posterior={"alpha": 50.0})})
    ids = fleet.open(2, private=True)
    for _ in range(8):
        fleet.step(ids, [FAILED] * 2)
    kept = [fleet.private_posterior(int(one))["alpha"].tolist() for one in ids], posterior(fleet)
    fleet.use_policy(ids[:1], "b")
    fleet.set_policy("a", Policy(posterior={"alpha": 9.0}))
    assert kept == (
        [fleet.private_posterior(int(one))["alpha"].tolist() for one in ids], posterior(fleet)
    )
    assert fleet.private_posterior(int(fleet.open(1, private=True)[0]))["alpha"][0] == 9.0
    assert fleet.pools["default"] == Posterior()


def test_policies_change_while_other_threads_step():
    fleet = Fleet(seed=2, policies={"a": Policy(), "b": OFF})
    ids = fleet.open(500)
    sessions = [fleet.session() for _ in range(20)]
    stop = threading.Event()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            fleet.set_policy("a", Policy(repeat_interval=1 + number % 200))
            fleet.use_policy(ids[::2], "ab"[number % 2])
            sessions[number % 20].use_policy("ab"[number % 2])

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(200):
            decisions = fleet.step(ids, [AGAIN] * 500)
            assert len(decisions[0].explain()) > 0
            for session in sessions:
                decision = session.step(AGAIN)
                known = decision.setting.policy
                assert known == OFF or known.replace(repeat_interval=5) == Policy()
                # The setting is of the policy that decided.
                assert (decision.action == Action.REDIRECT) <= known.loop_detection
    finally:
        stop.set()
        changing.join()


# --- private posteriors ---------------------------------------------------------------------------
def test_a_private_posterior_starts_at_the_policy_s_prior_and_learns_alone():
    fleet = Fleet(policies={"p": TYING.replace(posterior={"alpha": 3.0, "beta": 4.0})})
    mine, other = fleet.open(2, private=True).tolist()
    start = {"alpha": [3.0] * 5, "beta": [4.0] * 5, "updates": [0] * 5}
    pool = posterior(fleet)
    for _ in range(12):
        fleet.step([mine], [FAILED])
    read = {i: {name: values.tolist() for name, values in fleet.private_posterior(i).items()}
            for i in (mine, other)}
    assert read[other] == start
    assert posterior(fleet) == pool
    gained = sum(read[mine]["alpha"]) + sum(read[mine]["beta"]) - 5 * 7.0
    assert gained == pytest.approx(sum(read[mine]["updates"]))
    assert sum(read[mine]["updates"]) > 3


@pytest.mark.parametrize("kind", [int, np.int64])
def test_a_private_posterior_by_any_integer(kind):
    fleet = Fleet()
    session_id = kind(fleet.open(1, private=True)[0])
    assert fleet.private_posterior(session_id)["alpha"].tolist() == [2.0] * 5


# --- close ----------------------------------------------------------------------------------------
def learned(success: object, count: int = 3) -> dict[str, list]:
    fleet = tying(seed=2)
    ids = fleet.open(count)
    for _ in range(6):
        decisions = fleet.step(ids, [FAILED] * count)
    assert decisions.tiebreak.all()
    fleet.close(ids, success)
    return posterior(fleet)


@pytest.mark.parametrize("success", [
    True, 1, [True] * 3, [1, 1, 1], (1, 1, 1), np.True_, np.ones(3, bool), np.ones(3, np.int8),
    np.ones(3, np.int64), np.int8(1),
])
def test_forms_of_success(success):
    assert learned(success) == learned([True, True, True])


@pytest.mark.parametrize("success", [False, 0, np.zeros(3, bool), np.zeros(3, np.int8)])
def test_forms_of_failure(success):
    assert learned(success) == learned([False] * 3)


@pytest.mark.parametrize("success", [None, -1, [-1] * 3, np.full(3, -1, np.int8)])
def test_forms_of_an_outcome_not_told(success):
    assert learned(success) == learned(None)


def test_the_outcome_teaches():
    totals = {told: learned(told) for told in (True, False, None)}
    assert sum(totals[True]["alpha"]) > sum(totals[False]["alpha"])
    # Told: the newest decision is credited too, by the outcome alone.
    assert sum(totals[True]["updates"]) == sum(totals[None]["updates"]) + 3
    assert learned([True, False, True]) not in totals.values()
    assert learned([True, -1, True]) not in totals.values()


def test_a_pool_decays_once_per_so_many_closed_sessions():
    policy = Policy(posterior={"alpha": 2.0, "decay": 0.5, "decay_every": 3, "decay_target": 1.0})
    fleet = Fleet(policies={"p": policy})
    ids = fleet.open(20)
    seen = []
    for stop in (2, 3, 8, 9, 20):
        fleet.close(ids[20 - len(fleet):stop])
        seen.append(posterior(fleet)["alpha"][0])
    # Closed so far 2, 3, 8, 9, 20: decayed 0, 1, 2, 3, 6 times.
    assert seen == [1 + 0.5**times for times in (0, 1, 2, 3, 6)]


def test_private_sessions_do_not_age_a_pool():
    fleet = Fleet(policies={"p": Policy(posterior={"decay_every": 1, "decay_target": 1.0})})
    fleet.close(fleet.open(4, private=True))
    assert posterior(fleet)["alpha"] == [2.0] * 5


# --- done and events ------------------------------------------------------------------------------
def test_done_after_terminate_until_a_user_message():
    fleet = tying()
    ids = fleet.open(3, context_limit=100)
    assert fleet.done(ids).tolist() == [False] * 3
    decisions = fleet.step(ids[1:], [LAST_ROUND, FINE])
    assert decisions[0].action == Action.TERMINATE
    assert fleet.done(ids).dtype == bool
    assert fleet.done(ids).tolist() == [False, True, False]
    fleet.compacted(ids)
    assert fleet.done(ids).tolist() == [False, True, False]
    fleet.user_message(ids)
    assert fleet.done(ids).tolist() == [False] * 3


def test_a_session_that_is_done_can_be_stepped_on():
    fleet = tying()
    ids = fleet.open(1, context_limit=100)
    fleet.step(ids, [LAST_ROUND])
    decision = fleet.step(ids, [Round(context_tokens=1)])[0]
    assert (decision.action, decision.features.round) == (Action.CONTINUE, 2)
    assert fleet.done(ids).tolist() == [True]


def test_a_compaction_clears_nothing():
    fleet = Fleet()
    ids = fleet.open(2, context_limit=100)
    for _ in range(5):
        fleet.step(ids, [FAILED] * 2)
    before = fleet._memory.sessions.tobytes(), fleet._memory.pools.tobytes()
    fleet.compacted(ids)
    assert (fleet._memory.sessions.tobytes(), fleet._memory.pools.tobytes()) == before


def test_a_user_message_clears_what_the_spec_says_and_keeps_the_rest():
    stuck_loop = Round([ToolCall("a", 1, "x", error=True)] * 2, text="again", context_tokens=50)
    fleet = Fleet()
    ids = fleet.open(2, context_limit=100, round_limit=100, private=True)
    for _ in range(9):
        told = fleet.step(ids, [stuck_loop] * 2)[0].features
    assert told.output_repeats == 9
    assert told.failures_in_row == 9
    assert told.repetition_score == 1.0
    before, other = fleet._memory.sessions[ids], rows(fleet, ids[1:])
    fleet.user_message(ids[:1])
    after = fleet._memory.sessions[ids]
    assert rows(fleet, ids[1:]) == other
    for name in ("round", "calls", "errors", "empties", "context_tokens", "context_limit",
                 "round_limit", "alpha", "beta", "updates", "reward", "pending",
                 "uid", "policy", "pool", "updates_since_decay", "decision_stuck"):
        assert before[0][name].tobytes() == after[0][name].tobytes(), name
    for name in ("window_count", "stuck", "trend", "progress", "output_run",
                 "failed_rounds"):
        assert after[0][name] == 0, name
    assert after[0]["history_count"] == 1   # the opening score, which is `progress`

    fine, fresh = Round([ToolCall("b", 2, "y")], text="again"), fleet.open(1)
    features = fleet.step(ids[:1], [fine])[0].features
    opened = fleet.step(fresh, [fine])[0].features
    for name in ("progress_score", "progress_trend", "progress_trend_raw", "trend_confidence",
                 "stuck_iterations", "repetition_score", "cycle", "output_repeats",
                 "failures_in_row", "run_length", "recent_tools", "error_result"):
        assert getattr(features, name) == getattr(opened, name), name
    assert features.round == 10
    assert features.error_rate == 18 / 19
    assert features.context_ratio == 0.5


def test_pending_returns_outlive_a_user_message():
    def total(message: bool) -> dict[str, list]:
        fleet = tying(seed=2)
        ids = fleet.open(1)
        for _ in range(5):
            fleet.step(ids, [FAILED])
        if message:
            fleet.user_message(ids)
        fleet.close(ids, True)
        return posterior(fleet)

    assert total(True) == total(False)
    assert sum(total(True)["updates"]) > 0


# --- seeds ----------------------------------------------------------------------------------------
def run(fleet: Fleet, seed: int, count: int = 200, rounds: int = 12, **options) -> list:
    chance = np.random.default_rng(seed)
    ids = fleet.open(count, context_limit=100_000, **options)
    return [drawn(fleet.step(ids, batch_of(chance, count))) for _ in range(rounds)]


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1, np.uint64(2**64 - 1), np.int8(3)])
def test_the_same_seed_gives_the_same_decisions(seed):
    assert run(tying(seed=seed), 1) == run(tying(seed=int(seed)), 1)


def test_other_seeds_give_other_decisions():
    runs = [run(tying(seed=seed), 1)[-1] for seed in (0, 1, 2**32, 2**63, 2**64 - 1)]
    assert len(set(runs)) == 5


def test_fleets_share_nothing():
    alone = run(tying(seed=4), 1)
    left, right = tying(seed=4), tying(seed=4)
    ids = left.open(200, context_limit=100_000)
    right.open(200, context_limit=100_000)
    chances = [np.random.default_rng(1), np.random.default_rng(2)]
    decided = []
    for _ in range(12):
        decided.append(drawn(left.step(ids, batch_of(chances[0], 200))))
        right.step(ids, batch_of(chances[1], 200))
    assert decided == alone


# --- threads --------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_does_not_show(threads):
    one, many = tying(seed=1), tying(seed=1, threads=threads)
    assert run(one, 1, 5_000, 6) == run(many, 1, 5_000, 6)
    assert posterior(one) == posterior(many)


def test_more_threads_than_sessions():
    fleet = Fleet(threads=1024)
    assert len(fleet.step(fleet.open(1), [FINE])) == 1
    assert len(fleet.step([], [])) == 0


def test_sessions_stepped_from_many_threads_decide_as_alone():
    # Each thread steps sessions of its own while another opens and closes more, so that the
    # fleet grows under them.
    workers, rounds = 8, 200
    serial, shared = tying(seed=6), tying(seed=6)
    alone = [serial.session(f"{k}", private=True, tools=["a", "b"]) for k in range(workers)]
    together = [shared.session(f"{k}", private=True, tools=["a", "b"]) for k in range(workers)]
    scripts = []
    for worker in range(workers):
        chance = np.random.default_rng(worker)
        scripts.append([
            Round([ToolCall("ab"[chance.integers(2)], int(chance.integers(2)), "r",
                            error=bool(chance.random() < 0.7))])
            for _ in range(rounds)
        ])

    def play(session, script):
        return [(d.action, d.draws, d.features) for d in map(session.step, script)]

    running = threading.Event()
    running.set()

    def crowd():
        while running.is_set():
            ids = shared.open(300)
            shared.step(ids, RoundBatch())
            shared.close(ids[::2])

    other = threading.Thread(target=crowd)
    other.start()
    try:
        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(play, together, scripts))
    finally:
        running.clear()
        other.join()
    assert found == [play(session, script) for session, script in zip(alone, scripts, strict=True)]
    assert sum(len(draws) > 1 for one in found for _, draws, _ in one) > 100
    for left, right in zip(alone, together, strict=True):
        expected = serial.private_posterior(left.id)
        for name, values in shared.private_posterior(right.id).items():
            assert values.tolist() == expected[name].tolist()


def test_ids_opened_from_many_threads_are_all_different():
    fleet = Fleet()
    with ThreadPoolExecutor(8) as pool:
        ids = np.concatenate(list(pool.map(lambda _: fleet.open(50), range(100))))
    assert len(np.unique(ids)) == len(fleet) == 5_000
    assert len(np.unique(fleet._memory.sessions["uid"][ids])) == 5_000
