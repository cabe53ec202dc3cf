"""Damaged recordings and policy files: told, never raised on, whatever byte or value is wrong.

The short form takes a few places of each file, the long one (``-m long``) all of them. A failure
shows the file and the damage; and the seed, which CELLIUM_SEED gives.
"""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fuzzing
import pytest
from cli_runs import EXAMPLES
from cli_runs import call as run_cli
from fuzzing import Damaged, every_flip, every_replacement, every_truncation, some_of
from test_traces_inspect import archive, sample
from trace_files import ANSWER, TAU, Files, Reading

from cellium_fast import Policy, PolicyError, traces
from cellium_fast.errors import shown
from cellium_fast.traces import archives
from cellium_fast.traces.packed import PackedRuns, packed

TIDES = json.loads((EXAMPLES / "tide_tables.json").read_bytes())["samples"]
RECORDINGS: dict[str, bytes] = {
    **{path.name: path.read_bytes() for path in sorted(EXAMPLES.iterdir())},
    "tides.eval": archive(*TIDES),
    "stored.eval": archive(*TIDES[1:], compression=zipfile.ZIP_STORED),
    "tau.json": json.dumps([TAU, {**TAU, "trial": 3}], indent=1).encode(),
}
POLICIES = {
    "policy.toml": b"""
preset = "cellium"
n_step = 3
gamma = 0.9
frequent_tools = ["read", "search"]
loop_detection = true

[tool_limits]
poll = "poll"
ls = 3

[rules.idle]
rounds = 4
enabled = true
[rules.failure_chain]
actions = ["retry", "redirect"]

[posterior]
alpha = 1.5
decay_target = "prior"
""",
    "policy.yaml": b"""
preset: default
n_step: 0x3
gamma: .9
frequent_tools:
  - read
  - "se\\u0061rch"
tool_limits: !!pairs [poll: poll, ls: 3]
rules:
  idle: &base {rounds: 4, enabled: yes}
  repeated_call: {<<: *base, calls: 5}
compress_tries: ~
""",
    "policy.json": b"""{"preset": "cellium", "n_step": 3, "gamma": 0.9, "tool_limits":
{"poll": "poll", "ls": 3}, "rules": {"idle": {"rounds": 4, "enabled": true}, "failure_chain":
{"actions": ["retry", "redirect"]}}, "posterior": {"alpha": 1.5, "decay_target": "prior"}}""",
}

bounded = pytest.mark.parametrize("most", [
    pytest.param(None, id="everywhere", marks=pytest.mark.long),
    pytest.param(12, id="here_and_there"),
])  # fmt: skip
every_recording = pytest.mark.parametrize("name", RECORDINGS)
every_policy = pytest.mark.parametrize("name", POLICIES)


def places(rng: Any, size: int, most: int | None) -> list[int]:
    return some_of(rng, size, size if most is None else most)


def damaged(rng: Any, data: bytes, most: int | None) -> Iterator[Damaged]:
    """The file cut off and with bits flipped, everywhere or at so many places."""
    yield from every_truncation(data, places(rng, len(data), most))
    yield from every_flip(data, offsets=places(rng, len(data), most))


# --- recordings ----------------------------------------------------------------------------------
def sound(files: Files, name: str, data: bytes, what: str) -> Reading:
    """What is read from a file, once it is seen to be told and packed without a fault of ours."""
    reading = files.read_bytes(data, name)
    faults = [str(one) for one in reading.problems if "from here on" in one.why]
    assert not faults, f"{name}, {what}"
    for run in reading.runs:
        assert len(run.events) == len(run.rounds), f"{name}, {what}"
    for found in packed(reading.runs):
        assert isinstance(found, PackedRuns | traces.Problem), f"{name}, {what}"
    return reading


def is_whole(data: bytes) -> bool:
    """Whether a cut file shows nothing of it: it, or each of its lines, is a JSON value."""
    for parts in ([data], data.splitlines()):
        try:
            return bool([json.loads(part) for part in parts])
        except ValueError:
            pass
    return False


@every_recording
@bounded
def test_a_recording_cut_off_is_told(files: Files, name: str, most: int | None, rng: Any) -> None:
    data = RECORDINGS[name]
    for cut in every_truncation(data, places(rng, len(data), most)):
        reading = sound(files, name, cut.data, cut.what)
        assert reading.problems or is_whole(cut.data), f"{name}, {cut.what}"


