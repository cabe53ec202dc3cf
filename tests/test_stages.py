"""Spans of a batch: stages in C, stages in Python, and what either reports."""

import numpy as np
import pytest
from test_interrupts import state_of

from cellium_fast import (
    Fleet,
    RoundBatch,
    _bandit,
    _feedback,
    _records,
    _spans,
    _user_code,
    pipeline,
)

SIZE = 3_000


def stepped(threads=1):
    fleet = Fleet(threads=threads)
    ids = fleet.open(SIZE)
    for turn in range(6):
        fleet.step(ids, RoundBatch(context_tokens=np.arange(SIZE) + turn))
    return state_of(fleet)


def test_every_stage_of_a_step_is_a_c_function():
    assert all(isinstance(stage, _spans.Stage) for stage in pipeline.STAGES)


def test_what_is_not_all_c_gives_the_same(monkeypatch):
    expected = stepped()
    seen = []
    stages = (*pipeline.STAGES, lambda batch, start, stop: seen.append((start, stop)))
    monkeypatch.setattr(pipeline, "STAGES", stages)
    assert stepped() == expected
    assert seen[:2] == [(0, pipeline.CHUNK), (pipeline.CHUNK, 2 * pipeline.CHUNK)]
    assert seen[5] == (5 * pipeline.CHUNK, SIZE)


def test_more_stages_than_c_has_room_for_give_the_same(monkeypatch):
    # Ties are broken by the same draws however often: the stage can be put in again.
    expected = stepped()
    place = pipeline.STAGES.index(_bandit.tie_break)
    more = (_bandit.tie_break,) * 20
    stages = (*pipeline.STAGES[:place], *more, *pipeline.STAGES[place:])
    monkeypatch.setattr(pipeline, "STAGES", stages)
    assert stepped() == expected


def test_a_span_of_nothing_fails_in_nothing():
    span = _spans.Span(pipeline.STAGES, _records.Batch(), 0, 0, pipeline.CHUNK)
    assert span.failure == 0
    span()
    assert span.failure == 0
    assert _feedback.evaluate(_records.Batch(), 0, 0) == 0


def test_a_stage_is_made_in_c_and_named():
    with pytest.raises(TypeError, match="made of a C function"):
        _spans.Stage()
    assert repr(_feedback.evaluate) == "<Stage feedback.evaluate>"
    assert _feedback.evaluate.name == "feedback.evaluate"
    with pytest.raises(TypeError, match="Batch"):
        _feedback.evaluate(None, 0, 0)


def test_rules_of_users_stay_in_the_memory_of_their_chunk():
    # It is used in a circle: a chunk that begins within it ends before that place.
    fleet = Fleet()
    fleet.open(SIZE)
    batch = fleet._memory.batch(np.arange(SIZE))
    memory = np.full(700, 77, np.uint32)
    scratch = pipeline.scratch(batch, pipeline.CHUNK) | {"user_rules": memory[: pipeline.CHUNK]}
    part = batch.with_scratch(**scratch, increments=pipeline.no_increments(1))
    assert _user_code.rules(part, 100, 100 + pipeline.CHUNK) == 0
    assert not np.any(memory[: pipeline.CHUNK])
    assert np.all(memory[pipeline.CHUNK :] == 77)
