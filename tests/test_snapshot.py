"""Snapshots: what was saved is what is loaded, bit for bit; and what is no snapshot is refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lively_fleets
import numpy as np
import old_snapshots
import pytest
from lively_fleets import MOST, ROUNDS, Run, Script, new_fleet, resumed

from cellium_fast import (
    Fleet,
    InputError,
    LearnedPosterior,
    LearnedStateError,
    Policy,
    Posterior,
    Round,
    SnapshotError,
    ToolCall,
    snapshot,
)
from cellium_fast.snapshot_content import LAYOUTS


def reason_of(path, what=Fleet.load):
    """Why a file is refused."""
    with pytest.raises(SnapshotError) as caught:
        what(path)
    assert caught.value.path == Path(path)
    assert str(path) in str(caught.value)
    return caught.value.reason


def small_fleet():
    """One with as little in it as makes sense; its file is small."""
    fleet = Fleet(seed=7)
    session = fleet.session("ticket", tools=["ls", "cat"])
    session.step(Round([ToolCall("ls", "-l", "a b")], text="I look around first."))
    return fleet


# --- resumed is uninterrupted --------------------------------------------------------------------
SEED = 5


@pytest.fixture(scope="module", params=[None, MOST])
def uninterrupted(request, tmp_path_factory):
    """The whole trace of a run, and a snapshot at every round of it with the ids so far."""
    directory = tmp_path_factory.mktemp("cuts")
    most = request.param
    steps, run = Script(SEED, most).steps, Run(new_fleet(SEED, max_sessions=most))
    trace, cuts = [], []
    for place, step in enumerate(steps):
        run.fleet.save(directory / str(place))
        cuts.append((directory / str(place), list(run.ids)))
        trace += run.play([step])
    return steps, trace, cuts


def test_the_run_holds_what_can_be_lost(uninterrupted):
    steps, _, cuts = uninterrupted
    states = [snapshot.read(path) for path, _ in cuts]
    last = states[-1]
    assert any(handle.decided_under for state in states for handle in state.handles)
    assert any(handle.used_tools for handle in last.handles)
    assert last.posteriors["updates"].sum() > 30
    assert (last.posteriors["closed"] >= 5).all()
    assert last.tools
    assert last.errors
    open_ones = [state.sessions[state.sessions["flags"] != 0] for state in states]
    assert any((some["generation"] > 0).any() for some in open_ones)
    used = {row for state in states for row in state.sessions["policy"].tolist()}
    assert used == {0, 1, 2, 3, 4}
    assert any(0 < np.count_nonzero(some["flags"] & 4) < len(some) for some in open_ones)
    assert any(some["updates_since_decay"].any() for some in open_ones)
    assert (last.evicted > 20) == (last.max_sessions is not None)
    run = Run(new_fleet(SEED, max_sessions=last.max_sessions))
    ties = 0
    for step in steps:
        run.play([step])
        ties += sum(handle.decision.tiebreak for handle in run.handles.values())
    assert ties > 5


def test_resumed_at_any_round_goes_on_as_if_nothing_had_been(uninterrupted):
    steps, trace, cuts = uninterrupted
    for place, (path, ids) in enumerate(cuts):
        assert Run(Fleet.load(path), ids).play(steps[place:]) == trace[place:], place


def check_in_a_new_process(uninterrupted, places):
    _, trace, cuts = uninterrupted
    for place in places:
        path, ids = cuts[place]
        done = subprocess.run(
            [sys.executable, lively_fleets.__file__, path, str(SEED), str(place), *map(str, ids)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == trace[place:], place


def test_resumed_in_a_new_process(uninterrupted):
    check_in_a_new_process(uninterrupted, [1, 17, ROUNDS - 1])


@pytest.mark.long
def test_resumed_in_a_new_process_at_any_round(uninterrupted):
    check_in_a_new_process(uninterrupted, range(ROUNDS))


@pytest.mark.long
@pytest.mark.parametrize("most", [None, MOST])
@pytest.mark.parametrize("seed", range(20))
def test_other_runs_resumed_at_any_round(seed, most, tmp_path):
    steps, run = Script(seed, most).steps, Run(new_fleet(seed, max_sessions=most))
    trace, cuts = [], []
    for step in steps:
        run.fleet.save(tmp_path / str(len(cuts)))
        cuts.append(list(run.ids))
        trace += run.play([step])
    for place, ids in enumerate(cuts):
        fleet = Fleet.load(tmp_path / str(place))
        assert resumed(fleet, ids, seed, place) == trace[place:], place


def test_resumed_again_and_again(uninterrupted, tmp_path):
    steps, trace, cuts = uninterrupted
    fleet, ids = new_fleet(SEED, max_sessions=Fleet.load(cuts[0][0]).max_sessions), []
    for place, step in enumerate(steps):
        fleet.save(tmp_path / "fleet")
        run = Run(Fleet.load(tmp_path / "fleet"), ids)
        assert run.play([step]) == trace[place : place + 1]
        fleet, ids = run.fleet, run.ids


@pytest.mark.parametrize("most", [None, MOST])
def test_equal_states_are_equal_files(tmp_path, most):
    files, histories = [], new_fleet(SEED)._learned_from
    for place in range(2):
        run = Run(new_fleet(SEED, max_sessions=most))
        run.fleet._learned_from = histories     # which else are like no others
        run.play(Script(SEED, most).steps[:10])
        path, again = tmp_path / str(place), tmp_path / f"{place} again"
        run.fleet.save(path)
        Fleet._from_state(snapshot.read(path)).save(again)
        files += [path.read_bytes(), again.read_bytes()]
    assert files.count(files[0]) == 4


def test_decay_neither_lost_nor_done_twice(tmp_path):
    settings = Posterior(alpha=4.0, decay=0.5, decay_every=3)
    policy = Policy(learn_from="all", posterior=settings, n_step=1)

    def run(cut):
        fleet = Fleet(policies={"only": policy}, pools={"pool": settings})
        private = fleet.session("private", private=True)
        trace = []
        for place in range(12):
            if place == cut:
                fleet.save(tmp_path / "fleet")
                fleet = Fleet.load(tmp_path / "fleet")
                private = fleet.attach("private")
            shared = fleet.session("shared")
            for session in (shared, private):
                session.step(Round([ToolCall("ls", place, f"{place}")]))
            shared.close(success=place % 2 == 0)
            learned = [fleet.posterior(), fleet.private_posterior(private.id)]
            trace.append([value.tolist() for one in learned for value in one.values()])
        return trace

    whole = run(None)
    assert len({str(one) for one in whole}) == 12
    for cut in range(12):
        assert run(cut) == whole, cut


def test_handles_come_back_with_what_they_said(tmp_path):
    fleet = Fleet(policies={"default": "default", "other": "cellium"}, pools=["a", "b"])
    session = fleet.session("tick\ud800et", tools=["ls", "cat"], policy="other")
    for _ in range(4):
        session.step(Round([ToolCall("ls", "-l", "Error: no such directory", error=True)]))
    before = session.decision
    fleet.set_policy("other", Policy(n_step=4))
    fleet.save(tmp_path / "fleet")
    again = Fleet.load(tmp_path / "fleet").attach(session.id)
    assert (again.id, again.name) == (session.id, "tick\ud800et")
    assert again.decision.explain() == before.explain()
    assert again.decision.prompt == before.prompt
    assert again.decision.setting.policy == Policy.preset("cellium")
    assert again.decision._record.features == before._record.features
    assert again._setting.policy == Policy(n_step=4)
    assert again._unused == {"cat"}


def test_policies_stay_when_defaults_change(tmp_path, monkeypatch):
    fleet = small_fleet()
    fleet.save(tmp_path / "fleet")
    monkeypatch.setattr(Policy.model_fields["n_step"], "default", 1)
    Policy.model_rebuild(force=True)
    try:
        assert Policy().n_step == 1
        assert Fleet.load(tmp_path / "fleet").policies["default"].n_step == 3
    finally:
        monkeypatch.undo()
        Policy.model_rebuild(force=True)
    assert Policy().n_step == 3


def test_an_empty_fleet_and_one_that_was_emptied(tmp_path):
    fleet = Fleet()
    fleet.save(tmp_path / "empty")
    assert Fleet.load(tmp_path / "empty").open(2).tolist() == [0, 1]
    fleet.close(fleet.open(3))
    fleet.save(tmp_path / "emptied")
    assert Fleet.load(tmp_path / "emptied").open(2).tolist() == fleet.open(2).tolist()


def test_threads_are_given_anew(tmp_path):
    Fleet(threads=3).save(tmp_path / "fleet")
    assert Fleet.load(tmp_path / "fleet", threads=2)._threads == 2


# --- files that are refused ----------------------------------------------------------------------
def test_missing_and_unreadable(tmp_path):
    assert reason_of(tmp_path / "none") == "missing"
    assert reason_of(tmp_path) == "unreadable"
    assert reason_of(str(tmp_path / "none" / "within")) == "missing"


def check_refused(path, data, place, reason):
    """It is refused, without more ado; and now and then as a file."""
    with pytest.raises(snapshot.Refused) as caught:
        snapshot._check_start(bytes(data), len(data))
        snapshot._unpacked(bytes(data))
    assert caught.value.reason == reason, place
    if place % 100 == 0:
        path.write_bytes(data)
        assert reason_of(path) == reason, place
        assert path.read_bytes() == data


def test_truncated_at_every_byte(tmp_path):
    path = tmp_path / "fleet"
    small_fleet().save(path)
    data = path.read_bytes()
    for length in range(len(data)):
        check_refused(path, data[:length], length, "truncated")


def check_altered(path, bits):
    small_fleet().save(path)
    data = path.read_bytes()
    for place in range(len(data)):
        for change in bits():
            altered = bytearray(data)
            altered[place] ^= change
            check_refused(path, altered, place, "altered")


def test_every_byte_altered(tmp_path, rng):
    check_altered(tmp_path / "fleet", lambda: [rng.choice([1, 2, 4, 8, 16, 32, 64, 128, 255])])


@pytest.mark.long
def test_every_byte_altered_to_every_other(tmp_path):
    check_altered(tmp_path / "fleet", lambda: range(1, 256))


@pytest.mark.parametrize("more", [b"x", b"\0" * 4096])
def test_bytes_too_many(tmp_path, more):
    path = tmp_path / "fleet"
    small_fleet().save(path)
    path.write_bytes(path.read_bytes() + more)
    assert reason_of(path) == "altered"


FOREIGN = {
    "text": b"Once upon a time there was a fleet of small ships.",
    "zeros": b"\0" * 500,
    "json": b'{"format": "json", "sessions": []}',
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05fleet\x94.",
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_something_else(tmp_path, data):
    path = tmp_path / "other"
    path.write_bytes(data)
    assert reason_of(path) == "foreign"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes or devices with a name")
def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        assert reason_of(path) == "unreadable"
        with pytest.raises(LearnedStateError, match=re.escape(str(path))):
            LearnedPosterior.load(path)


@pytest.mark.parametrize(("start", "reason"), [(False, "foreign"), (True, "altered")])
def test_a_file_larger_than_memory_is_not_read(tmp_path, start, reason):
    path = tmp_path / "fleet"
    small_fleet().save(path)
    if not start:
        path.write_bytes(b"x")
    os.truncate(path, 2**38)        # of which the disk holds next to nothing
    assert reason_of(path) == reason
    with pytest.raises(LearnedStateError, match="fleet: wanted at most 100,000,000 bytes"):
        LearnedPosterior.load(path)


HEAD = snapshot.HEAD + b","
CRAFTED = {
    "nested": HEAD + b'"a":' + b"[" * 200_000,
    "nested and whole": HEAD + b'"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "version": HEAD + b'"format_version":"' + b"9" * 5000 + b'"}}',
    "length": HEAD + b'"length":"' + b"9" * 5000 + b'"},"a":{"data_offsets":"x, '
              + b"9" * 5000 + b']"}}',
    "no metadata": b'{"__metadata__":[],"a":{"format":"cellium-fast snapshot","format_version":1}}',
}


@pytest.mark.parametrize("header", CRAFTED.values(), ids=CRAFTED)
@pytest.mark.parametrize("length", [None, 0, 2**63, 2**64 - 1])
def test_headers_that_nobody_wrote(tmp_path, header, length):
    path = tmp_path / "fleet"
    size = len(header) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + header)
    assert reason_of(path) in ("altered", "truncated")


@pytest.mark.parametrize("version", ["0", "00", "", "x", "-1", "²", "9" * 500])
def test_versions_that_there_never_were(tmp_path, version):
    path = tmp_path / "fleet"
    small_fleet().save(path)
    sealed(path, lambda content: content.metadata.update(format_version=version))
    assert reason_of(path) == "impossible"


def test_tensors_of_somebody_else(tmp_path):
    from safetensors.numpy import save_file

    weights = {"layer": np.zeros((4, 4), np.float32), "sessions": np.zeros((2, 384), np.uint8)}
    for metadata in (None, {"format": "pt"}, {"format": "pt", "format_version": "1"}):
        save_file(weights, tmp_path / "weights", metadata)
        assert reason_of(tmp_path / "weights") == "foreign"


def sealed(path, change):
    """The snapshot changed on purpose: its checksum is right."""
    content = snapshot._unpacked(path.read_bytes())
    change(content)
    path.write_bytes(b"".join(snapshot._packed(content)))


def test_the_other_byte_order(tmp_path):
    path = tmp_path / "fleet"
    small_fleet().save(path)
    other = {"little": "big", "big": "little"}[sys.byteorder]
    sealed(path, lambda content: content.metadata.update(byte_order=other))
    assert reason_of(path) == "foreign"


def test_a_newer_version_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "fleet"
    small_fleet().save(path)
    small_fleet().save(path)
    sealed(path, lambda content: content.metadata.update(
        format_version="99", package_version="7.5.0"
    ))  # fmt: skip
    data = path.read_bytes()
    with pytest.raises(SnapshotError, match=r"version 99, and this package.*up to 3.*7\.5\.0"):
        Fleet.load(path)
    assert reason_of(path) == "newer"
    assert path.read_bytes() == data
    # Whatever a later version has for a checksum.
    data = data.replace(b'"xxh3_128":', b'"sum_in_v99":')
    path.write_bytes((int.from_bytes(data[:8], "little") + 2).to_bytes(8, "little") + data[8:])
    assert reason_of(path) == "newer"


def text_of(content, name):
    """The JSON in a tensor."""
    return content.tensors[name].tobytes().decode()


def edit(name, old, new):
    """A change of the JSON in a tensor."""
    def change(content):
        text = text_of(content, name)
        assert old in text
        content.tensors[name] = np.frombuffer(text.replace(old, new, 1).encode(), np.uint8)
    return change


def relayout(old, new):
    """A change of the table of fields."""
    def change(content):
        assert old in content.metadata["layouts"]
        content.metadata["layouts"] = content.metadata["layouts"].replace(old, new, 1)
    return change


def tell(**metadata):
    """A change of the metadata."""
    return lambda content: content.metadata.update(metadata)


def drop(name):
    """A change: one tensor less."""
    return lambda content: content.tensors.pop(name)


def cut(name, shape):
    """A change: a tensor of another shape."""
    def change(content):
        content.tensors[name] = np.zeros(shape, np.uint8)
    return change


IMPOSSIBLE = {
    "parameter missing": (edit("policies", '"n_step":3,', ""), "'default': n_step: is missing"),
    "parameter within missing": (
        edit("policies", '"round_cost":0.1,', ""), "'default': feedback.round_cost: is missing"
    ),
    "parameter unknown": (
        edit("policies", '"n_step":3', '"n_step":3,"n_jump":3'), "n_jump: there is no such"
    ),
    "parameter wrong": (edit("policies", '"n_step":3', '"n_step":9'), "n_step: wanted"),
    "action unknown": (edit("policies", '"actions":[4]', '"actions":[5]'), "actions"),
    "pool's parameter missing": (edit("pools", '"decay_every":50,', ""), "decay_every: is missing"),
    "pool is no table": (edit("pools", '{"default":', '{"other":3,"default":'), "'other'"),
    "policies no JSON": (edit("policies", "{", "("), "policies: wanted JSON"),
    "policies no table": (cut("policies", 0), "policies: wanted JSON"),
    "policies deep": (edit("policies", "{", "[" * 100_000), "policies: wanted JSON"),
    "field missing": (
        relayout('"window_count": ["|u1", 88], ', ""), "sessions: window_count: is missing"
    ),
    "field unknown": (
        relayout('"uid": [', '"colour": ["|u1", 3], "uid": ['),
        "sessions: colour: there is no such field",
    ),
    "arm unknown": (relayout('"(5,)<f4", 336', '"(6,)<f4", 336'), "sessions: alpha: wanted"),
    "field of objects": (relayout('"<u8", 0', '"|O", 0'), "sessions: has no table of fields"),
    "field far outside": (
        relayout('"<u8", 0', f'"<u8", {2**70}'), "sessions: has no table of fields"
    ),
    "field outside": (relayout('"<u8", 0', '"<u8", 380'), "sessions: has no table of fields"),
    "field before": (relayout('"<u8", 0', '"<u8", -8'), "sessions: has no table of fields"),
    "no layouts": (tell(layouts="{}"), "sessions: has no table of fields"),
    "layouts a list": (tell(layouts="[]"), "layouts: wanted a dict"),
    "seed": (tell(seed="-1"), "seed: wanted a number"),
    "seed long": (tell(seed="9" * 5000), "seed: wanted a number"),
    "seed large": (tell(seed=str(2**64)), "seed: wanted a number in"),
    "sessions missing": (drop("sessions"), "sessions: wanted a tensor"),
    "sessions short": (cut("sessions", (1, 383)), "sessions"),
    "sessions flat": (cut("sessions", 384), "sessions: wanted a tensor"),
    "free of bytes": (cut("free", 8), "free: wanted a tensor"),
    "session of another pool": (
        lambda content: content.tensors["sessions"].__setitem__((0, 134), 9), "session 0"
    ),
    "handle without id": (edit("handles", "[[0,", "[[null,"), "handles: wanted id"),
    "handle of a number": (edit("handles", "[[0,", "[7,[0,"), "but 1 decisions"),
    "handle's policy": (edit("handles", "null]]", "0]]"), "handles: wanted id"),
    "handle's tools": (edit("handles", '["ls","cat"]', '["ls",7]'), "handles: wanted id"),
    "decision missing": (cut("outcomes", (0, LAYOUTS["outcomes"].itemsize)), "but 0 decisions"),
    "tools": (edit("tools", "[[", "[[null,"), "tools: wanted a hash and a text"),
    "calls": (tell(calls="x"), "calls: wanted a number"),
    "evicted": (tell(evicted="1"), "evicted: wanted 0 without max_sessions"),
    "limit": (tell(max_sessions="many"), "max_sessions: wanted a number"),
    "limit without last use": (tell(max_sessions="5"), "last_use: wanted it with max_sessions"),
    "last use of bytes": (cut("last_use", 8), "last_use: wanted a tensor"),
    "no histories": (drop("histories"), "histories: wanted a tensor"),
    "history of nothing": (edit("histories", '{"default":{', '{"default":7,"a":{'), "of a pool"),
    "history's source": (edit("histories", '"source":"', '"source":"x'), "'default': source"),
    "history's start": (edit("histories", '"start":null', '"start":{}'), "'default': version"),
    "history of another pool": (edit("histories", '"default"', '"other"'), "histories: wanted"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_right_checksum_does_not_make_it_right(tmp_path, name):
    change, words = IMPOSSIBLE[name]
    path = tmp_path / "fleet"
    small_fleet().save(path)
    sealed(path, lambda content: None)
    Fleet.load(path)
    sealed(path, change)
    with pytest.raises(SnapshotError) as caught:
        Fleet.load(path)
    assert words in str(caught.value)
    assert caught.value.reason == "impossible"


def test_choices_that_are_too_few(tmp_path):
    path = tmp_path / "fleet"
    fleet = Fleet(policies={"a": "default", "b": "cellium"})
    fleet.open(3, policy="auto")
    fleet.save(path)
    size = LAYOUTS["choices"].itemsize
    sealed(path, cut("choices", (1, size)))
    with pytest.raises(SnapshotError, match=r"choices: wanted one of each policy.* 1 \* 2, got 1"):
        Fleet.load(path)
    sealed(path, cut("choices", (2, size - 1)))
    with pytest.raises(SnapshotError, match="choices: wanted 24 bytes each, got 23"):
        Fleet.load(path)


def test_fields_may_lie_elsewhere(tmp_path):
    path = tmp_path / "fleet"
    small_fleet().save(path)

    def swap(content):
        raw = content.tensors["sessions"].copy()
        raw[:, [0, 8]] = raw[:, [8, 0]]
        raw[:, 1:8], raw[:, 9:16] = raw[:, 9:16].copy(), raw[:, 1:8].copy()
        content.tensors["sessions"] = raw
        layouts = content.metadata["layouts"].replace('"<u8", 0]', '"<u8", 8]', 1)
        content.metadata["layouts"] = layouts.replace('"<i8", 8]', '"<i8", 0]', 1)

    before = snapshot.read(path)
    sealed(path, swap)
    assert snapshot.read(path).sessions.tobytes() == before.sessions.tobytes()


# --- the one before it ---------------------------------------------------------------------------
def test_the_one_before_is_kept_and_named(tmp_path):
    path, backup = tmp_path / "fleet", tmp_path / "fleet.bak"
    fleet = small_fleet()
    fleet.save(path)
    first = path.read_bytes()
    fleet.open(1)
    fleet.save(path)
    assert backup.read_bytes() == first
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match=r"; the one before it, .*fleet\.bak, is good: load"):
        Fleet.load(path)
    assert len(Fleet.load(backup)) == 1
    path.unlink()
    with pytest.raises(SnapshotError, match=r"no such file; the one before it, .*, is good"):
        Fleet.load(path)
    backup.write_bytes(first[:-1])
    with pytest.raises(SnapshotError, match=r"the one before it, .*fleet\.bak, is truncated too"):
        Fleet.load(path)


def test_nothing_is_said_of_a_backup_that_is_not_there(tmp_path):
    (tmp_path / "fleet").write_bytes(b"")
    with pytest.raises(SnapshotError) as caught:
        Fleet.load(tmp_path / "fleet")
    assert "before" not in str(caught.value)
    assert os.listdir(tmp_path) == ["fleet"]


@pytest.mark.parametrize("share", [0, 0.5])
def test_the_kept_one_after_truncation(tmp_path, share):
    path = tmp_path / "fleet"
    fleet = small_fleet()
    fleet.save(path)
    fleet.save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert reason_of(path) == "truncated"
    assert Fleet.load(tmp_path / "fleet.bak")._memory.opened == 1


# --- versions ------------------------------------------------------------------------------------
def test_there_is_a_migration_from_every_older_version():
    assert set(snapshot.MIGRATIONS) == set(range(1, snapshot.VERSION))


@pytest.mark.parametrize("version", range(1, snapshot.VERSION + 1))
def test_fleets_of_older_versions_go_on_as_they_did(version, tmp_path):
    path = old_snapshots.DATA / f"snapshot-v{version}.safetensors"
    data = path.read_bytes()
    record = json.loads(path.with_suffix(".json").read_text())
    fleet = Fleet.load(path)
    handle = fleet.attach(record["handle"])
    places = range(old_snapshots.BEFORE, old_snapshots.BEFORE + old_snapshots.AFTER)
    assert old_snapshots.play(fleet, handle, record["ids"], places) == record["trace"]
    assert old_snapshots.chosen(fleet) == record.get("chosen", [])
    assert path.read_bytes() == data
    # And so does one that was written anew.
    Fleet.load(path).save(tmp_path / "new")
    assert snapshot._unpacked((tmp_path / "new").read_bytes()).metadata["format_version"] == str(
        snapshot.VERSION
    )


DURABILITY = (Path(__file__).parent.parent / "docs" / "durability.md").read_text("utf-8")


def first_cells(heading, stop):
    """The names in the first column of the tables between two places of docs/durability.md."""
    part = DURABILITY[DURABILITY.index(heading):]
    part = part[: part.index(stop)]
    rows = [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("| `")]
    return [name.strip("`") for name in rows]


def test_the_documentation_names_what_is_in_the_file(tmp_path):
    fleet = Fleet(max_sessions=3)
    fleet.open(1, policy="auto")
    fleet.save(tmp_path / "fleet")
    content = snapshot._unpacked((tmp_path / "fleet").read_bytes())
    written = first_cells("### What is in it", "What is not in it")
    assert sorted(written) == sorted([*content.metadata, *content.tensors])
    for name in ("sessions", "posteriors", "outcomes"):
        count = "S" if name == "sessions" else "P" if name == "posteriors" else "H"
        assert f"| `{name}` | ({count}, {LAYOUTS[name].itemsize}) bytes" in DURABILITY
    assert f"| `format_version` | {snapshot.VERSION};" in DURABILITY
    assert f"| `format` | `{snapshot.FORMAT}` |" in DURABILITY


def test_the_documentation_names_every_reason():
    written = first_cells("### A file that is not loaded", "The checksum tells")
    assert sorted(written) == sorted(re.findall(r'``"(\w+)"``', SnapshotError.__doc__))


@pytest.mark.parametrize("path", [b"fleet", "a\0b", "a\ud800b", 3, None, ["fleet"]])
def test_what_is_no_path_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    fleet = Fleet()
    learned = fleet.export_posterior()
    for what in (fleet.save, Fleet.load, Fleet.open_durable, learned.save, learned.load,
                 learned.merge_into):
        with pytest.raises(InputError, match=r"(path|directory): "):
            what(path)
    assert os.listdir() == []


def test_paths_of_all_kinds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_fleet().save("fleet")
    assert len(Fleet.load("fleet")) == len(Fleet.load(Path("fleet"))) == 1
    os.symlink("fleet", "link")
    fleet = Fleet()
    fleet.save("link")
    assert Path("link").is_symlink()
    assert len(Fleet.load("fleet")) == 0
    shutil.copy("fleet", "copy")
    assert len(Fleet.load("copy")) == 0
