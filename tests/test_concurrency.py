"""One fleet used from threads, tasks and processes: the same answers as one after the other."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from cellium_fast import Fleet, Round, RoundBatch, ToolCall, pipeline

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def rounds_of(turn: int, size: int) -> RoundBatch:
    state = np.random.default_rng(turn)
    return RoundBatch(
        call_offsets=np.arange(size + 1),
        call_tool=state.integers(1, 4, size).astype(np.uint64),
        call_signature=state.integers(1, 6, size).astype(np.uint64),
        context_tokens=state.integers(0, 1000, size),
    )


def one_round(turn: int) -> Round:
    return Round([ToolCall("ab"[turn % 2], {"x": turn % 3}, f"result {turn % 5}")])


def in_threads(work, count: int) -> None:
    """work(0), work(1), ... at once; what one of them raises is raised."""
    problems = []
    start = threading.Barrier(count)

    def run(place: int) -> None:
        try:
            start.wait(60)
            work(place)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    if problems:
        raise problems[0]


# --- threads -------------------------------------------------------------------------------------
def life(fleet: Fleet, place: int, turns: int) -> list[object]:
    """Sessions of one thread, opened, stepped and closed; what was decided, but for the draws.

    Draws depend on the number of a session, and that on who came first.
    """
    seen: list[object] = []
    for turn in range(turns):
        ids = fleet.open(5 + place, private=True, context_limit=1000)
        with fleet.session(f"agent {place}", tools=["a", "b"], private=True) as session:
            for step in range(4):
                decisions = fleet.step(ids, rounds_of(97 * place + step, len(ids)))
                seen.append((decisions.candidates.tolist(), decisions.rules.tolist(),
                             decisions.reward.tolist()))
                decision = session.step(one_round(turn + step))
                seen.append((decision.candidates, decision.rules, decision.reward))
                assert fleet.attach(session.id) is session
            fleet.user_message(ids)
        fleet.close(ids, success=True)
    return seen


def live_together(count: int, turns: int) -> None:
    fleet = Fleet(policies={"greedy": "cellium"})
    seen: list[list[object]] = [[] for _ in range(count)]

    def work(place: int) -> None:
        seen[place] = life(fleet, place, turns)

    in_threads(work, count)
    assert len(fleet) == 0
    assert fleet._memory.free_count == fleet._memory.used
    for place in range(count):
        alone = life(Fleet(policies={"greedy": "cellium"}), place, turns)
        assert seen[place] == alone


def test_threads_with_sessions_of_their_own_decide_as_one_after_the_other():
    live_together(8, 12)


@pytest.mark.long
def test_many_threads_with_sessions_of_their_own_decide_as_one_after_the_other():
    live_together(32, 300)


def test_threads_that_step_their_own_sessions_give_the_answers_of_one():
    together, alone = Fleet(seed=3, threads=2), Fleet(seed=3, threads=1)
    groups = [together.open(2000, private=True) for _ in range(4)]
    for _ in range(4):
        alone.open(2000, private=True)
    answers = [[], [], [], []]

    def work(place: int) -> None:
        for turn in range(20):
            answers[place].append(
                together.step(groups[place], rounds_of(turn + place, 2000)).draws.tobytes()
            )

    in_threads(work, 4)
    for place in range(4):
        for turn in range(20):
            draws = alone.step(groups[place], rounds_of(turn + place, 2000)).draws.tobytes()
            assert draws == answers[place][turn]
    assert together._memory.sessions.tobytes() == alone._memory.sessions.tobytes()


def test_another_thread_works_while_a_step_computes(monkeypatch):
    fleet = Fleet(threads=1)
    size = 200_000
    ids = fleet.open(size)
    rounds = RoundBatch(context_tokens=np.zeros(size, np.int64))
    go, progress, seen = threading.Lock(), [0], []

    def count() -> None:
        with go:
            while progress[0] < 10_000:
                progress[0] += 1

    def begin(batch, start, stop) -> None:
        if start == 0:
            go.release()

    def end(batch, start, stop) -> None:
        if stop == size:
            seen.append(progress[0])

    # Between the two only kernels run, and nobody is made to give the GIL away.
    monkeypatch.setattr(pipeline, "STAGES", (begin, *pipeline.STAGES, end))
    go.acquire()
    thread = threading.Thread(target=count)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(600)
    try:
        fleet.step(ids, rounds)
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert seen == [10_000]


# --- tasks ---------------------------------------------------------------------------------------
def test_tasks_on_the_loop_and_in_threads():
    async def agent(fleet: Fleet, place: int) -> list[object]:
        session = fleet.session(f"agent {place}", private=True)
        seen = []
        for turn in range(10):
            if (place + turn) % 2:
                decision = await asyncio.to_thread(session.step, one_round(turn))
            else:
                decision = session.step(one_round(turn))
                await asyncio.sleep(0)
            seen.append((decision.action, decision.rules, decision.draws))
        return seen

    async def everyone(fleet: Fleet) -> list[list[object]]:
        return await asyncio.gather(*(agent(fleet, place) for place in range(50)))

    together = asyncio.run(everyone(Fleet(seed=1)))
    alone = Fleet(seed=1)
    sessions = [alone.session(f"agent {place}", private=True) for place in range(50)]
    for session, seen in zip(sessions, together, strict=True):
        for turn, answer in enumerate(seen):
            decision = session.step(one_round(turn))
            assert (decision.action, decision.rules, decision.draws) == answer


# --- processes -----------------------------------------------------------------------------------
def run(code: str, **environment: str) -> str:
    """What a program prints; it must print nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, env={**os.environ, **environment}, timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@needs_fork
