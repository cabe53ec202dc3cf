"""A run in which all of a fleet's state matters, to be cut anywhere and gone on with.

`Script` is what happens, drawn once; `Run` plays it on a fleet and says what came out. As a
program: `lively_fleets.py PATH SEED ROUND` loads the fleet in PATH, plays the rest of the script
from ROUND on and prints what came out, a line a round.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

import numpy as np
import xxhash
from random_agents import Agent, random_policy

from cellium_fast import Fleet, Policy, Posterior, Round, ToolCall

ROUNDS = 40
MOST = 12       # sessions, where their number is limited
TOOLS = ("search", "read", "edit", "run")


def new_fleet(seed, **options):
    """A fleet with policies and pools of many kinds."""
    rng = random.Random(seed)
    quick = {"decay": 0.9, "decay_every": 3}
    policies = {
        "default": "default",
        "cellium": "cellium",
        "long": random_policy(rng, "default", n_step=4, gamma=0.9, learn_from="all"),
        "own": random_policy(rng, "cellium", posterior=quick, tie_break="thompson",
                             propensities=True),
        "greedy": random_policy(rng, "default", tie_break="greedy", posterior=quick, n_step=2),
    }
    pools = {
        "first": Posterior(decay_every=5, decay=0.8),
        "second": Posterior(alpha=1.0, beta=3.0, decay_every=1, decay_target=0.5),
    }
    return Fleet(seed=seed, policies=policies, pools=pools, **options)


@dataclass
class Step:
    """What happens in one round; sessions are named by their number in opening order."""

    opens: list = field(default_factory=list)       # of (count, keywords)
    handles: list = field(default_factory=list)     # keywords
    policies: list = field(default_factory=list)    # of (name, policy)
    moves: list = field(default_factory=list)       # of (sessions, policy)
    messages: list = field(default_factory=list)    # sessions
    stepped: list = field(default_factory=list)     # sessions
    rounds: object = None                           # their columns
    single: list = field(default_factory=list)      # of (session, round)
    closes: list = field(default_factory=list)      # of (sessions, outcomes)


class Script:
    """What happens in `ROUNDS` rounds, in a fleet of at most so many sessions."""

    def __init__(self, seed, most=None):
        from conftest import pack

        self.rng, self.pack, self.opened = random.Random(seed), pack, 0
        self.most, self.recent = most, []       # sessions, the one used longest ago first
        self.agents, self.handled = {}, set()
        self.steps = [self.step(place) for place in range(ROUNDS)]

    def step(self, place):
        """One round: some open, some step, some close."""
        rng, step = self.rng, Step()
        for _ in range(2 if place == 0 else rng.random() < 0.4):
            count = rng.randrange(1, 9)
            step.opens.append((count, self.keywords()))
            self.open(count)
        if place < 3 or rng.random() < 0.15:
            name = rng.choice(["ticket", "ticket", "\ud800 odd", ""])
            step.handles.append({"name": name, "tools": TOOLS[:3], **self.keywords()})
            self.open(1)
            self.handled.add(self.opened - 1)
        if rng.random() < 0.1:
            step.policies.append(("long", random_policy(rng, "default", n_step=3)))
        everyone = sorted(self.agents)
        if rng.random() < 0.2 and self.handled:
            moved = {rng.choice(everyone), *rng.sample(sorted(self.handled), 1)}
            step.moves.append((sorted(moved), rng.choice(["own", "cellium"])))
        if rng.random() < 0.2:
            step.messages += rng.sample(everyone, 2)
        step.stepped = [one for one in everyone if rng.random() < 0.8]
        step.rounds = self.pack([self.agents[one].round() for one in step.stepped])
        self.use(step.stepped)
        step.single = [(one, self.round()) for one in sorted(self.handled) if rng.random() < 0.6]
        for one, _ in step.single:
            self.use([one])
        staying = sorted(self.handled)[:3]
        leaving = [
            one for one in everyone
            if len(self.agents) > 8 and one not in staying and rng.random() < 0.07
        ]  # fmt: skip
        if leaving:
            step.closes.append((leaving, [rng.choice([-1, 0, 1]) for _ in leaving]))
        self.leave(leaving)
        return step

    def open(self, count):
        """Agents for the sessions that open."""
        for number in range(self.opened, self.opened + count):
            self.agents[number] = Agent(self.rng)
            self.recent.append(number)
        self.opened += count
        if self.most is not None:
            self.leave(self.recent[: max(len(self.recent) - self.most, 0)])

    def use(self, sessions):
        """These are the last to go."""
        self.recent = [one for one in self.recent if one not in sessions] + sessions

    def leave(self, sessions):
        """They are closed."""
        for one in sessions:
            del self.agents[one]
            self.recent.remove(one)
            self.handled.discard(one)

    def keywords(self):
        """How sessions are opened."""
        rng = self.rng
        return {
            "policy": rng.choice(["default", "cellium", "long", "own", "greedy", "auto"]),
            "pool": rng.choice(["first", "second"]),
            "private": rng.random() < 0.4,
            "context_limit": rng.choice([None, 20_000, 100_000]),
            "round_limit": rng.choice([None, 30]),
        }

    def round(self):
        """A round of a handle's, as objects."""
        rng = self.rng
        result = rng.choice(["found", "nothing", "Error: no such file", f"line {rng.random()}"])
        calls = [ToolCall(rng.choice(TOOLS), {"path": rng.randrange(3)}, result,
                          error=result.startswith("Error"))]
        return Round(calls, text=rng.choice(["", "I try again.", "Now the next step of it."]))


