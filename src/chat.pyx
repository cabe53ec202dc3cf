# cython: language_level=3, boundscheck=True
"""The rounds of one conversation of OpenAI chat messages.

Nothing is promised about the messages: they are whatever a file holds.
"""

from cellium_fast import usage as usages
from cellium_fast.rounds import Round, ToolCall
from cellium_fast.traces import runs, unsupported

cdef object context_tokens = usages.context_tokens
cdef double TOO_MANY_TOKENS = usages.TOO_MANY_TOKENS
cdef object NO_EVENT = runs.NO_EVENT
cdef object USER_MESSAGE = runs.USER_MESSAGE
cdef object TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
cdef str UNNAMED_TOOL = "unnamed"
cdef str IMPOSSIBLE_TOKENS = "an impossible number of tokens, left out"
cdef dict KINDS = {
    bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list",
}


def read_messages(list messages, complaints, bint any_error_start):
    """The rounds of the messages of a conversation, and the event before each.

    A faulty message is taken as far as it goes; what is wrong goes to `complaints`, a `Complaints`
    of `cellium_fast.traces.runs`, by the message's place. `any_error_start`: a result that begins
    with "Error" is one whatever follows, as in tau-bench; otherwise the word must end there.
    """
    cdef _Chat chat = _Chat.__new__(_Chat)
    cdef Py_ssize_t index = 0
    chat.rounds = []
    chat.events = []
    chat.complaints = complaints
    chat.any_error_start = any_error_start
    chat.event = NO_EVENT
    chat.await_results([])
    chat.older = {}
    for message in messages:
        chat.add_message(message, index)
        index += 1
    return chat.rounds, chat.events


