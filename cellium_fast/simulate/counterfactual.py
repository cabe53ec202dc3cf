"""What interventions did: each against the same agent, with the same luck, left alone instead.

An intervention is a decision other than continue that an agent acts on: not one after its run
ended, nor in the last round. Its effect is what becomes of the agent if it is told so once and left
alone from then on, minus what becomes of it if it is left alone at once; both in the same
environment with the same random numbers. So what a later decision does is counted where that one is
made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cellium_fast.action import Action
from cellium_fast.simulate.controls import Setting, new_columns
from cellium_fast.simulate.environments import RUNNING, SUCCEEDED, Environment
from cellium_fast.simulate.loop import Play

AT_ONCE = 100_000       # interventions that are followed up together


@dataclass(frozen=True, slots=True)
class Effects:
    """What the interventions of a control did; arrays are (states, 5), by state and action.

    Attributes
    ----------
    count
        Interventions.
    helped, hurt
        Those after which the agent is worth more, or less, than if left alone.
    rescued, spoiled
        Those with which alone, or without which alone, the agent reaches its goal.
    worth, rounds
        Sums of the effects on the worth and on rounds.
    """

    count: NDArray[np.int64]
    helped: NDArray[np.int64]
    hurt: NDArray[np.int64]
    rescued: NDArray[np.int64]
    spoiled: NDArray[np.int64]
    worth: NDArray[np.float64]
    rounds: NDArray[np.int64]


class Counterfactuals:
    """Follows up the interventions of a run of the simulation: a `Watch`, and then `effects`."""

    def __init__(self, environment: Environment, setting: Setting, round_price: float) -> None:
        self._environment, self._setting = environment, setting
        self._price = round_price
        shape = (len(environment.states), len(Action))
        self._effects = Effects(**{      # type: ignore[arg-type]
            part.name: np.zeros(shape, np.float64 if part.name == "worth" else np.int64)
            for part in fields(Effects)
        })
        self._waiting: list[tuple[NDArray[np.void], NDArray[np.int64], int, NDArray[np.uint8]]] = []
        self._size = 0

    def __call__(
        self, play: Play, rows: NDArray[np.int64], number: int, actions: NDArray[np.uint8]
    ) -> None:
        """Note the interventions among the decisions after a round."""
        told = actions[: len(rows)]
        places = np.flatnonzero((told != Action.CONTINUE) & (play.ended[: len(rows)] == RUNNING))
        if len(places):
            chosen = rows[places]
            self._waiting.append((play.agents[chosen], chosen, number, told[places].copy()))
            self._size += len(places)
            if self._size >= AT_ONCE:
                self._follow_up()

    def effects(self) -> Effects:
        """The effects of all interventions."""
        if self._waiting:
            self._follow_up()
        return self._effects

    def _follow_up(self) -> None:
        agents = np.concatenate([agents for agents, _, _, _ in self._waiting])
        identities = np.concatenate([rows for _, rows, _, _ in self._waiting])
        numbers = np.repeat(
            [number for _, _, number, _ in self._waiting],
            [len(rows) for _, rows, _, _ in self._waiting],
        )
        told = np.concatenate([told for _, _, _, told in self._waiting])
        self._waiting, self._size = [], 0
        alone = self._left_alone(agents, identities, numbers, np.zeros_like(told))
        helped = self._left_alone(agents, identities, numbers, told)
        success = helped[0].astype(np.int64) - alone[0]
        rounds = helped[1] - alone[1]
        worth = success - self._price * rounds
        place = (agents["state"].astype(np.int64), told.astype(np.int64))
        effects = self._effects
        np.add.at(effects.count, place, 1)
        np.add.at(effects.helped, place, worth > 0)
        np.add.at(effects.hurt, place, worth < 0)
        np.add.at(effects.rescued, place, success > 0)
        np.add.at(effects.spoiled, place, success < 0)
        np.add.at(effects.worth, place, worth)
        np.add.at(effects.rounds, place, rounds)

    def _left_alone(
        self, agents: NDArray[np.void], identities: NDArray[np.int64],
        numbers: NDArray[np.int64], told: NDArray[np.uint8],
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether agents succeed, and rounds they play, if told this once and nothing after."""
        play = Play(self._environment, self._setting.seed, len(agents))
        play.agents[:] = agents
        columns = new_columns(len(agents))
        success, played = np.zeros(len(agents), bool), numbers.copy()
        rows = np.flatnonzero(told != Action.TERMINATE)
        actions = told[rows]
        while len(rows):
            played[rows] += 1
            play.play(rows, identities[rows], played[rows], actions, columns)
            ended = play.ended[: len(rows)]
            success[rows[ended == SUCCEEDED]] = True
            rows = rows[(ended == RUNNING) & (played[rows] < self._setting.rounds)]
            actions = np.zeros(len(rows), np.uint8)
        return success, played