@every_recording
@bounded
def test_flipped_bits_in_a_recording(
    files: Files, name: str, most: int | None, rng: Any
) -> None:
    data = RECORDINGS[name]
    for flip in every_flip(data, offsets=places(rng, len(data), most)):
        reading = sound(files, name, flip.data, flip.what)
        assert reading.problems or reading.runs, f"{name}, {flip.what}: neither read nor told"


@pytest.mark.parametrize("name", [name for name in RECORDINGS if not name.endswith(".eval")])
@bounded
def test_a_strange_value_anywhere_in_a_recording(
    files: Files, name: str, most: int | None, rng: Any
) -> None:
    lines = RECORDINGS[name].splitlines() if name.endswith(".jsonl") else [RECORDINGS[name]]
    records = [json.loads(line) for line in lines]
    for what, changed in every_replacement(
        records, places=places(rng, len(fuzzing.nodes(records)), most)
    ):
        data = b"\n".join(json.dumps(record).encode() for record in changed)
        sound(files, name, data, what)


@bounded
def test_a_strange_value_in_a_member_of_an_archive(
    files: Files, most: int | None, rng: Any
) -> None:
    found = every_replacement(TIDES, places=places(rng, len(fuzzing.nodes(TIDES)), most))
    for what, changed in found:
        if isinstance(changed, list):
            sound(files, "tides.eval", archive(*changed), what)


