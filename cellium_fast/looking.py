"""`Looking`: what a fleet says of itself, without a change of anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import _choice, _records, arguments, checks
from cellium_fast.errors import SessionError
from cellium_fast.names import Names
from cellium_fast.persistence import Persistence
from cellium_fast.policy import Policy, Posterior
from cellium_fast.policy_choice import PolicyChoice


class Looking(Persistence):
    """Sessions, settings and posteriors of a `Fleet`."""

    def __len__(self) -> int:
        """Open sessions."""
        return self._memory.open_count

    @property
    def ids(self) -> NDArray[np.int64]:
        """(N,) int64 ids of the open sessions, in the order of their opening."""
        return self._lock.run(self._ids)

    def _ids(self) -> NDArray[np.int64]:
        return self._memory.ids_of(self._memory.open_slots())

    @property
    def max_sessions(self) -> int | None:
        """How many sessions may be open; None: any number."""
        return self._max_sessions

    @property
    def evicted(self) -> int:
        """Sessions that were closed so far because there were `max_sessions` others."""
        return self._memory.evicted

    @property
    def seed(self) -> int:
        """Key of every random number."""
        return self._memory.seed

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies by name."""
        return dict(self._policies)

    @property
    def pools(self) -> dict[str, Posterior]:
        """Prior and decay of the pools by name."""
        return dict(self._pools)

    @property
    def names(self) -> Names:
        """The table of tool names and error texts behind explanations."""
        return self._names

    def done(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """(N,) bool: whether terminate was decided. Raises SessionError as `step` does."""
        return self._lock.run(self._done, arguments.session_ids(ids))

    def _done(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        flags = self._memory.sessions["flags"][self._memory.slots_of(ids)]
        done: NDArray[np.bool_] = (flags & _records.SESSION_DONE) != 0
        return done

    def policy_of(self, ids: ArrayLike) -> list[str]:
        """Names of the policies that sessions are under. Raises SessionError as `step` does.

        Examples
        --------
        >>> from cellium_fast import Fleet
        >>> fleet = Fleet(seed=7, policies={"calm": "default", "strict": "cellium"})
        >>> fleet.policy_of(fleet.open(4, policy="auto"))
        ['calm', 'calm', 'strict', 'calm']
        """
        return self._lock.run(self._policy_of, arguments.session_ids(ids))

    def _policy_of(self, ids: NDArray[np.int64]) -> list[str]:
        names = list(self._policies)
        rows = self._memory.sessions["policy"][self._memory.slots_of(ids)]
        return [names[row] for row in rows.tolist()]

    def policy_choice(self, pool: str | None = None) -> dict[str, PolicyChoice]:
        """What ``policy="auto"`` has learned in a pool, by the names of the policies.

        Raises UnknownNameError if there is no such pool.

        Examples
        --------
        >>> from cellium_fast import Fleet
        >>> fleet = Fleet(seed=7, policies={"calm": "default", "strict": "cellium"})
        >>> fleet.close(fleet.open(4, policy="auto"), success=[True, False, True, True])
        >>> fleet.policy_choice()["strict"]
        PolicyChoice(alpha=2.0, beta=1.0, opened=1, learned=1)
        """
        row = arguments.row_of("pool", pool, self._pools)
        known = self._lock.run(self._choices_known, row)
        return {
            name: PolicyChoice(*shapes, int(record["opened"]), int(record["learned"]))
            for name, shapes, record in zip(
                self._policies, _choice.shapes(known), known, strict=True
            )
        }

    def _choices_known(self, row: int) -> NDArray[Any]:
        return self._memory.choices_in(row).copy()

    def posterior(self, pool: str | None = None) -> dict[str, NDArray[Any]]:
        """What a pool has learned: ``alpha``, ``beta`` (5,) float64, ``updates`` (5,) uint64.

        Raises UnknownNameError if there is no such pool.
        """
        row = self._memory.pools[arguments.row_of("pool", pool, self._pools)]
        return self._lock.run(_posterior_of, row)

    def private_posterior(self, session_id: int) -> dict[str, NDArray[Any]]:
        """As `posterior`, of one session opened with ``private=True``."""
        session_id = checks.whole_number("session_id", session_id, 0, arguments.MAX_TOKENS)
        return self._lock.run(self._private_posterior, session_id)

    def _private_posterior(self, session_id: int) -> dict[str, NDArray[Any]]:
        row = self._memory.sessions[self._memory.slot_of(session_id)]
        if not row["flags"] & _records.SESSION_PRIVATE:
            raise SessionError(f"session: {session_id} has no private posterior")
        return _posterior_of(row)


def _posterior_of(row: Any) -> dict[str, NDArray[Any]]:
    return {name: row[name].copy() for name in ("alpha", "beta", "updates")}
