"""`LearnedPosterior`: export and import, JSON and files."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from learners import FAST, POSTERIORS, learner, numbers, teach

from cellium_fast import (
    InputError,
    LearnedPosterior,
    LearnedStateError,
    Posterior,
    Round,
    UnknownNameError,
)
from cellium_fast.pool_history import PoolHistory


# --- export and import -----------------------------------------------------------------------
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_an_imported_pool_goes_on_as_the_exported_one(posterior: Posterior) -> None:
    one = learner(posterior)
    for number in range(9):
        teach(one, number / 9, 0.25)
        other = learner(posterior)
        other.import_posterior(LearnedPosterior.from_json(one.export_posterior().to_json()))
        assert other.export_posterior() == one.export_posterior()
    for number in range(9):     # the sessions closed before the next decay came with it
        teach(one, 0.5, number / 9)
        teach(other, 0.5, number / 9)
        assert numbers(one.export_posterior()) == numbers(other.export_posterior())
        found, wanted = other.posterior(), one.posterior()
        assert [found[name].tolist() for name in found] == [wanted[name].tolist() for name in found]


def test_an_export_says_what_the_pool_has_learned() -> None:
    learned = teach(learner(Posterior(decay_every=0)), 1.0, 0.25).export_posterior()
    assert (learned.version, learned.pool, learned.closed) == (2, "a", 1)
    assert learned.settings == Posterior(decay_every=0)
    assert learned.ancestor is None
    assert numbers(learned) == [3.25, 2.75, 2, *[2.0, 2.0, 0] * 4]
    (source,) = learned.sources.values()
    assert (source.closed, source.decays, source.after) == (1, 0, ())
    assert source.actions["continue"].alpha == 1.25


def test_nothing_learned_is_no_source() -> None:
    assert learner().export_posterior().sources == {}
    learned = teach(learner(), 1.0).export_posterior()
    other = learner()
    other.import_posterior(learned)
    assert other.export_posterior().sources.keys() == learned.sources.keys()


def test_import_into_a_pool_of_another_name() -> None:
    learned = teach(learner(), 1.0).export_posterior()
    fleet = learner()
    fleet.import_posterior(learned, "other")
    assert numbers(fleet.export_posterior("other")) == numbers(learned)
    assert fleet.export_posterior("other").pool == "other"
    assert numbers(fleet.export_posterior("a")) == [2.0, 2.0, 0] * 5
    with pytest.raises(UnknownNameError, match="pool: there is none called 'a'"):
        learner(pool="b").import_posterior(learned)
    with pytest.raises(UnknownNameError, match="'elsewhere'"):
        fleet.import_posterior(learned, "elsewhere")
    with pytest.raises(UnknownNameError, match="'elsewhere'"):
        fleet.export_posterior("elsewhere")


def test_an_import_that_does_not_fit_changes_nothing() -> None:
    fleet = teach(learner(Posterior(decay=0.5)), 1.0)
    before = fleet.export_posterior()
    with pytest.raises(LearnedStateError, match=r"decay=0\.8.*decay=0\.5.*learned\.settings"):
        fleet.import_posterior(learner().export_posterior())
    with pytest.raises(LearnedStateError, match="wanted a LearnedPosterior, got 'a file'"):
        fleet.import_posterior("a file")  # type: ignore[arg-type]
    assert fleet.export_posterior() == before
    assert issubclass(LearnedStateError, InputError)


def test_open_sessions_go_on_after_an_import() -> None:
    fleet = learner()
    session = fleet.session()
    session.step(Round(reward=1.0))
    fleet.import_posterior(teach(learner(), 0.0).export_posterior())
    session.step(Round(reward=1.0))
    session.close()
    assert fleet.export_posterior().actions["continue"].updates == 2
    assert fleet.export_posterior().closed == 2     # of which the second is a decay
    assert fleet.export_posterior().actions["continue"].beta == pytest.approx(2 + 0.8)


def test_a_fleet_that_is_gone_on_with_twice_is_two_sources() -> None:
    first = teach(learner(), 1.0)
    state = first.export_posterior()
    copies = []
    for reward in (0.25, 0.75):
        copy = learner()
        copy._set_pool(0, first._memory.pools[:1].copy(), first._learned_from["a"])
        copy._begin_sources()
        copies.append(teach(copy, reward, 0.5).export_posterior())
    merged = copies[0].merge(copies[1], state)
    assert merged.closed == 3 and merged.actions["continue"].updates == 5
    assert len(merged.sources) == 3


def test_a_history_as_json() -> None:
    for history in (
        PoolHistory.begun(), PoolHistory.begun(teach(learner(), 1.0).export_posterior())
    ):
        text = json.dumps(history.as_json())
        assert PoolHistory.from_json(json.loads(text)) == history
    with pytest.raises(LearnedStateError, match="source: wanted 32 hex"):
        PoolHistory.from_json({"source": "x" * 32, "start": None})
    with pytest.raises(LearnedStateError, match="version: wanted"):
        PoolHistory.from_json({"source": "a" * 32, "start": {}})


def test_a_pool_whose_name_json_does_not_have_is_refused() -> None:
    learned = learner(pool="\ud800").export_posterior
    with pytest.raises(LearnedStateError, match="pool: wanted a text that JSON can hold"):
        learned()
    fleet = learner(pool="\U0001f600")
    assert LearnedPosterior.from_json(fleet.export_posterior().to_json()).pool == "\U0001f600"


# --- values that make no sense -------------------------------------------------------------------
def fields_of_an_export() -> dict[str, Any]:
    fleet = learner()
    fleet.import_posterior(teach(learner(), 1.0, 0.5).export_posterior().as_ancestor())
    return teach(fleet, 0.25).export_posterior().as_json()


def changed(fields: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """With the field at a path replaced, or removed for `...`; `*` is the only key there."""
    *way, last = path.split("/")
    place = fields
    for step in way:
        place = next(iter(place.values())) if step == "*" else place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return fields


ARM = {"alpha": 2.0, "beta": 2.0, "updates": 0}
WRONG = [
    *(("actions/retry/alpha", value, r"actions\.retry\.alpha") for value in (
        0, -1.0, math.nan, math.inf, "2", None, True, ...)),
    *(("actions/retry/updates", value, r"actions\.retry\.updates") for value in (
        -1, 1.5, 2**64, 1, "0", ...)),
    *(("closed", value, "closed") for value in (-1, 1, 2**64, 2**63, None, True, ...)),
    ("actions/continue", ..., "actions: the action 'continue' is missing"),
    ("actions/jump", ARM, "actions: there is no action 'jump'; there is continue, retry"),
    ("actions", [], "actions: wanted a mapping"),
    ("actions/continue/beta", 2.5, r"actions\.continue\.beta: wanted .*as ancestor and sources"),
    ("pool", 5, "pool"), ("pool", ..., "pool"), ("settings", ..., "settings"),
    ("settings/decay", 1.5, r"settings\.decay"), ("settings/alpha", math.nan, "settings.alpha"),
    ("ancestor", None, "closed: wanted 1"), ("ancestor/id", "x", r"ancestor\.id"),
    ("ancestor/actions/retry/beta", -2, r"ancestor\.actions\.retry\.beta"),
    ("ancestor/actions/retry/beta", 9.0, r"actions\.retry\.beta: wanted"),
    ("sources", {}, "closed: wanted 1"),
    ("sources/*/after", ["b" * 32], "there is no source b"),
    ("sources/*/after", ["nobody"], r"sources\.[0-9a-f]{32}\.after"),
    ("sources/*/decays", 2, r"sources\.[0-9a-f]{32}\.decays: 1 closed sessions are not 2"),
    ("sources/*/closed", -1, r"sources\.[0-9a-f]{32}\.closed"),
    ("sources/*/actions/continue/alpha", -0.1, r"actions\.continue\.alpha"),
    ("sources/*/actions/continue/updates", 0, "0 updates cannot have added"),
    ("sources/*/actions/continue/alpha", 0.9, "1 updates cannot have added 0.9 to alpha"),
    ("version", 99, "version: 99 is newer than 2.*update"),
    *(("version", value, "version: wanted a number from 1") for value in (0, "2", True, 2.0, ...)),
    ("else", 1, "else: there is no such field"),
]


@pytest.mark.parametrize("case", range(len(WRONG)), ids=[
    f"{path} {str(value)[:20]}" for path, value, _ in WRONG
])
def test_b75_what_makes_no_sense_is_refused_and_left_alone(case: int, tmp_path: Path) -> None:
    field, value, match = WRONG[case]
    path = tmp_path / "learned.json"
    fields = changed(fields_of_an_export(), field, value)
    with pytest.raises(LearnedStateError, match=match):
        LearnedPosterior.from_fields(fields)
    path.write_text(json.dumps(fields))
    text = path.read_bytes()
    if b"NaN" in text or b"Infinity" in text:
        match = "wanted JSON"
    sound = teach(learner(), 1.0).export_posterior()
    for use in (LearnedPosterior.load, sound.merge_into):
        with pytest.raises(LearnedStateError, match=match) as said:
            use(path)
        assert str(said.value).startswith(f"{path}: ")
        assert path.read_bytes() == text


def test_sources_that_built_upon_each_other_are_refused() -> None:
    fields = fields_of_an_export()
    (source,) = fields["sources"]
    changed(fields, "sources/*/after", [source])
    with pytest.raises(LearnedStateError, match="sources: they are said to have built upon each"):
        LearnedPosterior.from_fields(fields)


def test_counts_that_do_not_fit_64_bits_are_refused() -> None:
    exports = []
    for name in "ab":
        many = {**ARM, "updates": 2**63}
        fields = {"version": 2, "pool": "a", "settings": {"decay_every": 0}, "closed": 0,
                  "actions": dict.fromkeys(learner().export_posterior().actions, many)}
        gains = {action: {**many, "alpha": 0, "beta": 0} for action in fields["actions"]}
        fields["sources"] = {name * 32: {"closed": 0, "decays": 0, "actions": gains}}
        exports.append(LearnedPosterior.from_fields(fields))
    with pytest.raises(LearnedStateError, match="updates: wanted less than 18446744073709551616"):
        exports[0].merge(exports[1])


def test_version_1_is_what_a_posterior_says() -> None:
    arm = {"alpha": 9, "beta": 3.5}
    actions = {action: dict(arm) for action in learner().export_posterior().actions}
    actions["retry"]["updates"] = 4
    fields = {"version": 1, "pool": "a", "settings": FAST.model_dump(), "actions": actions}
    learned = LearnedPosterior.from_json(json.dumps(fields))
    assert (learned.version, learned.closed, learned.sources) == (2, 0, {})
    assert learned.actions["retry"].updates == 4 and learned.actions["continue"].updates == 0
    assert learned == LearnedPosterior.from_json(json.dumps(fields).encode())
    fleet = learner()
    fleet.import_posterior(learned)
    assert fleet.posterior()["alpha"].tolist() == [9.0] * 5
    merged = teach(fleet, 1.0).export_posterior().merge(learned)
    assert merged.actions["continue"].alpha == 10.0
    for name in ("alpha", "beta"):
        with pytest.raises(LearnedStateError, match=rf"retry\.{name}"):
            LearnedPosterior.from_fields(json.loads(
                json.dumps(fields).replace(f'"{name}": {arm[name]}, ', "").replace(
                    f', "{name}": {arm[name]}', "")))
    with pytest.raises(LearnedStateError, match="actions"):
        LearnedPosterior.from_fields({"version": 1, "pool": "a", "settings": {}})


def test_a_learned_state_is_frozen() -> None:
    learned = learner().export_posterior()
    with pytest.raises(LearnedStateError, match="closed: fields are frozen"):
        learned.closed = 5
    with pytest.raises(LearnedStateError, match="closed: wanted 0"):
        learned.model_copy(update={"closed": 5})
    assert learned.model_copy(update={"pool": "b"}).pool == "b"


# --- files ---------------------------------------------------------------------------------------
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    learned = teach(learner(), 1.0).export_posterior()
    learned.save(path)
    assert LearnedPosterior.load(path) == learned
    text = path.read_bytes()
    for length in range(0, len(text) - 2, 17):
        path.write_bytes(text[:length])
        with pytest.raises(LearnedStateError, match=r"learned\.json: learned state: wanted JSON"):
            LearnedPosterior.load(path)
    for content in (b"[]", b"null", b"7", b"\xff\xfe", b'"text"'):
        path.write_bytes(content)
        with pytest.raises(LearnedStateError, match=r"learned\.json: learned state: wanted"):
            LearnedPosterior.load(path)


def test_what_the_system_refuses_names_the_file(tmp_path: Path) -> None:
    learned = learner().export_posterior()
    missing = tmp_path / "missing" / "learned.json"
    for use in (LearnedPosterior.load, learned.save, learned.merge_into):
        with pytest.raises(LearnedStateError, match=r"learned\.json: No such file"):
            use(missing)
    with pytest.raises(LearnedStateError, match="directory"):
        learned.merge_into(tmp_path)
    with pytest.raises(InputError, match="wait: wanted a number in"):
        learned.merge_into(tmp_path / "a.json", wait=math.nan)


def test_a_save_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "learned.json"
    fleet = teach(learner(), 1.0)
    first = fleet.export_posterior()
    first.save(path)

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"cellium_fast.whole_file.os.{name}", full)
            for use in (LearnedPosterior.save, LearnedPosterior.merge_into):
                with pytest.raises(LearnedStateError, match=r"learned\.json: No space left"):
                    use(teach(fleet, 0.0).export_posterior(), path)
        assert LearnedPosterior.load(path) == first
        left = {one.name for one in tmp_path.iterdir()} - {path.name, f"{path.name}.lock"}
        assert left <= {f"{path.name}.bak"}


@pytest.mark.skipif(os.name != "posix", reason="links need no rights on POSIX alone")
def test_a_save_keeps_links(tmp_path: Path) -> None:
    path, link = tmp_path / "learned.json", tmp_path / "link.json"
    learned = teach(learner(), 1.0).export_posterior()
    learned.save(path)
    link.symlink_to(path)
    teach(learner(), 1.0).export_posterior().merge_into(link)
    assert link.is_symlink() and not (tmp_path / "link.json.lock").exists()
    assert LearnedPosterior.load(path).closed == 2


# What reaches the disk is another question, and takes far longer than the work.
WORKER = """
import os, sys
from pathlib import Path
from cellium_fast import Fleet, LearnedPosterior, Posterior
os.fsync = lambda file: None
path = Path(sys.argv[1])
fleet = Fleet(pools={"a": Posterior(decay=0.8, decay_every=2)})
if path.exists():
    fleet.import_posterior(LearnedPosterior.load(path))
