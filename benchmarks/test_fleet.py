"""Regression timings of a fleet's batch calls: stepping, opening and closing."""

import pytest

from cellium_fast import Fleet
from cellium_fast.bench.populations import Herd, Population, bytes_a_session


@pytest.mark.parametrize("population", ["calm", "looping", "tied", "usual"])
def test_step(timed, size, population):
    herd = Herd(Population(population, size))
    timed(
        herd.step, size, lambda: herd.prepare() or (), tie_breaks=herd.tie_breaks(),
        bytes_a_session=sum(bytes_a_session(herd.fleet).values()),
    )


def test_open(timed, size):
    timed(lambda fleet: fleet.open(size), size, lambda: (Fleet(threads=1),))


def test_close(timed, size):
    fleet = Fleet(threads=1)
    timed(lambda ids: fleet.close(ids, success=True), size, lambda: (fleet.open(size),))