@every_recording
def test_the_command_line_tells_damaged_recordings(
    files: Files, name: str, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for one in damaged(rng, RECORDINGS[name], 3):
        reading = files.read_bytes(one.data, name)
        done = run_cli("replay", files.folder / name)
        assert done.exit_code == (0 if reading.runs else 1), f"{name}, {one.what}: {done.stderr}"
        told = " ".join(done.stderr.split())
        assert all(name in told for _ in reading.problems[:1]), f"{name}, {one.what}: {told}"
        assert "Traceback" not in done.stderr


# --- policy files --------------------------------------------------------------------------------
def policy_or_told(path: Path, what: str) -> Policy | None:
    """The policy in a file; None if an error says what is wrong with which file."""
    try:
        policy = Policy.from_file(path)
    except PolicyError as error:
        assert str(error).startswith(f"{path}: "), what
        return None
    assert policy.record().shape == (1,)
    return policy


@every_policy
def test_the_policy_files_are_good_before_they_are_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(POLICIES[name])
    policy = policy_or_told(path, "nothing is wrong")
    assert policy is not None
    assert (policy.n_step, policy.rules.idle.rounds, dict(policy.tool_limits)["ls"]) == (3, 4, 3)


@every_policy
@bounded
def test_damaged_policy_files(tmp_path: Path, name: str, most: int | None, rng: Any) -> None:
    path = tmp_path / name
    for one in damaged(rng, POLICIES[name], most):
        path.write_bytes(one.data)
        policy_or_told(path, f"{name}, {one.what}")


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@bounded
def test_a_strange_value_anywhere_in_a_policy_file(
    tmp_path: Path, suffix: str, most: int | None, rng: Any
) -> None:
    given = json.loads(POLICIES["policy.json"])
    path = tmp_path / f"policy.{suffix}"
    strange = [*fuzzing.STRANGE, {"enabled": 1}, -0.0, 2**63, "default", ["retry"]]
    for what, changed in every_replacement(
        given, strange, places(rng, len(fuzzing.nodes(given)), most)
    ):
        path.write_text(json.dumps(changed))
        policy_or_told(path, what)


@every_policy
def test_the_command_line_refuses_damaged_policies(
    tmp_path: Path, name: str, rng: Any
) -> None:
    path = tmp_path / name
    for one in damaged(rng, POLICIES[name], 4):
        path.write_bytes(one.data)
        policy = policy_or_told(path, one.what)
        done = run_cli("replay", EXAMPLES / "bookshop_chat.jsonl", "--policy", path)
        assert done.exit_code == (2 if policy is None else 0), f"{name}, {one.what}: {done.stderr}"


def laughing(levels: int) -> str:
    """Lists of nine lists each, so many times over: more than any memory, were they written out."""
    lines = ["a0: &a0 [ha, ha, ha]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merging(levels: int) -> str:
    """Mappings merged of four each, so many times over."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 4)}]}}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(("suffix", "text", "word"), [
    ("yaml", "gamma: !!int ''", "does not fit its tag"),
    ("yaml", "gamma: !!float ''", "does not fit its tag"),
    ("yaml", "gamma: !!bool often", "does not fit its tag"),
    ("yaml", "gamma: !!timestamp now", "does not fit its tag"),
    ("yaml", "gamma: 2001-99-99", "month"),
    ("yaml", f"{laughing(30)}\ngamma: *a29", "gamma: wanted a valid number"),
    ("yaml", f"{laughing(30)}\npreset: *a29", "preset: there is none called"),
    ("yaml", f"{laughing(30)}\ntool_limits: [*a29]", "wanted pairs of a tool"),
    ("yaml", merging(40), ""),      # which PyYAML keeps small by itself, since its version 6.0.4
    ("yaml", "rules:\n" + "".join(f"  a{n}: 1\n" for n in range(1_001)), "at most 1,000 keys"),
    ("yaml", "gamma: &a [*a]", "gamma: wanted a valid number"),
    ("yaml", "&a\nrules: *a", "rules.rules"),
    ("yaml", "gamma:\n" + "- " * 3_000, "recursion"),
    ("toml", "preset" + ".a" * 2_000 + " = 1", "preset: there is none called"),
    ("toml", "gamma = " + "[" * 3_000, "recursion"),
    ("json", "[" * 60_000, "depth"),
    ("json", "{}" + " " * 65_535, "wanted at most 65,536 bytes"),
    ("json", "\0", "unexpected character"),
    ("ini", "gamma = 1", "wanted a .toml, .yaml or .json file"),
])
def test_policy_files_made_to_hurt(tmp_path: Path, suffix: str, text: str, word: str) -> None:
    path = tmp_path / f"policy.{suffix}"
    path.write_text(text)
    with pytest.raises(PolicyError) as caught:
        Policy.from_file(path)
    assert word in str(caught.value)


def test_a_value_is_shown_in_a_few_words_whatever_it_holds() -> None:
    nested: Any = ["ha"]
    for _ in range(60):
        nested = [nested, nested]
    assert shown(nested) == "[" * 61 + "'ha'], ['ha']], [['"
    around: list[Any] = []
    around.append(around)
    assert shown(around) == "[" * 80
    for value in ([], (), {}, set(), frozenset(), [1], (1,), (1, "b"), {1: [2], "b": {3}},
                  frozenset({(1,)}), [frozenset()], None, "text", 2.5):
        assert shown(value) == repr(value)
    assert shown([10**5000]) == "an list too long to print"


# --- archives made to hurt -----------------------------------------------------------------------
def packed_blanks(size: int, method: int, module: Any = zipfile) -> bytes:
    """An archive with a member of so many blanks."""
    data = io.BytesIO()
    with module.ZipFile(data, "w", method) as members:
        with members.open("samples/1_epoch_1.json", "w") as member:
            for _ in range(0, size, 1 << 20):
                member.write(b" " * (1 << 20))
        members.writestr(
            "samples/2_epoch_1.json", json.dumps(sample(ANSWER)), zipfile.ZIP_DEFLATED
        )
    return data.getvalue()


def with_numbers(data: bytes, unpacked: int, packed_size: int | None = None) -> bytes:
    """The archive with other sizes in the directory's entry of its first member."""
    changed = bytearray(data)
    entry = data.index(b"PK\x01\x02")
    changed[entry + 24 : entry + 28] = unpacked.to_bytes(4, "little")
    if packed_size is not None:
        changed[entry + 20 : entry + 24] = packed_size.to_bytes(4, "little")
    return bytes(changed)


def read_within(files: Files, data: bytes, most: int) -> Reading:
    """What is read, with never more than so many bytes of memory on top."""
    tracemalloc.start()
    try:
        reading = files.read_bytes(data, "hurting.eval")
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    return reading


SIZE = 48 << 20
HURTING: dict[str, tuple[Callable[[], bytes], str]] = {
    "tells its size": (
        lambda: packed_blanks(SIZE, zipfile.ZIP_DEFLATED), "unpacks to 48 MiB, more than 16 MiB",
    ),
    "tells a small size": (
        lambda: with_numbers(packed_blanks(SIZE, zipfile.ZIP_DEFLATED), 100), "cannot be unpacked",
    ),
    "tells a large packed size": (
        lambda: with_numbers(packed_blanks(SIZE, zipfile.ZIP_DEFLATED), SIZE, 1 << 31),
        "unpacks to 48 MiB, more than 16 MiB",
    ),
    "bzip2": (lambda: packed_blanks(SIZE, zipfile.ZIP_BZIP2), "a method that is not used"),
    "lzma": (lambda: packed_blanks(SIZE, zipfile.ZIP_LZMA), "a method that is not used"),
}


@pytest.mark.parametrize("name", HURTING)
def test_a_small_archive_cannot_fill_the_memory(files: Files, name: str) -> None:
    make, word = HURTING[name]
    reading = read_within(files, make(), 8 << 20)
    assert word in reading.problem.why
    assert reading.run.run == "tide/2"      # what else is in it


@pytest.mark.parametrize("told", [None, 100, 4 << 20])
def test_a_small_archive_of_zstd_cannot_fill_the_memory(files: Files, told: int | None) -> None:
    module: Any = zipfile
    if not hasattr(zipfile, "ZIP_ZSTANDARD"):
        module = pytest.importorskip("backports.zstd.zipfile")
    data = packed_blanks(SIZE, module.ZIP_ZSTANDARD, module)
    reading = read_within(files, data if told is None else with_numbers(data, told), 16 << 20)
    assert ("unpacks to" if told is None else "cannot be unpacked") in reading.problem.why


def test_members_that_are_packed_well_are_read(files: Files) -> None:
    talk = sample(*[{**ANSWER, "content": "la " * 1_000_000}] * 5)
    data = archive(talk)
    assert archives.UNSUSPECTED > 15_000_000 > 50 * len(data)
    assert len(files.read_bytes(data, "long.eval").run.rounds) == 5


# --- recordings made to hurt: each took the square of its length, or more calls than a stack holds
def only_run(files: Files, value: Any) -> traces.RecordedRun:
    reading = files.read(value)
    assert not reading.problems
    return reading.run


def test_many_blocks_of_code_that_do_not_end(files: Files) -> None:
    text = "x```sh\n" * 300_000
    messages = [{"role": "assistant", "content": text}]
    run = only_run(files, {"trajectory_format": "mini-swe-agent-1", "messages": messages})
    assert (run.rounds[0].calls, run.rounds[0].text) == ([], text)


def test_very_many_calls_whose_results_come_in_any_order(files: Files, rng: Any) -> None:
    count = 30_000
    calls = [{"id": f"c{n}", "function": {"name": f"tool {n}", "arguments": "{}"}}
             for n in range(count)]  # fmt: skip
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": f"result {n}"}
               for n in range(count)][::-1]  # fmt: skip
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": calls}]
    run = only_run(files, {"messages": [*messages, *results]})
    assert [one.result for one in run.rounds[0].calls] == [f"result {n}" for n in range(count)]


def test_names_of_runs_that_stand_in_each_others_way(files: Files) -> None:
    names = ["x" + "#2" * count for count in range(2_000)] + ["x"] * 3
    reading = files.read_lines(*({"run_id": name, "messages": [ANSWER]} for name in names))
    assert not reading.problems
    found = [run.run for run in reading.runs]
    assert found[:2_000] == names[:2_000]
    assert found[2_000:] == ["x" + "#2" * 2_000, "x#3", "x#4"]


def in_any_order(calls: list[str | None], results: Iterable[str | None]) -> list[Any]:
    """Results of calls with these ids, handed out one by one as the results name them."""
    asked = {"role": "assistant", "tool_calls": [
        {"id": one, "function": {"name": "look", "arguments": "{}"}} for one in calls
    ]}  # fmt: skip
    messages = [asked, *(
        {"role": "tool", "tool_call_id": one, "content": str(place)}
        for place, one in enumerate(results)
    )]  # fmt: skip
    rounds, _ = traces.openai_chat._chat.read_messages(messages, traces.runs.Complaints(), False)
    return [one.result for one in rounds[0].calls]


@pytest.mark.parametrize(("calls", "results", "expected"), [
    (["a", "b", "a"], ["a", "a", "b"], ["0", "2", "1"]),
    (["a", "b", "c"], [None, "a", None], ["0", "2", None]),
    (["a", "b", "c"], ["b", None, None], ["1", "0", "2"]),
    ([None, "b", None], ["x", "b", "y"], ["0", "1", "2"]),
    ([None, "b"], [None, None, None], ["0", "1"]),
    (["a"], ["b", "a", "a"], ["1"]),
])  # fmt: skip
def test_results_find_their_calls(
    calls: list[str | None], results: list[str | None], expected: list[str | None]
) -> None:
    assert in_any_order(calls, results) == expected
