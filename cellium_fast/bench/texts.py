"""Measures of texts: decisions to prompts, and recorded conversations to decisions."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from cellium_fast import Action, HardConstraintRenderer, Policy
from cellium_fast.bench.measures import Result, Sizes
from cellium_fast.bench.populations import SEED, SETTLED, Herd, Population
from cellium_fast.bench.timing import Contender, interleaved

SLOW_REPEATS = 3        # one of so many repeats: a run takes seconds
WORDS = (
    "the order", "was shipped", "on Monday", "file", "test passes", "error", "value", "returned",
    "customer address", "line", "function", "module", "deploy", "query result", "index", "retry",
    "timeout", "please check", "status before", "you change", "it and then", "update record",
)
CALLS = ("search", "read_file", "get_order", "run_tests", "update_record")
POLICIES = 32           # side by side
ROUNDS = (4, 40)        # of a conversation, at least and at most
LOOPING = 0.2           # share of conversations that end in one and the same call


def render(sizes: Sizes) -> Result:
    """Texts a second of a large batch of mixed decisions."""
    herd = Herd(
        Population("mixed", sizes.decisions, named=True), settled=SETTLED - 3, want=None
    )   # in the middle of its loops and failures
    herd.prepare()
    decisions, renderer = herd.step(), HardConstraintRenderer()
    # All that speak, also those that would be silent because they said the same just before.
    texts = renderer.render_many(decisions, repeat=True)
    contenders = {"render": Contender(lambda: renderer.render_many(decisions, repeat=True))}
    taken = interleaved(contenders, _fewer(sizes), warm_ups=1, clock=sizes.clock)
    speaking = np.mean(decisions.action != Action.CONTINUE)
    return Result(
        taken["render"].as_rate(sizes.decisions),
        note=f"{sizes.decisions:,} decisions, {speaking:.0%} of them other than continue, "
             f"{len(set(texts)):,} different texts",
    )


def replay(sizes: Sizes) -> Result:
    """Bytes a second of recorded conversations, read and decided, against parsing them alone."""
    from cellium_fast import traces
    from cellium_fast.replay import replay

    with tempfile.TemporaryDirectory(prefix="cellium-fast-bench-") as folder:
        path = Path(folder, "conversations.jsonl")
        size = write_conversations(path, sizes.conversations)
        rounds = replay(traces.read(path)).rounds

        def parse() -> None:
            with path.open("rb") as lines:
                for line in lines:
                    orjson.loads(line)

        taken = interleaved(
            {"replay": Contender(lambda: replay(traces.read(path))), "parse": Contender(parse)},
            _fewer(sizes), warm_ups=1, clock=sizes.clock,
        )
    took = taken["replay"].divided_by(rounds).median * 1e6
    return Result(
        taken["replay"].as_rate(size), taken["parse"].as_rate(size),
        note=f"{sizes.conversations:,} conversations, {rounds:,} rounds, {size / 1e6:.1f} MB; "
             f"{took:.1f} µs a round",
    )


def side_by_side(sizes: Sizes) -> Result:
    """Rounds x policies a second of recorded conversations under many policies at once."""
    from cellium_fast import traces
    from cellium_fast.experiment import Experiment

    with tempfile.TemporaryDirectory(prefix="cellium-fast-bench-") as folder:
        path = Path(folder, "conversations.jsonl")
        write_conversations(path, sizes.conversations)
        experiment = Experiment(traces.read(path))
    policies = [
        Policy(rules={"tool_repetition": {"repetition": 0.3 + place / 2 / POLICIES}})
        for place in range(POLICIES)
    ]

    def one_by_one() -> None:
        for policy in policies:
            experiment.react([policy], threads=1)

    taken = interleaved(
        {
            "together": Contender(lambda: experiment.react(policies, threads=1)),
            "one by one": Contender(one_by_one),
        },
        _fewer(sizes), warm_ups=1, clock=sizes.clock,
    )
    decided = int(experiment.rounds.sum()) * POLICIES
    return Result(
        taken["together"].as_rate(decided), taken["one by one"].as_rate(decided),
        note=f"{len(experiment):,} conversations, {decided // POLICIES:,} rounds, {POLICIES} "
             "policies; packed before",
    )


def write_conversations(path: Path, count: int) -> int:
    """Write made-up conversations as lines of OpenAI chat messages; return the bytes."""
    chance = random.Random(SEED)
    with path.open("wb") as file:
        for number in range(count):
            file.write(orjson.dumps(conversation(chance, number)) + b"\n")
        return file.tell()


def conversation(chance: random.Random, number: int) -> dict[str, Any]:
    """One conversation: calls, results of some hundred characters, usage; some end in a loop."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": _sentence(chance, 80)},
        {"role": "user", "content": _sentence(chance, 25)},
    ]
    tokens = 600
    loop: list[dict[str, Any]] | None = None
    rounds = chance.randint(*ROUNDS)
    loop_from = rounds // 2 if chance.random() < LOOPING else rounds
    for place in range(rounds):
        if place < loop_from or loop is None:
            loop = list(_round(chance, f"call_{number}_{place}"))
        tokens += 400
        usage = {"prompt_tokens": tokens, "completion_tokens": 90, "total_tokens": tokens + 90}
        text = _sentence(chance, 12)
        messages += [{**loop[0], "content": text, "usage": usage}, loop[1]]
    return {
        "run_id": f"conversation-{number}", "success": chance.random() < 0.5,
        "context_limit": 32_000, "messages": messages,
    }


def _round(chance: random.Random, identity: str) -> Iterator[dict[str, Any]]:
    arguments = {"query": _sentence(chance, 8), "limit": chance.randint(1, 50), "strict": True}
    function = {"name": chance.choice(CALLS), "arguments": orjson.dumps(arguments).decode()}
    call = {"id": identity, "type": "function", "function": function}
    yield {"role": "assistant", "tool_calls": [call]}
    failed = chance.random() < 0.08
    words = _sentence(chance, chance.choice((8, 40, 100, 250)))
    result = f"Error: {words}" if failed else orjson.dumps({"data": words}).decode()
    yield {"role": "tool", "tool_call_id": identity, "content": result}


def _sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


def _fewer(sizes: Sizes) -> int:
    return max(sizes.repeats // SLOW_REPEATS, 1)
