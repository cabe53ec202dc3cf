"""What `cellium-fast replay --summary` prints: every detector on every source, side by side."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cellium_fast.cli.output import console
from cellium_fast.cli.table import print_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from cellium_fast.quality import JudgedRuns, Quality, Share

HEADERS = (
    "caught", "caught\n%", "caught\n95 %", "dis-\nturbed", "dis-\nturbed\n%", "dis-\nturbed\n95 %",
    "saved", "saved\n%", "lost", "flagged\nof 100", "chosen\ncaught", "chosen\ndis-\nturbed",
)
LEGEND = (
    "A round is flagged by a policy if redirect or terminate is among the candidates of its "
    "decision; by the other detectors if one of its calls is the 3rd (5th) in a row with the same "
    "tool and arguments, or the 5th in a row with an error. A user message ends a row.",
    "caught: failing runs with a flagged round. disturbed: successful runs with one. 95 %: "
    "Wilson's interval of the share.",
    "saved: rounds of failing runs recorded after their first flagged one. lost: the same of "
    "successful runs. flagged: rounds flagged in 100 of all runs, unlabelled ones too.",
    "chosen: runs in which redirect or terminate was really chosen. In a tie that depends on the "
    "seed and on the runs that share the pool. Candidates do not, but for what an earlier choice "
    "leaves behind.",
)
# Detectors by the candidates, as rows, and the same by the action chosen.
ROWS = {
    "policy": "policy", "cellium": "cellium", "equal_calls_3": "3 equal calls",
    "equal_calls_5": "5 equal calls", "errors_5": "5 errors",
}
CHOSEN = {"policy": "policy_chosen", "cellium": "cellium_chosen"}


def plain_quality(runs: JudgedRuns) -> dict[str, Any]:
    """Return what every detector is worth on these runs, for JSON."""
    outcomes = runs.outcomes()
    detectors = {}
    for detector in runs.fired:
        quality = runs.quality(detector)
        detectors[str(detector)] = {
            field.name: _plain_share(getattr(quality, field.name)) for field in fields(quality)
        }
    return {
        "runs": len(runs),
        "rounds": int(runs.rounds.sum()),
        "succeeded": outcomes[True],
        "failed": outcomes[False],
        "unlabelled": outcomes[None],
        "detectors": detectors,
    }


def _plain_share(share: Share) -> dict[str, Any]:
    low, high = share.interval or (None, None)
    return {
        "count": share.count, "of": share.total, "share": share.share, "low": low, "high": high,
    }


def print_quality(judged: Mapping[str, JudgedRuns]) -> None:
    """Print every detector on each of these sets of runs, and what the columns mean, on stdout."""
    out = console()
    labelled = {name: runs for name, runs in judged.items() if (runs.success >= 0).any()}
    unlabelled = {name: runs for name, runs in judged.items() if name not in labelled}
    if labelled:
        _print_labelled(out, labelled)
    if unlabelled:
        _print_unlabelled(out, unlabelled)
    out.print(*LEGEND, sep="\n")


def _print_labelled(out: Console, judged: Mapping[str, JudgedRuns]) -> None:
    rows: list[tuple[str, list[str]]] = []
    ends = []
    for name, runs in judged.items():
        rows.append((name, _wholes(runs.quality("policy"))))
        rows += [(f" {label}", _cells(runs, detector)) for detector, label in ROWS.items()]
        ends.append(len(rows) - 1)
    columns = zip(*(cells for _, cells in rows), strict=True)
    print_columns(
        out, "detector", [name for name, _ in rows],
        [(header, list(cells)) for header, cells in zip(HEADERS, columns, strict=True)], ends,
    )
    out.print()


def _print_unlabelled(out: Console, judged: Mapping[str, JudgedRuns]) -> None:
    columns = [
        (label, [percent(one.quality(detector).flagged.share, 2) for one in judged.values()])
        for detector, label in ROWS.items()
    ]
    print_columns(out, "flagged of 100,\noutcomes unknown", list(judged), columns)
    out.print()


def _wholes(quality: Quality) -> list[str]:
    """Say of what the figures below are."""
    wholes = (
        quality.caught, None, None, quality.disturbed, None, None, quality.saved, None,
        quality.lost, None, None, None,
    )
    return ["" if share is None else f"of {share.total:,}" for share in wholes]


def _cells(runs: JudgedRuns, detector: str) -> list[str]:
    quality = runs.quality(detector)
    chosen = ["", ""]
    if detector in CHOSEN:
        by_action = runs.quality(CHOSEN[detector])
        chosen = [f"{by_action.caught.count:,}", f"{by_action.disturbed.count:,}"]
    return [
        f"{quality.caught.count:,}", percent(quality.caught.share, 1),
        interval(quality.caught.interval, 1),
        f"{quality.disturbed.count:,}", percent(quality.disturbed.share, 2),
        interval(quality.disturbed.interval, 2),
        f"{quality.saved.count:,}", percent(quality.saved.share, 1), f"{quality.lost.count:,}",
        percent(quality.flagged.share, 2), *chosen,
    ]


def percent(share: float | None, digits: int, *, signed: bool = False) -> str:
    """Say a share in percent; a difference of shares with its sign."""
    return "-" if share is None else f"{100 * share:{'+' if signed else ''}.{digits}f}"


def interval(ends: tuple[float, float] | None, digits: int, *, signed: bool = False) -> str:
    """Say an interval of shares, or of differences, in percent."""
    if ends is None:
        return "-"
    between = " to " if signed else "-"
    return between.join(percent(end, digits, signed=signed) for end in ends)
