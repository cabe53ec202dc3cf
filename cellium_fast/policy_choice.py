"""`PolicyChoice`: what a fleet has learned of a policy that it chooses among others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What became of the sessions of one pool that one policy was chosen for.

    Attributes
    ----------
    alpha, beta
        Of the Beta posterior that the policy is drawn by: 1 and the sum of the outcomes; 1 and the
        sum of what was missing to 1.
    opened
        Sessions that it was chosen for.
    learned
        Those among them whose outcome counts.
    """

    alpha: float
    beta: float
    opened: int
    learned: int

    @property
    def mean(self) -> float:
        """Of the posterior: how well a session under the policy is expected to end, in (0, 1).

        >>> PolicyChoice(alpha=9.0, beta=3.0, opened=12, learned=10).mean
        0.75
        """
        return self.alpha / (self.alpha + self.beta)
