"""The reader of chat messages: containers, names, labels, calls and their results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import ANSWER, TAU, USER, Files, asks, call, gives

from cellium_fast import RoundBatch, traces
from cellium_fast.traces import unsupported

# Chat: containers, names, labels


def test_one_message_a_line_is_one_run(files: Files) -> None:
    reading = files.read_lines(USER, asks(call()), gives("x"), 5, USER, ANSWER)
    assert reading.run.run == "run"
    assert reading.run.rounds[0].calls[0].result == "x"
    assert reading.run.events == [0, 1]
    assert "line 4: a number without a known role" in reading.problem.why


def test_lists_and_lines_of_wrappers_are_a_run_each(files: Files) -> None:
    lines = files.read_lines({"messages": [ANSWER]}, [ANSWER], {"id": "x", "chat": [ANSWER]})
    assert [run.run for run in lines.runs] == ["line 1", "line 2", "x"]
    items = files.read([{"messages": [ANSWER]}, [ANSWER], {"id": "x", "history": [ANSWER]}])
    assert [run.run for run in items.runs] == ["item 1", "item 2", "x"]
    assert not lines.problems and not items.problems


def test_names_are_unique_inside_a_file(files: Files) -> None:
    reading = files.read([TAU, TAU, {**TAU, "trial": 3}, TAU])
    assert [run.run for run in reading.runs] == ["9/2", "9/2#2", "9/3", "9/2#3"]


@pytest.mark.parametrize("item", [5, "text", None, {}, {"traj": None}, {"traj": 3}, True])
def test_an_item_that_is_no_run_is_a_problem_and_the_others_are_read(
    files: Files, item: Any
) -> None:
    for reading in (files.read([TAU, item, TAU]), files.read_lines(TAU, item, TAU)):
        assert len(reading.runs) == 2
        assert "no list of chat messages" in reading.problem.why


@pytest.mark.parametrize(
    ("reward", "success"),
    [(1.0, True), (1, True), (0.999999999, True), (0.0, False), (0.5, False), (None, None),
     ("1", None)],
)  # fmt: skip
def test_tau_bench_labels(files: Files, reward: Any, success: bool | None) -> None:
    run = files.read({**TAU, "reward": reward}).run
    assert (run.source, run.run, run.success) == ("tau-bench", "9/2", success)


@pytest.mark.parametrize(
    ("fields", "success"),
    [
        ({"success": True}, True),
        ({"resolved": False}, False),
        ({"solved": 1}, True),
        ({"reward": 1.0}, True),
        ({"reward": 0}, False),
        ({"reward": 0.4}, None),
        ({"success": None, "reward": 1}, True),
        ({"success": "yes"}, None),
        ({}, None),
    ],
)
def test_chat_labels(files: Files, fields: dict[str, Any], success: bool | None) -> None:
    assert files.read({"messages": [ANSWER], **fields}).run.success is success


def test_a_run_without_rounds_is_a_run(files: Files) -> None:
    for messages in ([USER], []):
        run = files.read({**TAU, "traj": messages}).run
        assert (run.rounds, run.events, run.success) == ([], [], False)


# Chat: messages


def test_a_user_message_is_an_event_only_between_rounds(files: Files) -> None:
    system = {"role": "system", "content": "x"}
    run = files.read([system, USER, USER, ANSWER, ANSWER, USER, USER, ANSWER, system, ANSWER, USER])
    assert run.run.events == [0, 0, traces.USER_MESSAGE, 0]


def test_results_find_their_calls_by_id_or_else_by_order(files: Files) -> None:
    by_id = [asks(call("a"), call("b"), call("c")), gives(3, "c"), gives(1, "a"), gives(2, "b")]
    assert [one.result for one in files.read(by_id).run.rounds[0].calls] == [1, 2, 3]
    by_order = [asks(call(None), call(None)), gives(1, None), gives(2, "of the logger")]
    assert [one.result for one in files.read(by_order).run.rounds[0].calls] == [1, 2]
    same_id = [asks(call("a"), call("a")), gives(1, "a"), gives(2, "a")]
    assert [one.result for one in files.read(same_id).run.rounds[0].calls] == [1, 2]
    late = [asks(call("a")), asks(call("b")), gives(2, "b"), gives(1, "a")]
    assert [step.calls[0].result for step in files.read(late).run.rounds] == [1, 2]
    listed = [asks(call("a"), call("b")), {**gives(2, None), "tool_call_ids": ["b"]}]
    assert [one.result for one in files.read(listed).run.rounds[0].calls] == [None, 2]


def test_a_result_without_a_call_is_a_problem_told_once(files: Files) -> None:
    stray = gives("x", "nowhere")
    reading = files.read([stray, asks(call()), stray, gives("y"), gives("again"), ANSWER])
    assert reading.run.rounds[0].calls[0].result == "y"
    assert len(reading.run.rounds) == 2
    assert "message 1: a tool result that belongs to no call" in reading.problem.why
    assert "2 more" in reading.problem.why


def test_legacy_function_calls(files: Files) -> None:
    asked = {**ANSWER, "function_call": {"name": "look", "arguments": '{"at": 1}'}}
    answered = {"role": "function", "name": "look", "content": "x"}
    (only,) = files.read([asked, answered]).run.rounds[0].calls
    assert (only.tool, only.arguments, only.result) == ("look", '{"at": 1}', "x")


def test_custom_tool_calls(files: Files) -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    (only,) = files.read([asks(custom), gives("x")]).run.rounds[0].calls
    assert (only.tool, only.arguments, only.result) == ("shell", "ls", "x")


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}, None, "", "no JSON", 5])
def test_arguments_are_passed_as_they_are(files: Files, arguments: Any) -> None:
    reading = files.read([asks(call(arguments=arguments))])
    assert reading.run.rounds[0].calls[0].arguments == arguments
    assert not reading.problems


@pytest.mark.parametrize(
    "entry",
    [None, 5, "look", [], {}, {"function": None}, {"function": 5}, {"function": {}},
     {"function": {"name": None}}, {"function": {"name": 5}}, {"id": 7, "function": []}],
)  # fmt: skip
def test_a_faulty_tool_call_is_a_problem_and_stays_a_call(files: Files, entry: Any) -> None:
    reading = files.read([USER, asks(entry, call("c2")), gives("first", None), gives("x", "c2")])
    first, second = reading.run.rounds[0].calls
    assert (first.tool, first.result) == ("unnamed", "first")
    assert (second.tool, second.result) == ("look", "x")
    assert "message 2" in reading.problem.why


@pytest.mark.parametrize("calls", [5, "look", {"0": call()}, True])
def test_tool_calls_that_are_no_list_are_a_problem(files: Files, calls: Any) -> None:
    reading = files.read([{**ANSWER, "tool_calls": calls}])
    assert reading.run.rounds[0].text == "done" and not reading.run.rounds[0].calls
    assert "as tool_calls" in reading.problem.why


@pytest.mark.parametrize("entry", [None, 5, "text", [], {}, {"role": None}, {"role": "narrator"}])
def test_an_entry_that_is_no_message_is_a_problem(files: Files, entry: Any) -> None:
    reading = files.read([USER, entry, ANSWER])
    assert len(reading.run.rounds) == 1
    assert "message 2" in reading.problem.why and "role" in reading.problem.why


def test_contents(files: Files) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": None}, "b"]
    picture = [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "c"}]
    lacking = {"role": "assistant", "tool_calls": None}
    reading = files.read(
        [{**ANSWER, "content": parts}, {**ANSWER, "content": picture}, lacking,
         {**ANSWER, "content": []}]
    )  # fmt: skip
    assert [step.text for step in reading.run.rounds] == ["a\nb", "c", None, None]
    assert not reading.problems
    results = [parts, picture, {"a": 1}, None, ""]
    messages = [m for r in results for m in (asks(call()), gives(r))]
    reading = files.read([*messages, asks(call()), {"role": "tool", "tool_call_id": "c1"}])
    found = [step.calls[0].result for step in reading.run.rounds]
    assert found == ["a\nb", picture, {"a": 1}, None, "", None]


@pytest.mark.parametrize("content", [5, {"text": "x"}, True])
def test_a_faulty_content_is_a_problem(files: Files, content: Any) -> None:
    reading = files.read([{**ANSWER, "content": content}])
    assert reading.run.rounds[0].text is None and "as content" in reading.problem.why


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 90, "completion_tokens": 10}, 100),
        ({"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 105}, 105),
        ({"input_tokens": 90, "output_tokens": 10}, 100),
        ({"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 80}}, 90),
        ({"prompt_tokens": 90, "completion_tokens": None, "total_tokens": None}, 90),
        ({"completion_tokens": 10}, None),
        ({"total_tokens": -1}, None),
        ({"total_tokens": True}, None),
        ({"prompt_tokens": "90"}, None),
        ({}, None),
        (None, None),
        (5, None),
    ],
)
def test_usage(files: Files, usage: Any, tokens: int | None) -> None:
    assert files.read([{**ANSWER, "usage": usage}]).run.rounds[0].context_tokens == tokens


@pytest.mark.parametrize("many", ["9223372036854775808", "1e30", "Infinity", f"1{'0' * 400}"])
@pytest.mark.parametrize("rest", ["", ', "completion_tokens": 1.5', ', "total_tokens": 1e300'])
def test_an_impossible_usage_is_unknown_and_told_once(files: Files, many: str, rest: str) -> None:
    message = f'{{"role": "assistant", "content": "x", "usage": {{"prompt_tokens": {many}{rest}}}}}'
    reading = files.read_bytes(f"[{message}, {message}]".encode())
    assert [step.context_tokens for step in reading.run.rounds] == [None, None]
    assert "message 1: usage: an impossible number of tokens, left out" in reading.problem.why
    RoundBatch.from_rounds(reading.run.rounds)


def test_the_largest_usage_and_sums_of_usage(files: Files) -> None:
    usages = [{"prompt_tokens": 9 * 10**18}, {"prompt_tokens": 2**62, "completion_tokens": 2**62}]
    reading = files.read([{**ANSWER, "usage": usage} for usage in usages])
    assert [step.context_tokens for step in reading.run.rounds] == [9 * 10**18, None]
    assert "message 2" in reading.problem.why
    RoundBatch.from_rounds(reading.run.rounds)


def test_an_impossible_context_limit_is_unknown_and_told(files: Files) -> None:
    reading = files.read({"messages": [ANSWER], "context_limit": 2**63, "context_window": 8000})
    assert reading.run.context_limit == 8000
    assert "context_limit: an impossible number of tokens" in reading.problem.why


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (gives("Error: no such order"), True),
        (gives("Error"), True),
        (gives("Error in line 3"), True),
        (gives("Errors: 0"), False),
        (gives("ErrorLog.txt"), False),
        (gives("error: lower case"), False),
        (gives("found an Error: yes"), False),
        (gives("fine"), False),
        (gives("fine", is_error=True), True),
        (gives("Error: quoted", is_error=False), False),
        (gives("fine", isError=True), True),
        (gives("fine", error="timeout"), "timeout"),
        (gives("fine", error={"type": "timeout"}), True),
        (gives("fine", error=None), False),
        (gives("fine", status="error"), True),
        (gives({"error": "left to the result"}), None),
        (gives(None), None),
    ],
)
def test_errors_of_tool_results(files: Files, message: Any, error: bool | str | None) -> None:
    assert files.read([asks(call()), message]).run.rounds[0].calls[0].error == error
    if error is None:
        assert files.read([asks(call()), message]).run.rounds[0].calls[0].error is None


def test_errors_of_tau_bench_begin_with_the_word(files: Files) -> None:
    run = files.read({**TAU, "traj": [asks(call()), gives("Error-like")]}).run
    assert run.rounds[0].calls[0].error is True


@pytest.mark.parametrize("limit", [0, -1, True, "8000", None])
def test_a_faulty_context_limit_is_unknown(files: Files, limit: Any) -> None:
    assert files.read({"messages": [ANSWER], "context_limit": limit}).run.context_limit is None


# Formats that resemble chat messages

values = st.recursive(
    st.sampled_from([None, True, 1, "", "text", "<returncode>1", "assistant", "ai", "user"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["name", "function", "type", "args", "value"]), inner, max_size=2
    ),
    max_leaves=3,
)
objects = st.dictionaries(
    st.sampled_from([
        "role", "content", "tool_calls", "message_type", "action", "observation", "args", "extras",
        "source", "from", "value", "type", "messages", "epoch", "eval", "plan",
    ]),
    values,
    max_size=5,
)
plain_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "ai", "tool"]), "content": values},
    optional={"tool_calls": values, "from": values, "value": values, "action": values},
)


@given(st.lists(objects | plain_messages, max_size=4))
def test_plain_messages_show_no_format(items: list[dict[str, Any]]) -> None:
    plain = [item for item in items if unsupported._is_plain_message(item)]
    for value in (items, {"messages": items}, *items):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unsupported, "_is_plain_message", lambda item: False)
            expected = unsupported.unsupported_format(value)
            assert all(unsupported.unsupported_format([item]) is None for item in plain)
        assert unsupported.unsupported_format(value) == expected