class Run:
    """Plays a script on a fleet; `ids` are those of the sessions opened so far."""

    def __init__(self, fleet, ids=()):
        self.fleet, self.ids = fleet, list(ids)
        self.handles = {one.id: fleet.attach(one.id) for one in fleet._state().handles}

    def play(self, steps):
        """What came out of each of these steps: a digest of every column and posterior."""
        return [self.digest(step) for step in steps]

    def digest(self, step):
        """Take the fleet through one step."""
        fleet, seen = self.fleet, xxhash.xxh3_128()
        for count, keywords in step.opens:
            self.ids += fleet.open(count, **keywords).tolist()
        for keywords in step.handles:
            handle = fleet.session(**keywords)
            self.handles[handle.id] = handle
            self.ids.append(handle.id)
        still_open = set(fleet.ids.tolist())
        self.handles = {one: self.handles[one] for one in self.handles if one in still_open}
        if step.messages:
            fleet.user_message(self.ids_of(step.messages))
        decisions = fleet.step(self.ids_of(step.stepped), step.rounds)
        for column in decisions.columns().values():
            for name in column.dtype.names or [...]:    # not what lies between the fields
                seen.update(column[name].tobytes())
        for session, one in step.single:
            self.handles[self.ids[session]].step(one)
        for handle in self.handles.values():
            one = handle.decision
            seen.update(repr([
                handle.name, sorted(handle._unused), one.action, one.rules, one.features,
                one.draws, one.bias, one.reward, one.advice_age, one.explain(), one.prompt,
            ]).encode())  # fmt: skip
        for name, policy in step.policies:
            fleet.set_policy(name, policy)
        for sessions, policy in step.moves:
            fleet.use_policy(self.ids_of(sessions), policy)
        for sessions, outcomes in step.closes:
            fleet.close(self.ids_of(sessions), np.array(outcomes, np.int8))
            for session in sessions:
                self.handles.pop(self.ids[session], None)
        for pool in fleet.pools:
            for learned in fleet.posterior(pool).values():
                seen.update(learned.tobytes())
            seen.update(repr(fleet.policy_choice(pool)).encode())
        seen.update(repr(fleet.policy_of(fleet.ids)).encode())
        seen.update(f"{fleet!r} {self.ids} {fleet.ids.tolist()} {fleet.evicted}".encode())
        return seen.hexdigest()

    def ids_of(self, sessions):
        """The ids of sessions named by their numbers."""
        return np.array([self.ids[session] for session in sessions], np.int64)


def resumed(fleet, ids, seed, place):
    """What comes out of the rest of a script, played on a fleet that was saved there."""
    return Run(fleet, ids).play(Script(seed, fleet.max_sessions).steps[place:])


def simple_policy(**parameters):
    """A policy with ties in every round, so that every round draws."""
    return Policy(learn_from="all", rules={"progressing": {"actions": [0, 1, 2]}}, **parameters)


if __name__ == "__main__":
    path, seed, place, *ids = sys.argv[1:]
    for line in resumed(Fleet.load(path), map(int, ids), int(seed), int(place)):
        print(line)
