"""Agents at random: they reach every rule and every kind of round, and both sides agree on them."""

from collections import Counter

import pytest
import reference
from conftest import Agent, Pair, random_policy, reference_policy

from cellium_fast import _rules


def test_the_population_reaches_every_rule_and_every_kind_of_round(rng):
    rules, information, cycles = Counter(), Counter(), Counter()
    for place in range(24):
        name = ("cellium", "default")[place % 2]
        policy = reference_policy(random_policy(rng, name, tie_break="first"))
        for _ in range(5):
            session, agent = reference.open_session(policy, 30_000, 45), Agent(rng)
            for _ in range(50):
                decision = reference.step(session, agent.round())
                rules.update(
                    name for bit, name in enumerate(reference.RULES) if decision["rules"] >> bit & 1
                )
                information[decision["features"]["information"]] += 1
                cycles[decision["features"]["cycle"]] += 1
    assert {name: rules[name] for name in reference.RULES if rules[name] < 5} == {}
    assert min(information[code] for code in range(5)) > 50
    assert set(cycles) == {0, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("kind", [{"sizes": False}, {"sketches": False}])
def test_random_agents_equal_the_reference(kind, rng):
    # Those that tell all they can are in test_pipeline.py.
    rules, information = Counter(), Counter()
    for place in range(16):
        policy = random_policy(rng, ("cellium", "default")[place % 2])
        pair = Pair({"only": policy}, seed=rng.getrandbits(64))
        ids = pair.open(8, private=True, context_limit=30_000, round_limit=45)
        agents = [Agent(rng, **kind) for _ in ids]
        for _ in range(50):
            pair.step(ids, [agent.round() for agent in agents])
            if rng.random() < 0.05:
                pair.user_message(rng.sample(ids, 2))
        rules.update(pair.rules)
        information.update(pair.information)
        assert pair.dropped <= 1
    # A bad cycle is rare: it waits for a redirect. In test_pipeline.py every rule fires.
    assert set(_rules.RULES) - set(rules) <= {"bad_cycle"}
    assert set(information) == set(range(5))
