"""Policies fitted to recorded runs, and judged on runs that the search never saw.

* `cellium_fast.tuning.space`: which parameters are searched, and in which ranges;
* `cellium_fast.tuning.objective`: what is made as large as it can be;
* `cellium_fast.tuning.search`: how;
* `cellium_fast.tuning.splits`: on which runs, and judged on which;
* `cellium_fast.tuning.kept`, `cellium_fast.tuning.provenance`: what is kept on disk.

Needs the extra ``tune`` (optuna).
"""

from cellium_fast.tuning.tuning import (
    Figures,
    Fold,
    MissingPackageError,
    NoRunsError,
    Tuning,
    TuningResult,
    tune,
)

__all__ = [
    "Figures",
    "Fold",
    "MissingPackageError",
    "NoRunsError",
    "Tuning",
    "TuningResult",
    "tune",
]