cdef class _Chat:
    """A conversation while its messages are read."""

    cdef list rounds
    cdef list events
    cdef object complaints
    cdef bint any_error_start
    cdef object event       # since the last round
    cdef list waiting       # calls of the last round; None in the place of one with its result
    cdef Py_ssize_t first   # place in it before which nothing waits
    cdef dict places        # places in it by id, the first one last
    cdef dict older         # the same of earlier rounds, by id

    cdef int add_message(self, message, Py_ssize_t index) except -1:
        if not isinstance(message, dict):
            self.complaints.add(f"{kind(message)} without a known role", index)
            return 0
        role = (<dict> message).get("role")
        if not isinstance(role, str):
            self.complaints.add("a message without a known role", index)
        elif <str> role == "assistant":
            self.add_round(message, index)
        elif <str> role == "tool" or <str> role == "function":
            self.add_result(message, index)
        elif <str> role == "user":
            # Before the first round there is nothing a user could have interrupted.
            if self.rounds:
                self.event = USER_MESSAGE
        elif <str> role != "system" and <str> role != "developer":
            self.complaints.add("a message without a known role", index)
        return 0

    cdef int add_round(self, dict message, Py_ssize_t index) except -1:
        for call in self.waiting:
            if call is not None and call.id is not None:
                self.older[call.id] = call
        calls = self.read_calls(message, index)
        content = message.get("content")
        text = content if isinstance(content, str) else self.joined_text(content, index)
        self.rounds.append(Round(calls, text, self.tokens(message.get("usage"), index)))
        self.events.append(self.event)
        self.event = NO_EVENT
        self.await_results(calls)
        return 0

    cdef int await_results(self, list calls) except -1:
        cdef Py_ssize_t place
        self.waiting, self.first, self.places = calls[:], 0, {}
        for place in range(len(calls) - 1, -1, -1):
            self.places.setdefault(calls[place].id, []).append(place)
        return 0

    cdef tokens(self, usage, Py_ssize_t index):
        if not isinstance(usage, dict):
            return None
        tokens = context_tokens(usage)
        if tokens is None or tokens < TOO_MANY_TOKENS:
            return tokens
        self.complaints.add(f"usage: {IMPOSSIBLE_TOKENS}", index)
        return None

    cdef joined_text(self, content, Py_ssize_t index):
        if isinstance(content, list):
            if unsupported.has_foreign_parts(content):
                self.complaints.add("tool calls among the parts of the content, not read", index)
            return joined(content) or None
        if content is not None:
            self.complaints.add(f"{kind(content)} as content", index)
        return None

    cdef list read_calls(self, dict message, Py_ssize_t index):
        entries = message.get("tool_calls")
        if entries is None:
            legacy = message.get("function_call")
            if legacy is None:
                return []
            entries = [{"function": legacy}]
        elif not isinstance(entries, list):
            self.complaints.add(f"{kind(entries)} as tool_calls", index)
            return []
        return [self.read_call(entry, index) for entry in <list> entries]

    cdef read_call(self, entry, Py_ssize_t index):
        # A faulty entry stays a call, so that results still find theirs by order.
        cdef dict fields
        if not isinstance(entry, dict):
            self.complaints.add(f"{kind(entry)} as tool call", index)
            return ToolCall(UNNAMED_TOOL)
        fields = entry
        identity = fields.get("id")
        if not isinstance(identity, str) or not identity:
            identity = None
        function = fields.get("function")
        if function is None and isinstance(fields.get("custom"), dict):
            function = {**fields["custom"], "arguments": fields["custom"].get("input")}
        if not isinstance(function, dict):
            self.complaints.add(f"{kind(function)} as function of a tool call", index)
            return ToolCall(UNNAMED_TOOL, id=identity)
        fields = function
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            self.complaints.add(f"{kind(name)} as tool name", index)
            name = UNNAMED_TOOL
        return ToolCall(name, fields.get("arguments"), None, None, identity)

    cdef int add_result(self, dict message, Py_ssize_t index) except -1:
        identity = message.get("tool_call_id")
        if identity is None:
            several = message.get("tool_call_ids")  # SWE-agent's histories
            identity = several[0] if isinstance(several, list) and several else None
        call = self.call_of(identity if isinstance(identity, str) and identity else None)
        if call is None:
            self.complaints.add("a tool result that belongs to no call", index)
            return 0
        result = message.get("content")
        if isinstance(result, list) and all([is_text_part(part) for part in <list> result]):
            result = joined(result)
        call.result = result
        call.error = self.error(message, result)
        return 0

    cdef call_of(self, identity):
        if identity is None:
            return self.take_first()
        call = self.take(identity)
        if call is None:
            call = self.older.pop(identity, None)
        return self.take(None) if call is None else call

    cdef take(self, identity):
        # The first waiting call with this id; with None, the first one without an id.
        cdef list places = self.places.get(identity)
        cdef Py_ssize_t place
        while places:
            place = places.pop()
            call = self.waiting[place]
            if call is not None:
                self.waiting[place] = None
                return call
        return None

    cdef take_first(self):
        while self.first < len(self.waiting):
            call = self.waiting[self.first]
            self.waiting[self.first] = None
            self.first += 1
            if call is not None:
                return call
        return None

    cdef error(self, dict message, result):
        cdef str text
        error = message.get("error")
        if error:
            return error if isinstance(error, str) else True
        flag = message["is_error"] if "is_error" in message else message.get("isError")
        if isinstance(flag, bool):
            return flag
        if message.get("status") == "error":
            return True
        if not isinstance(result, str):
            return None
        text = result
        if not text.startswith("Error"):
            return False
        return self.any_error_start or len(text) == 5 or text[5] == ":" or text[5].isspace()


def context_limit(dict fields, complaints):
    """The first context limit among the fields of a run, in tokens. None: not told."""
    for key in ("context_limit", "context_window"):
        limit = fields.get(key)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            if limit < TOO_MANY_TOKENS:
                return limit
            complaints.add(f"{key}: {IMPOSSIBLE_TOKENS}")
    return None


cdef str kind(value):
    return "null" if value is None else KINDS.get(type(value), "an object")


cdef bint is_text_part(part):
    if isinstance(part, str):
        return True
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in TEXT_PARTS


cdef str joined(list parts):
    texts = [part if isinstance(part, str) else text_of(part) for part in parts]
    return "\n".join([text for text in texts if text])


cdef text_of(part):
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None