for number in range(50):
    fleet.session().close(success=True)
    fleet.export_posterior().merge_into(path)
"""


def test_b74_no_update_of_five_processes_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    running = [subprocess.Popen([sys.executable, "-c", WORKER, str(path)]) for _ in range(5)]
    assert [one.wait() for one in running] == [0] * 5
    assert LearnedPosterior.load(path).closed == 250


@pytest.mark.parametrize("shared", [False, True])
def test_b74_no_update_of_eight_threads_is_lost(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    path = tmp_path / "learned.json"
    one = learner()

    def work(number: int) -> None:
        fleet = one if shared else learner()
        for _ in range(50):
            teach(fleet, 1.0)
            fleet.export_posterior().merge_into(path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    learned = LearnedPosterior.load(path)
    assert learned.closed == learned.actions["continue"].updates == 400
    assert len(learned.sources) == (1 if shared else 8)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
def test_b74_a_killed_holder_of_the_lock_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    learned = teach(learner(), 1.0).export_posterior()
    hold = "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]); " \
           "lock.acquire(); print(flush=True); time.sleep(600)"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, f"{path}.lock"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline()
    try:
        with pytest.raises(LearnedStateError, match=r"another process has held its lock, .*0\.2 s"):
            learned.merge_into(path, wait=0.2)
        assert not path.exists()
    finally:
        holder.kill()
        holder.communicate()
    learned.merge_into(path, wait=30)
    assert LearnedPosterior.load(path) == learned
