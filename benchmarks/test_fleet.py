"""Regression timings of a fleet's batch calls: stepping, opening and closing."""

import pytest

from cellium_fast import Fleet
from cellium_fast.bench.populations import Herd, Population, state_arrays


@pytest.mark.parametrize("population", ["calm", "looping", "tied", "usual"])
def test_step(timed, size, population):
    herd = Herd(Population(population, size))
    kept = sum(array.nbytes / len(array) for array in state_arrays(herd.fleet).values())
    timed(herd.step, size, lambda: herd.prepare() or (), bytes_a_session=kept,
          tie_breaks=herd.tie_breaks())


def test_open(timed, size):
    timed(lambda fleet: fleet.open(size), size, lambda: (Fleet(threads=1),))


def test_close(timed, size):
    fleet = Fleet(threads=1)
    timed(lambda ids: fleet.close(ids, success=True), size, lambda: (fleet.open(size),))