def test_a_fork_while_threads_step():
    assert run("""
        import os, threading
        import numpy as np
        from cellium_fast import Fleet, RoundBatch
        fleet = Fleet(seed=2, threads=2)
        groups = [fleet.open(9_000, private=True) for _ in range(3)]
        rounds = RoundBatch(context_tokens=np.zeros(9_000, np.int64))
        over = threading.Event()
        def work(ids):
            while not over.is_set():
                fleet.step(ids, rounds)
        threads = [threading.Thread(target=work, args=(ids,)) for ids in groups]
        [thread.start() for thread in threads]
        for _ in range(25):
            child = os.fork()
            if child == 0:
                # All threads but this one are gone, and no session is in the middle of a step.
                counts = fleet._memory.sessions["round"]
                whole = all(len(np.unique(counts[ids])) == 1 for ids in groups)
                copy = fleet._memory.sessions.copy()
                answers = [fleet.step(ids, rounds).draws for ids in groups]
                again = Fleet(seed=2, threads=1)
                [again.open(9_000, private=True) for ids in groups]
                again._memory.sessions[:] = copy[: len(again._memory.sessions)]
                same = all(
                    np.array_equal(again.step(ids, rounds).draws, draws, equal_nan=True)
                    for ids, draws in zip(groups, answers)
                )
                fleet.close(groups[0])
                os._exit(0 if whole and same and len(fleet) == 18_000 else 1)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        [thread.join() for thread in threads]
        print(fleet)
    """).startswith("<Fleet of 27000 sessions")


def test_steps_import_nothing():
    # A child that is forked while another thread imports a module waits for that module for ever.
    assert run("""
        import sys
        import numpy as np
        from cellium_fast import Fleet, Round, RoundBatch, ToolCall
        fleet = Fleet(max_sessions=100)
        before = set(sys.modules)
        ids = fleet.open(99, private=True, context_limit=[1000] * 99)
        session = fleet.session("agent", tools=["a"])
        fleet.step(ids, RoundBatch(context_tokens=np.arange(99)), want=["draws"])
        fleet.step(ids, [Round([ToolCall("a", {"x": 1}, error="no")], text="Sorry")] * 99)
        session.step(Round([ToolCall("a", {"x": [1.5]}, {"y": None})]))
        fleet.user_message(ids)
        fleet.compacted(ids)
        fleet.open(50)
        fleet.close(fleet.ids, success=True)
        print(set(sys.modules) - before)
    """) == "set()\n"


