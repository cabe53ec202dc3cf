"""Agents and their control in a closed loop: simulated agents that react to what they are told.

>>> from cellium_fast.simulate import simulate
>>> result = simulate(sessions=500, rounds=60, seed=1)
>>> result["default"].success > result["none"].success
True
"""

from cellium_fast.simulate.controls import (
    USUAL,
    Alone,
    Cap,
    Control,
    EqualCalls,
    PerState,
    UnderPolicy,
)
from cellium_fast.simulate.environments import (
    FAILED,
    RUNNING,
    SUCCEEDED,
    Environment,
    environment,
)
from cellium_fast.simulate.populations import population
from cellium_fast.simulate.report import (
    ControlResult,
    Effect,
    Estimate,
    Figures,
    SimulationResult,
)
from cellium_fast.simulate.simulation import best_of_each_state, simulate
from cellium_fast.simulate.tables import STATES, Tables

__all__ = [
    "FAILED",
    "RUNNING",
    "STATES",
    "SUCCEEDED",
    "USUAL",
    "Alone",
    "Cap",
    "Control",
    "ControlResult",
    "Effect",
    "Environment",
    "EqualCalls",
    "Estimate",
    "Figures",
    "PerState",
    "SimulationResult",
    "Tables",
    "UnderPolicy",
    "best_of_each_state",
    "environment",
    "population",
    "simulate",
]
