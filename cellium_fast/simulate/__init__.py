"""Simulated agents in a closed loop."""
from cellium_fast.simulate.environment import FAILED, RUNNING, SUCCEEDED, Environment, environment
