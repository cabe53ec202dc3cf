"""The rates of the built-in population that recorded runs tell, as TOML.

    python benchmarks/fit_population.py RECORDINGS

RECORDINGS is a directory with folders `tau-bench`, `docent`, `inspect_ai`, `intercode`,
`openhands`, `swe-agent` and `mini-swe-agent` of public recordings, which are not part of this
repository. What it prints stands in `cellium_fast/simulate/population.toml`; docs/simulator.md says
which entries there are from elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellium_fast.simulate import fit
from cellium_fast.simulate.fit import Observed, Shown
from cellium_fast.traces import find_files, read
from cellium_fast.traces.runs import RecordedRun

FOLDERS = {
    "assistant": ("tau-bench", "docent", "inspect_ai"),
    "shell": ("intercode",),
    "queries": ("intercode",),
    "coding": ("openhands", "swe-agent", "mini-swe-agent"),
}
DIGITS = 4
ENOUGH = 20         # labelled runs


def observed_in(recordings: Path) -> dict[str, Observed]:
    """What the runs of each profile show."""
    found = {profile: Observed() for profile in FOLDERS}
    for profile, folders in FOLDERS.items():
        for file in find_files([recordings / folder for folder in folders]):
            if "intercode" in folders and (profile == "queries") != ("sql" in file.parts):
                continue
            for run in read(file):
                if isinstance(run, RecordedRun):
                    # In "multiturn" runs the agent is shown its reward: when they end says
                    # nothing of what the agent takes for its goal.
                    found[profile].add(run, is_task="multiturn" not in file.name)
    return found


def rates_in(recordings: Path) -> dict[str, Any]:
    """The entries of the tables that are fitted, as `Tables.replace` takes them."""
    observed = observed_in(recordings)

    laws = {
        trouble: fit.mixture_of(
            one for seen in observed.values() for one in seen.episodes[trouble]
        )
        for trouble in fit.TROUBLES
    }
    # A short row of equal calls is no trouble; a short row of failures is the lesser of two.
    endings = {
        "looping_same": laws[Shown.LOOPING_SAME].lasting,
        "looping_changing": laws[Shown.LOOPING_CHANGING].lasting,
        "failing_recovers": laws[Shown.FAILING].short,
        "failing_stays": laws[Shown.FAILING].lasting,
    }
    return {
        "reactions": {
            trouble: {"continue": {"out": round(ending.out, DIGITS)}}
            for trouble, ending in endings.items()
        },
        "rates": {"profiles": {name: _profile(seen, laws) for name, seen in observed.items()}},
    }


def _profile(seen: Observed, laws: Mapping[Shown, fit.Mixture]) -> dict[str, Any]:
    recovers, stays = fit.begun_of(seen, Shown.FAILING, laws[Shown.FAILING])
    _, same = fit.begun_of(seen, Shown.LOOPING_SAME, laws[Shown.LOOPING_SAME])
    _, changing = fit.begun_of(seen, Shown.LOOPING_CHANGING, laws[Shown.LOOPING_CHANGING])
    # Failing tools that recover at once look like errors at work.
    at_once = (recovers + stays) * seen.work - len(seen.episodes[Shown.FAILING])
    with_call = max(seen.work - seen.talk, 1)
    labelled = len(seen.right) >= ENOUGH
    return {
        "goals": fit.goals_of(seen),
        **({"right": round(sum(seen.right) / len(seen.right), 2)} if labelled else {}),
        "error": round(max(seen.single_errors - at_once, 0.0) / with_call, DIGITS),
        "talk": round(seen.talk / seen.rounds, DIGITS),
        "tokens": round(fit.tokens_of(seen), 0),
        "entering": {
            name: round(chance, DIGITS) for name, chance in (
                ("looping_same", same), ("looping_changing", changing),
                ("failing_recovers", recovers), ("failing_stays", stays),
            )
        },
    }


def main() -> None:
    """Print what is fitted."""
    print(json.dumps(rates_in(Path(sys.argv[1])), indent=2))


if __name__ == "__main__":
    main()
