"""Measures of Beta draws and Thompson sampling, against NumPy and two bandit libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from cellium_fast import Action, Fleet, kernels
from cellium_fast.bench.measures import NotMeasured, Result, Sizes
from cellium_fast.bench.numpy_fleet import SIXTEEN_RULES
from cellium_fast.bench.populations import CONTEXT_LIMIT, SEED, Herd, Population
from cellium_fast.bench.single import rounds_of_objects
from cellium_fast.bench.timing import Contender, Spread, interleaved

ARMS = len(Action)
ALL_ARMS = 2**ARMS - 1
SHAPES = (2.0, 500.0)       # of posteriors after none to some hundred updates
ALL_SHAPES = (1e-3, 1e6)    # that a posterior can have
ONE_BY_ONE = 200            # decisions of a library that takes one at a time


def beta_draws(sizes: Sizes) -> Result:
    """Beta draws against NumPy's own, on the same arrays."""
    ours, numpys = _draws(SHAPES, sizes)
    our_all, numpys_all = _draws(ALL_SHAPES, sizes)
    return Result(
        ours, numpys,
        note=f"{sizes.draws:,} pairs of shapes, log-uniform in {_range(SHAPES)}; in "
             f"{_range(ALL_SHAPES)} {our_all.median * 1e9:.3g} ns against NumPy's "
             f"{numpys_all.median * 1e9:.3g}, {numpys_all.median / our_all.median:.2f} x as fast",
    )


def _draws(shapes: tuple[float, float], sizes: Sizes) -> tuple[Spread, Spread]:
    chance = np.random.default_rng(SEED)
    low, high = np.log(shapes)
    alpha, beta = np.exp(chance.uniform(low, high, (2, sizes.draws)))
    out = np.empty(sizes.draws)
    taken = interleaved(
        {
            "ours": Contender(
                lambda: kernels.sample_beta(alpha, beta, SEED, out=out), things=sizes.draws
            ),
            "NumPy": Contender(lambda: chance.beta(alpha, beta), things=sizes.draws),
        },
        sizes.repeats, clock=sizes.clock,
    )
    return taken["ours"], taken["NumPy"]


def _range(shapes: tuple[float, float]) -> str:
    return f"[{shapes[0]:g}, {shapes[1]:,g}]"


def mabwiser(sizes: Sizes) -> Result:
    """Draw, choice and update among five arms, against mabwiser, both in batches."""
    mab = _installed("mabwiser.mab")
    policy: Any = mab.MAB(list(range(ARMS)), mab.LearningPolicy.ThompsonSampling(), seed=SEED)
    policy.fit(list(range(ARMS)), [1] * ARMS)
    contexts = np.zeros((sizes.choices, 1))     # how it is asked for many decisions at once
    rewards = np.random.default_rng(SEED).integers(0, 2, sizes.choices)

    def decide() -> None:
        policy.partial_fit(np.asarray(policy.predict(contexts)), rewards)

    return _against(
        Contender(decide, things=sizes.choices), f"both {sizes.choices:,} decisions at once", sizes
    )


def river(sizes: Sizes) -> Result:
    """Draw, choice and update among five arms, against river, which takes one at a time."""
    bandit, proba = _installed("river.bandit"), _installed("river.proba")
    policy: Any = bandit.ThompsonSampling(reward_obj=proba.Beta(2, 2), seed=SEED)
    arms = list(range(ARMS))
    rewards = np.random.default_rng(SEED).integers(0, 2, ONE_BY_ONE).astype(bool).tolist()

    def decide() -> None:
        for reward in rewards:
            policy.update(policy.pull(arms), reward)

    return _against(
        Contender(decide, things=ONE_BY_ONE),
        f"ours {sizes.choices:,} decisions at once, river's one by one, as it takes them", sizes,
    )


def _against(library: Contender, note: str, sizes: Sizes) -> Result:
    tied = Herd(Population("tied", sizes.choices), policy=SIXTEEN_RULES)   # which tie every round
    taken = interleaved(
        {
            "ours": Contender(_thompson(sizes.choices), things=sizes.choices),
            "library": library,
            "step": Contender(tied.step, tied.prepare, sizes.choices),
            "session": _session(),
        },
        sizes.repeats, clock=sizes.clock,
    )
    step, session = taken["step"].median * 1e9, taken["session"].median * 1e6
    return Result(
        taken["ours"], taken["library"],
        note=f"{note}; a whole tied step: {step:.0f} ns in a batch, {session:.1f} µs for one "
             "session alone",
    )


def _thompson(count: int) -> Callable[[], None]:
    """Draw, choice and update of a pool of five arms, for a batch of decisions."""
    chance = np.random.default_rng(SEED)
    alpha, beta = np.full(ARMS, 2.0), np.full(ARMS, 2.0)
    shapes = np.empty((2, count, ARMS))
    candidates, bias = np.full(count, ALL_ARMS, np.uint8), np.zeros((count, ARMS))
    ids, action = np.arange(count, dtype=np.uint64), np.empty(count, np.uint8)
    rewards = chance.integers(0, 2, count)
    rounds = iter(range(2**32))

    def decide() -> None:
        shapes[0], shapes[1] = alpha, beta
        kernels.thompson(
            shapes[0], shapes[1], candidates, bias, SEED, ids, next(rounds), out=action
        )
        gained = np.bincount(action, rewards, ARMS)
        alpha[:] += gained
        beta[:] += np.bincount(action, minlength=ARMS) - gained

    return decide


def _session() -> Contender:
    """A session that is in a tie at every round, one step after the other."""
    session = Fleet(seed=SEED, threads=1).session(context_limit=CONTEXT_LIMIT)
    rounds = rounds_of_objects(tokens=int(0.8 * CONTEXT_LIMIT))

    def decide() -> None:
        for round in rounds:
            session.step(round)

    return Contender(decide, things=len(rounds))


def _installed(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotMeasured("not installed: pip install 'cellium-fast[bench]'") from None
