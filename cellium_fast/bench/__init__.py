"""The package against its targets and against others; `cellium-fast bench` prints it.

Every figure is a median of runs that take turns (A B A B ...), with its quartiles; a ratio is of
two medians of one run. All on one core unless a row says otherwise. Nothing of this is loaded by
the rest of the package.

>>> from cellium_fast import bench
>>> row = bench.take(bench.MEASURES["memory"], bench.Sizes(fleet=1_000))
>>> row.result.figure.median > 0, row.measure.unit
(True, <Unit.BYTES: 'bytes'>)
"""

from __future__ import annotations

from cellium_fast.bench import batch, journal, sampling, single, texts, user_code
from cellium_fast.bench.machine import Machine, this_machine
from cellium_fast.bench.measures import (
    FULL,
    QUICK,
    Compared,
    Mark,
    Measure,
    Result,
    Row,
    Sizes,
    Target,
    Unit,
    take,
)
from cellium_fast.bench.timing import Spread

__all__ = [
    "FULL", "MEASURES", "QUICK", "Compared", "Machine", "Mark", "Measure", "Result", "Row", "Sizes",
    "Spread", "Target", "Unit", "take", "this_machine",
]



def _nopython_step(sizes: Sizes) -> Result:
    from cellium_fast.bench import nopython  # imports Numba, which no other row needs

    return nopython.batch_step(sizes)


def _closed_loop(sizes: Sizes) -> Result:
    from cellium_fast.bench import simulation  # likewise

    return simulation.closed_loop(sizes)


_ALL = (
    Measure("step", "a session's step in a batch", batch.step, target=Target(40e-9)),
    Measure(
        "step-copy", "a session's step in a large batch", batch.step_beside_copy,
        baseline="memcpy of the state",
        compared=Compared.AS_LONG, target=Target(2.0, of_ratio=True),
    ),
    Measure("copy", "memcpy of a session's state", batch.copy),
    Measure(
        "memory", "memory of a session", batch.memory, Unit.BYTES, target=Target(384),
    ),
    Measure(
        "beta", "a Beta draw", sampling.beta_draws, baseline="NumPy Generator.beta",
        target=Target(5.0, of_ratio=True, at_least=True),
    ),
    Measure(
        "session", "one session alone: Round in, Decision out", single.session_step,
        target=Target(2e-6),
    ),
    Measure(
        "age", "an old session's step", batch.age, baseline="a young one's",
        compared=Compared.AS_LONG, target=Target(1.05, of_ratio=True),
    ),
    Measure(
        "threads", "a large batch in two threads", batch.threads,
        baseline="in one thread", target=Target(1.9, of_ratio=True, at_least=True),
    ),
    Measure(
        "import", "import, beyond NumPy and pydantic", single.import_time,
        baseline="import of these two", target=Target(60e-3),
    ),
    Measure(
        "first", "first decision after the import", single.first_decision, target=Target(5e-3),
    ),
    Measure(
        "render", "render_many of mixed decisions", texts.render, Unit.TEXTS_A_SECOND,
        target=Target(2e6, at_least=True),
    ),
    Measure(
        "replay", "replay of OpenAI-chat JSONL", texts.replay, Unit.BYTES_A_SECOND,
        baseline="orjson.loads alone", target=Target(1 / 3, of_ratio=True, at_least=True),
    ),
    Measure(
        "evaluate", "rounds x policies, side by side", texts.side_by_side, Unit.ROUNDS_A_SECOND,
        baseline="one policy after the other", target=Target(2e6, at_least=True),
    ),
    Measure(
        "nopython", "a session's step inside code that Numba compiled", _nopython_step,
        baseline="by Fleet.step", compared=Compared.AS_LONG, target=Target(1.1, of_ratio=True),
    ),
    Measure(
        "user-rule", "a rule of a user's, added to a session's step in a batch",
        user_code.rule_step, target=Target(5e-9),
    ),
    Measure(
        "simulate", "rounds of simulated agents under control", _closed_loop, Unit.ROUNDS_A_SECOND,
        baseline="of agents that nobody controls", target=Target(5e6, at_least=True),
    ),
    Measure(
        "journal-step", "a session's step in a batch, with a journal", journal.batch_step,
        baseline="without one", compared=Compared.AS_LONG,
    ),
    Measure(
        "journal-session", "one session alone, with a journal", journal.session_step,
        baseline="without one", compared=Compared.AS_LONG,
    ),
    Measure(
        "recovery", "rounds of a journal replayed", journal.replay, Unit.ROUNDS_A_SECOND,
        target=Target(300_000, at_least=True),
    ),
    Measure(
        "numpy", "a session's step in a batch", batch.numpy_step,
        baseline="the same step in NumPy",
    ),
    Measure(
        "plain", "a session's step in a batch", single.plain_reference,
        baseline="plain Python reference",
    ),
    Measure(
        "original", "a session's step in a batch", single.original_loop,
        baseline="original loop, quoted",
        target=Target(3_000, of_ratio=True, at_least=True),
    ),
    Measure(
        "mabwiser", "Thompson sampling of five arms", sampling.mabwiser,
        baseline="mabwiser",
    ),
    Measure(
        "river", "Thompson sampling of five arms", sampling.river, baseline="river",
    ),
)

MEASURES = {measure.name: measure for measure in _ALL}
