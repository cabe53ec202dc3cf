"""The benchmark gate: its rule on made-up times with recorded noise, and the command."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import gate  # noqa: E402

# Smallest times of Python processes that measured one and the same build while a dozen other
# processes ran on two processors, each divided by the smallest of them all.
NOISE = json.loads((ROOT / "tests" / "data" / "gate-noise.json").read_text("utf-8"))
SECONDS = dict.fromkeys(NOISE, 1e-3)


def build(rng, slower=()):
    """Times of one process after another, noise drawn from what was recorded."""
    def take_turn():
        return {
            name: seconds * rng.choice(NOISE[name]) * (1.5 if name in slower else 1.0)
            for name, seconds in SECONDS.items()
        }

    return take_turn


def slower_ones(rng, slower=()):
    found, _ = gate.gate({"base": build(rng), "head": build(rng, slower)})
    return {one.name for one in found if one.slower}


def test_the_noise_is_there():
    assert len(NOISE) == 6
    assert all(len(times) >= 16 and min(times) == 1.0 < max(times) for times in NOISE.values())


def test_b85_the_same_build_raises_no_alarm(rng):
    assert sum(bool(slower_ones(rng)) for _ in range(200)) == 0


@pytest.mark.parametrize("name", NOISE)
def test_b85_half_as_slow_again_is_caught_in_each_measure(name, rng):
    # Half of the recorded times are a third too long, so that a few are missed.
    assert sum(slower_ones(rng, [name]) == {name} for _ in range(60)) >= 54


@pytest.mark.parametrize(("base", "head", "slower"), [
    (1e-3, 1.24e-3, False), (1e-3, 1.26e-3, True), (1e-3, 0.5e-3, False),
    (50e-6, 79e-6, False), (50e-6, 81e-6, True),
])
def test_slower_is_more_than_the_limit_and_more_than_the_floor(base, head, slower):
    assert gate.Comparison("x", base, head).slower == slower


def turns_of(times):
    """Sides that give these times, and the order in which they were asked."""
    order = []

    def side(name):
        def take_turn():
            order.append(name)
            return {"x": times[name](order.count(name))}
        return take_turn

    return {name: side(name) for name in gate.SIDES}, order


def test_the_builds_take_turns_and_stop_when_nothing_looks_slower():
    turns, order = turns_of({"base": lambda _: 1.0, "head": lambda _: 1.0})
    gate.gate(turns, rounds=2, attempts=3)
    assert order == ["base", "head", "head", "base"]


def test_what_looks_slower_is_measured_again():
    turns, order = turns_of({"base": lambda _: 1.0, "head": lambda n: 2.0 if n <= 2 else 1.0})
    found, samples = gate.gate(turns, rounds=2, attempts=3)
    assert not found[0].slower
    assert len(order) == 8
    assert samples["head"]["x"] == [2.0, 2.0, 1.0, 1.0]


def test_a_measure_that_one_build_has_is_not_compared():
    assert [one.name for one in gate.compared({"a": [1], "b": [1]}, {"b": [1], "c": [1]})] == ["b"]


# --- The command ----------------------------------------------------------------------------------
@pytest.fixture
def folders(tmp_path):
    for name in gate.SIDES:
        (tmp_path / name / "cellium_fast").mkdir(parents=True)
        (tmp_path / name / "cellium_fast" / "__init__.py").touch()
    return [str(tmp_path / name) for name in gate.SIDES]


@pytest.mark.parametrize(("times", "code"), [
    ({"base": 1.0, "head": 1.5}, 1), ({"base": 1.0, "head": 1.0}, 0),
    ({"base": 1.5, "head": 1.0}, 0),
])
def test_the_exit_code_says_whether_head_is_slower(folders, monkeypatch, capsys, times, code):
    monkeypatch.setattr(gate, "sample", lambda folder: {"x": times[folder.name]})
    assert gate.main(folders) == code
    assert ("SLOWER" in capsys.readouterr().out) == bool(code)


def test_the_samples_are_written_if_asked_for(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(gate, "sample", lambda folder: {"x": 1.0})
    assert gate.main([*folders, "--rounds", "1", "--samples", str(tmp_path / "times.json")]) == 0
    assert json.loads((tmp_path / "times.json").read_text("utf-8")) == {
        "base": {"x": [1.0]}, "head": {"x": [1.0]}
    }


def test_a_folder_without_the_package_is_refused(folders, tmp_path, capsys):
    assert gate.main([folders[0], str(tmp_path)]) == 2
    assert "holds no cellium_fast" in capsys.readouterr().err


def test_a_build_that_does_not_run_is_refused_with_its_words(folders, capsys):
    (Path(folders[0]) / "cellium_fast" / "__init__.py").write_text("raise RuntimeError('broken')")
    assert gate.main(folders) == 2
    assert "broken" in capsys.readouterr().err


def test_every_measure_is_taken():
    assert gate.take(repeats=1).keys() == NOISE.keys()
