"""`LearnedPosterior`: merging by the evidence of each source, and when a pool is a new source."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some
from learners import FAST, POSTERIORS, learner, numbers, same, teach

from cellium_fast import (
    Fleet,
    LearnedPosterior,
    LearnedStateError,
    Posterior,
    contributions,
    snapshot,
)
from cellium_fast.contributions import Ancestor


# --- new sources ----------------------------------------------------------------------------------
def test_two_fleets_of_one_snapshot_are_two_sources(tmp_path: Path) -> None:
    first = teach(learner(), 1.0)
    first.save(tmp_path / "fleet")
    copies = [teach(Fleet.load(tmp_path / "fleet"), reward, 0.5) for reward in (0.25, 0.75)]
    teach(first, 0.5)
    merged = first.export_posterior().merge(*(copy.export_posterior() for copy in copies))
    assert merged.closed == 4 and merged.actions["continue"].updates == 6
    assert len(merged.sources) == 3
    copies[0].save(tmp_path / "again")
    again = Fleet.load(tmp_path / "again")
    assert again.export_posterior() == copies[0].export_posterior()
    # One that goes on by itself keeps its sources.
    state = snapshot.read(tmp_path / "again")
    assert Fleet._from_state(state)._learned_from == state.histories


def test_a_loaded_fleet_goes_on_from_what_was_learned_before_there_were_histories() -> None:
    path = Path(__file__).parent / "data" / "snapshot-v1.safetensors"
    fleets = [Fleet.load(path) for _ in range(2)]
    before = fleets[0].export_posterior()
    assert before.ancestor is not None and before.sources == {}
    for fleet in fleets:
        fleet.session().close()
    merged = fleets[0].export_posterior().merge(fleets[1].export_posterior())
    assert merged.closed == before.closed + 2


def tell(pipe: int, learned: LearnedPosterior) -> None:
    os.write(pipe, learned.to_json())
    os.close(pipe)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_parent_child_and_grandchild_are_sources_of_their_own() -> None:
    fleet = teach(learner(Posterior(decay_every=0)), 1.0)
    pipes = [os.pipe() for _ in range(2)]
    pid = os.fork()
    if not pid:
        try:
            teach(fleet, 0.25)      # which the grandchild knows too, by the same source
            grandchild = os.fork()
            teach(fleet, 0.5, 0.75)
            tell(pipes[bool(grandchild)][1], fleet.export_posterior())
            if grandchild:
                os.waitpid(grandchild, 0)
        finally:
            os._exit(0)
    teach(fleet, 0.0)
    exports = [fleet.export_posterior()]
    for reading, writing in pipes:
        os.close(writing)
        with open(reading, "rb") as stream:
            exports.append(LearnedPosterior.from_json(stream.read()))
    os.waitpid(pid, 0)
    for order in permutations(exports):
        merged = order[0].merge(*order[1:])
        assert merged.closed == 5
        assert merged.actions["continue"].updates == 7
        assert len(merged.sources) == 3
        arm = merged.actions["continue"]
        assert arm.alpha + arm.beta == 4 + 7


# --- merging against a plain reference -----------------------------------------------------------
@dataclass
class Evidence:
    """What one source saw: rewards, each with how often the source had decayed before it."""

    after: dict[Evidence, tuple[int, int, int]]
    start_closed: int
    rewards: list[tuple[int, float]] = field(default_factory=list)
    closed: int = 0
    decays: int = 0

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def ancestry(self) -> set[Evidence]:
        return set(self.after).union(*(one.ancestry() for one in self.after))


class Told:
    """A state, as how much of each source is in it: rewards, closed sessions, decays."""

    def __init__(self) -> None:
        self.known: dict[Evidence, tuple[int, int, int]] = {}

    def note(self, source: Evidence) -> None:
        if source.rewards or source.closed:
            self.known[source] = (len(source.rewards), source.closed, source.decays)

    def merged(self, other: Told) -> Told:
        both = Told()
        for source in {**self.known, **other.known}:
            both.known[source] = max(
                one.known[source] for one in (self, other) if source in one.known
            )
        return both

    def closed(self) -> int:
        return sum(closed for _, closed, _ in self.known.values())

    def of_continue(self, prior: Posterior) -> tuple[float, float, int]:
        """Alpha, beta and updates: each reward fades by the decays that came after it."""
        result = []
        each = prior.decay_every
        decays = self.closed() // each if each else 0
        for start, weigh in ((prior.alpha, lambda r: r), (prior.beta, lambda r: 1 - r)):
            target = start if prior.decay_target == "prior" else float(prior.decay_target)
            total = target + (start - target) * prior.decay**decays
            for source, (count, _, own) in self.known.items():
                later = sum(
                    known[2] for one, known in self.known.items() if source in one.ancestry()
                )
                for when, reward in source.rewards[:count]:
                    total += weigh(reward) * prior.decay ** (own - when + later)
            result.append(total)
        return result[0], result[1], sum(known[0] for known in self.known.values())


class Worker:
    """A fleet, and what it must have learned."""

    def __init__(self, prior: Posterior) -> None:
        self.prior = prior
        self.fleet = learner(prior)
        self.start = Told()
        self.source = Evidence({}, 0)

    def work(self, rewards: list[float]) -> None:
        teach(self.fleet, *rewards)
        source = self.source
        source.rewards += [(source.decays, reward) for reward in rewards]
        source.closed += 1
        each = self.prior.decay_every
        if each and (source.start_closed + source.closed) % each == 0:
            source.decays += 1

    def state(self) -> tuple[LearnedPosterior, Told]:
        told = Told().merged(self.start)
        told.note(self.source)
        return self.fleet.export_posterior(), told

    def begin_with(self, learned: LearnedPosterior, told: Told) -> None:
        self.fleet.import_posterior(learned)
        self.start = told
        self.source = Evidence(dict(told.known), told.closed())


REWARDS = some.lists(some.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]), max_size=3)
STEPS = some.lists(
    some.one_of(
        some.tuples(some.just("work"), some.integers(0, 2), REWARDS),
        some.tuples(some.just("merge"), some.integers(0, 2), some.none()),
        some.tuples(some.just("import"), some.integers(0, 2), some.none()),
    ),
    max_size=14,
)


# One source builds upon another, which goes on meanwhile.
BUILT_UPON = [
    ("work", 0, [1.0]), ("merge", 0, None), ("import", 1, None), ("work", 1, [0.5, 0.0]),
    ("work", 0, [0.25]), ("work", 1, [0.7]), ("merge", 1, None), ("import", 2, None),
    ("work", 2, [1.0]), ("work", 2, []), ("merge", 0, None), ("merge", 2, None),
]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, prior=some.sampled_from(POSTERIORS))
@example(steps=BUILT_UPON, prior=FAST)
@example(steps=BUILT_UPON, prior=POSTERIORS[3])
def test_merges_equal_the_reference(steps: list[Any], prior: Posterior) -> None:
    workers = [Worker(prior) for _ in range(3)]
    shared, known = workers[0].state()
    states = [shared]
    for what, place, rewards in steps:
        worker = workers[place]
        if what == "work":
            worker.work(rewards)
        elif what == "import":
            worker.begin_with(shared, known)
        else:
            learned, told = worker.state()
            shared, known = shared.merge(learned), known.merged(told)
        learned, told = worker.state()
        states.append(learned)
        for found, wanted in ((learned, told), (shared, known)):
            arm = found.actions["continue"]
            assert (arm.alpha, arm.beta, arm.updates) == pytest.approx(
                wanted.of_continue(prior), rel=1e-6)
            assert found.closed == wanted.closed()
            assert LearnedPosterior.from_json(found.to_json()) == found
    # All that is known, in whatever order and grouping.
    whole = shared.merge(*states)
    assert same(whole, states[-1].merge(*reversed(states), shared))
    half = len(states) // 2
    assert same(whole, shared.merge(*states[:half]).merge(shared.merge(*states[half:])))
    assert whole.merge(whole, *states) == whole


def test_without_decay_a_merge_is_what_one_fleet_would_have_learned() -> None:
    prior = Posterior(decay_every=0)
    chance = np.random.default_rng(5)
    parts = [chance.integers(0, 9, 7) / 8 for _ in range(4)]
    together = learner(prior)
    for rewards in parts:
        teach(together, *rewards)
    exports = [teach(learner(prior), *rewards).export_posterior() for rewards in parts]
    for order in permutations(exports):
        merged = order[0].merge(*order[1:])
        assert numbers(merged) == numbers(together.export_posterior())
        assert merged.closed == 4
        assert merged == exports[0].merge(*exports[1:])


def test_the_ancestor_fades_with_all_that_was_closed_since() -> None:
    ancestor = teach(learner(), 1.0, 1.0, 1.0).export_posterior()       # one session closed
    exports = []
    for reward in (1.0, 0.0):
        fleet = learner()
        fleet.import_posterior(ancestor)
        for _ in range(3):                  # two decays in each: the second and the fourth session
            teach(fleet, reward)
        exports.append(fleet.export_posterior())
    merged = exports[0].merge(exports[1])
    fading = 0.8**2 + 0.8 + 0.8     # of three rewards, the first one alone before the first decay
    assert merged.closed == 7
    assert merged.actions["continue"].alpha == pytest.approx(2 + 3 * 0.8**4 + fading)
    assert merged.actions["continue"].beta == pytest.approx(2 + fading)
    assert merged.actions["continue"].updates == 9


def test_exports_of_one_source_the_later_contains_the_earlier() -> None:
    fleet = learner()
    exports = [teach(fleet, 0.5, 1.0).export_posterior() for _ in range(5)]
    for order in permutations(exports, 3):
        assert order[0].merge(*order[1:]) == max(order, key=lambda one: one.closed)


def test_two_lives_of_one_source_are_refused() -> None:
    first = teach(learner(), 1.0)
    record, history = first._memory.pools[:1].copy(), first._learned_from["a"]
    copy = learner()
    copy._set_pool(0, record, history)
    teach(first, 1.0, close=False)      # more updates in one of them, closed sessions in the other
    with pytest.raises(LearnedStateError, match=r"sources\.[0-9a-f]{32}: .* not an earlier and"):
        first.export_posterior().merge(teach(copy).export_posterior())
    teach(first)
    teach(copy, 0.0, close=False)
    with pytest.raises(LearnedStateError, match="not an earlier and a later"):
        # As many updates, but others.
        teach(copy, 0.5).export_posterior().merge(teach(first, 0.5).export_posterior())


@pytest.mark.parametrize(("other", "match"), [
    (learner(pool="b").export_posterior(), "pool: cannot merge 'b' with 'a'"),
    (learner(Posterior()).export_posterior(), "settings: cannot merge .*wanted fleets"),
    (teach(learner(), 0.5).export_posterior().as_ancestor(), "ancestor: cannot merge"),
    ({}, "others: wanted LearnedPosterior, got {}"),
])
def test_what_does_not_belong_together_is_refused(other: Any, match: str) -> None:
    with pytest.raises(LearnedStateError, match=match):
        teach(learner(), 1.0).export_posterior().merge(other)


def test_a_state_as_ancestor() -> None:
    learned = teach(learner(), 1.0, 0.5).export_posterior()
    ancestor = learned.as_ancestor()
    assert ancestor == learned.as_ancestor()        # also in another process
    assert numbers(ancestor) == numbers(learned) and ancestor.closed == learned.closed
    assert isinstance(ancestor.ancestor, Ancestor) and ancestor.sources == {}
    fleets = [learner(), learner()]
    for fleet in fleets:
        fleet.import_posterior(ancestor)
        teach(fleet, 1.0)
    merged = fleets[0].export_posterior().merge(fleets[1].export_posterior(), ancestor)
    assert merged.closed == 3 and merged.actions["continue"].updates == 4


# --- how many sources ----------------------------------------------------------------------------
def chain_of(count: int) -> dict[str, Any]:
    """The fields of a state whose sources were built one upon the other."""
    fields = learner(Posterior(decay_every=1)).export_posterior().as_json()
    nothing = {
        action: {"alpha": 0.0, "beta": 0.0, "updates": 0} for action in fields["actions"]
    }
    names = [f"{number:032x}" for number in range(count)]
    fields["sources"] = {
        name: {"after": before, "closed": 1, "decays": 1, "actions": nothing}
        for name, before in zip(names, [[], *([one] for one in names)], strict=False)
    }
    fields["closed"] = count
    return fields


def test_more_sources_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    most = contributions.MOST_SOURCES
    full = LearnedPosterior.from_fields(chain_of(most))
    path = tmp_path / "learned.json"
    full.save(path)
    fleet = learner(full.settings)
    fleet.import_posterior(full)
    more = teach(fleet, 1.0).export_posterior()
    assert len(more.sources) == most + 1
    other = teach(learner(full.settings), 1.0).export_posterior()
    for refused in (
        lambda: other.merge_into(path), lambda: full.merge(more, other),
        lambda: learner(full.settings).import_posterior(more),
    ):
        with pytest.raises(LearnedStateError, match=r"sources: .* at most 1,000.*as_ancestor"):
            refused()
    assert LearnedPosterior.load(path) == full
    LearnedPosterior.load(path).as_ancestor().save(path)    # as the message says
    fleet.import_posterior(LearnedPosterior.load(path))
    assert teach(fleet, 1.0).export_posterior().merge_into(path).closed == most + 1


def test_a_state_of_too_many_sources_is_not_looked_at() -> None:
    most = contributions.MOST_READ
    assert len(LearnedPosterior.from_fields(chain_of(most)).sources) == most
    with pytest.raises(LearnedStateError, match=r"wanted at most 4,096 sources, got 4,097"):
        LearnedPosterior.from_fields(chain_of(most + 1))


def test_a_fleet_that_goes_on_from_too_many_begins_a_starting_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(contributions, "MOST_SOURCES", 5)
    fleet = learner()
    for count in range(1, 13):
        teach(fleet, 1.0)
        fleet.save(tmp_path / "fleet")
        before, fleet = fleet.export_posterior(), type(fleet).load(tmp_path / "fleet")
        learned = fleet.export_posterior()
        assert learned.closed == count and len(learned.sources) <= 6
        assert numbers(learned) == numbers(before)
        assert (learned.ancestor is not None) == ("new starting point" in caplog.text)
    assert learned.ancestor is not None


def test_decays_of_what_was_built_upon_others_in_many_ways(rng: Any) -> None:
    prior = Posterior(decay=0.9, decay_every=1)
    nothing = dict.fromkeys(
        learner().export_posterior().actions, contributions.Gain(alpha=0.0, beta=0.0, updates=0)
    )
    for _ in range(20):
        names = rng.sample([f"{number:032x}" for number in range(40)], 12)
        sources, known = {}, {}
        for place, name in enumerate(names):
            after = tuple(rng.sample(names[:place], rng.randint(0, min(place, 3))))
            closed = rng.choice([0, 1, 7])
            sources[name] = contributions.Contribution(
                after=after, closed=closed, decays=closed, actions=nothing
            )
            known[name] = set(after).union(*(known[one] for one in after))
        assert contributions._later_decays(prior, sources) == {
            name: sum(sources[one].decays for one in names if name in known[one]) for name in names
        }
