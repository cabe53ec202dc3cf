"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine, versions and date of a run.

    Attributes
    ----------
    cpu, cores
        Model; CPUs that this process may use.
    load
        Mean number of processes that wanted a CPU in the last minute, this one included; None
        where the system does not tell. Above `cores` times are noisy.
    """

    cpu: str
    cores: int
    load: float | None
    system: str
    python: str
    numpy: str
    version: str
    date: str

    def __str__(self) -> str:
        load = "" if self.load is None else f", load {self.load:.1f}"
        return (
            f"{self.cpu}, {self.cores} usable core{'s' * (self.cores != 1)}{load}; {self.system}; "
            f"Python {self.python}, NumPy {self.numpy}, cellium_fast {self.version}; {self.date}"
        )


def this_machine() -> Machine:
    """Look at the machine as it is now."""
    import numpy as np

    from cellium_fast import __version__
    from cellium_fast.arguments import usable_cpus

    load = None
    with suppress(AttributeError, OSError):     # not on Windows
        load = os.getloadavg()[0]
    return Machine(
        cpu=_cpu(),
        cores=usable_cpus(),
        load=load,
        system=f"{platform.system()} {platform.machine()}",
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        numpy=np.__version__,
        version=__version__,
        date=datetime.now(UTC).date().isoformat(),
    )


def _cpu() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown CPU"
