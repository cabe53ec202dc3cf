"""Snapshots of older versions, kept in `tests/data`, and how their fleets went on.

Beside ``snapshot-v<version>.safetensors`` lies ``snapshot-v<version>.json``: what the version that
wrote it decided in the rounds after. What happens in a round is written here and must stay the
same. As a program, ``old_snapshots.py`` writes both files for the version of today.
"""

import json
from pathlib import Path

import numpy as np

from cellium_fast import Fleet, Policy, Posterior, Round, RoundBatch, ToolCall, snapshot

DATA = Path(__file__).parent / "data"
COUNT, BEFORE, AFTER = 12, 20, 20


def numbers(place, start, stop, count):
    """Numbers in [start, stop) that look like any."""
    mixed = (np.arange(count, dtype=np.uint64) + 1) * np.uint64(2654435761 + 97 * place)
    return mixed % np.uint64(99_991) % np.uint64(stop - start) + np.uint64(start)


def columns(place, count):
    """The rounds of a batch: one call each."""
    return RoundBatch(
        call_offsets=np.arange(count + 1, dtype=np.int64),
        call_tool=numbers(place, 1, 4, count),
        call_signature=numbers(place + 1, 1, 4, count),
        call_result=numbers(place + 2, 1, 3, count),
        call_flags=(numbers(place + 3, 0, 5, count) == 0).astype(np.uint8),
        text=numbers(place + 4, 0, 3, count),
        context_tokens=numbers(place + 5, 1_000, 20_000, count).astype(np.int64),
    )


def one_round(place):
    """The round of the handle."""
    error = place % 3 == 0
    call = ToolCall("search", {"q": place % 2}, "Error: no such page" if error else "found it",
                    error=error)
    return Round([call], text=("I search again.", "And now?")[place % 2])


def play(fleet, handle, ids, places):
    """Take these rounds; what was decided, as JSON values."""
    trace = []
    for place in places:
        decisions = fleet.step(np.array(ids, np.int64), columns(place, len(ids)))
        one = handle.step(one_round(place))
        trace.append({
            "action": decisions.action.tolist(),
            "candidates": decisions.candidates.tolist(),
            "rules": decisions.rules.tolist(),
            "reward": decisions.reward.tolist(),
            "draws": [[f"{draw:.17g}" for draw in row] for row in decisions.draws.tolist()],
            "advice_age": decisions.advice_age.tolist(),
            "handle": [int(one.action), list(one.rules), one.prompt],
        })  # fmt: skip
        if place % 5 == 4:
            fleet.close([ids.pop(place % len(ids))], success=place % 2 == 0)
            ids += fleet.open(1, context_limit=20_000, policy="ties", pool="slow").tolist()
            trace[-1]["opened"] = ids[-1]
    for pool in fleet.pools:
        learned = fleet.posterior(pool)
        trace.append({name: values.tolist() for name, values in learned.items()})
    return trace


def chosen(fleet):
    """What became of sessions that a policy was chosen for, as JSON values."""
    return [
        [pool, name, known.alpha, known.beta, known.opened, known.learned]
        for pool in fleet.pools for name, known in fleet.policy_choice(pool).items()
        if known.opened
    ]


def new_fleet():
    """The fleet of all these files."""
    ties = Policy(learn_from="all", n_step=4, rules={"progressing": {"actions": [0, 1, 2]}})
    return Fleet(
        seed=2**63 + 11, policies={"default": "default", "cellium": "cellium", "ties": ties},
        pools={"quick": Posterior(decay_every=2, decay=0.5), "slow": Posterior(alpha=1.0)},
        max_sessions=COUNT + 1,
    )


def write(version):
    """Both files of a version, which must be that of today."""
    fleet = new_fleet()
    fleet.open(2)       # who have to go
    ids = fleet.open(COUNT // 3, context_limit=20_000, round_limit=60, policy="auto").tolist()
    ids += fleet.open(COUNT // 3, context_limit=20_000, policy="cellium", pool="slow").tolist()
    ids += fleet.open(COUNT // 3, policy="ties", private=True).tolist()
    handle = fleet.session("ticket", tools=["search", "read"], context_limit=50_000)
    play(fleet, handle, ids, range(BEFORE))
    path = DATA / f"snapshot-v{version}.safetensors"
    fleet.save(path)
    record = {"ids": list(ids), "handle": handle.id}
    record["trace"] = play(fleet, handle, ids, range(BEFORE, BEFORE + AFTER))
    record["chosen"] = chosen(fleet)
    path.with_suffix(".json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    write(snapshot.VERSION)
