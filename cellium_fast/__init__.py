"""A compiled control loop for LLM agents: one agent or a million in one process.

>>> from cellium_fast import Fleet, Round, ToolCall
>>> with Fleet(seed=7).session("demo", context_limit=128_000) as session:
...     decision = session.step(Round([ToolCall("search", {"q": "x"}, "found")]))
>>> str(decision.action)
'continue'
"""

import logging
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if PathFinder.find_spec(f"{__name__}._records", __path__) is None:
    raise ImportError(
        "cellium_fast is not built: its compiled modules are missing beside this file. Run "
        "`pip install -e .` in the checkout; it needs a C compiler."
    )

from cellium_fast.action import Action
from cellium_fast.cause import Cause, Evidence, StopCause
from cellium_fast.decision import Decision, Decisions
from cellium_fast.errors import (
    BlockError,
    CelliumError,
    DirectoryInUseError,
    ForkedError,
    InputError,
    JournalError,
    LearnedStateError,
    MissingColumnError,
    PolicyError,
    ReentryError,
    SessionError,
    SnapshotError,
    UnknownNameError,
    UserCodeError,
)
from cellium_fast.fleet import Fleet
from cellium_fast.policy import Policy, Posterior
from cellium_fast.rounds import Round, RoundBatch, ToolCall
from cellium_fast.session import Session
from cellium_fast.user_code import bias, reward, rule

if TYPE_CHECKING:
    from cellium_fast import kernels
    from cellium_fast.learned import LearnedPosterior
    from cellium_fast.policy_choice import PolicyChoice
    from cellium_fast.render import HardConstraintRenderer
    from cellium_fast.usage import context_tokens

__version__ = "0.1.0"

# Silent unless the user's program listens.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# Not needed to decide, so loaded when first asked for: name to module.
LATER = {
    "HardConstraintRenderer": "cellium_fast.render",
    "LearnedPosterior": "cellium_fast.learned",
    "PolicyChoice": "cellium_fast.policy_choice",
    "context_tokens": "cellium_fast.usage",
    "kernels": "cellium_fast.kernels",
}

__all__ = [
    "Action",
    "BlockError",
    "Cause",
    "CelliumError",
    "Decision",
    "Decisions",
    "DirectoryInUseError",
    "Evidence",
    "Fleet",
    "ForkedError",
    "HardConstraintRenderer",
    "InputError",
    "JournalError",
    "LearnedPosterior",
    "LearnedStateError",
    "MissingColumnError",
    "Policy",
    "PolicyChoice",
    "PolicyError",
    "Posterior",
    "ReentryError",
    "Round",
    "RoundBatch",
    "Session",
    "SessionError",
    "SnapshotError",
    "StopCause",
    "ToolCall",
    "UnknownNameError",
    "UserCodeError",
    "__version__",
    "bias",
    "context_tokens",
    "kernels",
    "reward",
    "rule",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(LATER[name])
    found = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