@needs_fork
def test_a_fork_while_another_thread_builds_the_checks_of_policies():
    assert run("""
        import os, signal, threading
        from cellium_fast import Policy
        from cellium_fast.parameters import BUILDING
        begun, over = threading.Event(), threading.Event()
        def build():
            with BUILDING:
                begun.set()
                over.wait(0.2)
        thread = threading.Thread(target=build)
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            Policy(n_step=2)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        Policy(n_step=2)
        print("done")
    """) == "done\n"


@needs_fork
def test_a_fork_while_threads_open_fleets_and_fork_too():
    assert run("""
        import os, threading
        from cellium_fast import Fleet, RoundBatch
        def work():
            for _ in range(10):
                fleet = Fleet()
                ids = fleet.open(9)
                child = os.fork()
                fleet.step(ids, RoundBatch())
                if child == 0:
                    os._exit(len(fleet) - 9)
                assert os.waitpid(child, 0)[1] == 0
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print("done")
    """) == "done\n"


@needs_fork
def test_a_signal_handler_that_forks_in_the_middle_of_a_step():
    assert run("""
        import os, signal
        import numpy as np
        from cellium_fast import Fleet, RoundBatch
        fleet = Fleet(threads=3)
        ids = fleet.open(40_000)
        rounds = RoundBatch(context_tokens=np.zeros(40_000, np.int64))
        children, parent = [], os.getpid()
        def fork(*_):
            if os.getpid() == parent:
                children.append(os.fork())
        signal.signal(signal.SIGALRM, fork)
        for turn in range(20):
            signal.setitimer(signal.ITIMER_REAL, 1e-3 + 1e-4 * turn)
            fleet.step(ids, rounds)
            signal.setitimer(signal.ITIMER_REAL, 0)
            whole = len(np.unique(fleet._memory.sessions["round"][:40_000])) == 1
            if os.getpid() != parent:
                signal.alarm(0)
                fleet.step(ids, rounds)
                os._exit(0 if whole else 1)
            assert whole
        assert children
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        print("done")
    """) == "done\n"


def answers_of(seed: int) -> bytes:
    """What a fleet of this process decides; called in other processes, too."""
    fleet = Fleet(seed=seed, threads=2)
    ids = fleet.open(10_000)
    return b"".join(fleet.step(ids, rounds_of(turn, 10_000)).draws.tobytes() for turn in range(3))


@pytest.mark.parametrize(
    "method", [one for one in multiprocessing.get_all_start_methods() if one != "forkserver"]
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worker_processes_decide_the_same(method):
    here = answers_of(4)        # before the fork, so that there is a fleet's turn to make anew
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(answers_of, [4, 4]) == [here, here]


THREADS_AND_STEPS = """
    import hashlib, multiprocessing, os, threading
    import numpy as np
    from cellium_fast import Fleet, RoundBatch
    def rounds_of(turn):
        state = np.random.default_rng(turn)
        return RoundBatch(
            call_offsets=np.arange(401), call_tool=state.integers(1, 4, 400).astype(np.uint64),
            call_signature=state.integers(1, 6, 400).astype(np.uint64),
        )
    def answer(parallel, steps={steps}):
        fleet = Fleet(seed=6)
        groups = [fleet.open(400, private=True) for _ in range(8)]
        def work(place):
            for turn in range(steps):
                fleet.step(groups[place], rounds_of(turn + place))
        threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
            if not parallel:
                thread.join()
        for thread in threads:
            thread.join()
        return hashlib.sha256(fleet._memory.sessions.tobytes()).hexdigest()
    if __name__ == "__main__":
        serial = answer(False)
        assert answer(True) == serial
        if hasattr(os, "fork"):
            child = os.fork()
            if child == 0:
                os._exit(0 if answer(True) == serial else 1)
            assert os.waitpid(child, 0)[1] == 0
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(answer, [True]) == [serial]
        print("done")
"""


def test_b81_no_abort_from_threads_after_a_fork_or_in_a_spawned_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(THREADS_AND_STEPS.format(steps=200)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", program], capture_output=True,
        text=True, timeout=300, env={**os.environ, "NUMBA_THREADING_LAYER": "workqueue"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_batch_is_cut_for_threads_when_tests_say_so():
    # The tests above mean several threads: their batches are large enough.
    assert pipeline.span_count(9_000, 2) == 2
    assert pipeline.span_count(40_000, 3) == 3
