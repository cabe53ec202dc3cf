"""What ingest reads off arguments, texts and results, in plain Python; words come from a table."""

import json
import re
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest

from cellium_fast import result_words

FIELDS = (
    "request id", "req id", "x request id", "client request id", "call id", "tool call id",
    "tool use id", "invocation id", "trace id", "trace parent", "span id", "parent span id",
    "correlation id", "x correlation id", "idempotency key", "x idempotency key", "client token",
    "client request token", "nonce", "random", "cache buster", "cache bust", "timestamp", "ts",
    "now", "current time", "current timestamp", "requested at", "request time",
    "request timestamp", "sent at", "attempt", "attempt number", "attempt count", "retry",
    "retry count", "retry number", "retry attempt",
)
FOLDED = {field.replace(" ", "") for field in FIELDS}


# --- shapes ---------------------------------------------------------------------------------------
def is_volatile(key: str) -> bool:
    return re.sub("[_-]", "", re.sub("[A-Z]", lambda found: found[0].lower(), key)) in FOLDED


def hidden(value: Any) -> str:
    """JSON with sorted keys and no white space, # for the value of each volatile field."""
    if isinstance(value, dict):
        members = (
            f"{orjson.dumps(key).decode()}:{'#' if is_volatile(key) else hidden(value[key])}"
            for key in sorted(value)
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(hidden, value)) + "]"
    return orjson.dumps(value).decode()


def shape(tool: str, arguments: Any) -> int:
    text = hidden(arguments) if not isinstance(arguments, str) else arguments
    return int(xxh3_64_intdigest(f"{tool}\0{text}".encode()))


# --- sketches -------------------------------------------------------------------------------------
FACTORS = (
    0x9E37, 0x79B9, 0x7F4B, 0xD6E9, 0xFEB9, 0x6659, 0xFD93, 0x51AF,
    0xD7ED, 0x558D, 0xC2B3, 0xAE3D, 0x85EB, 0xCA77, 0x27D5, 0xEB2F,
)


def normalised(text: str) -> str:
    kept = "".join(map(normal, text[:1024]))
    return re.sub("00+", "0", re.sub("  +", " ", kept)).lstrip(" ")[:256].rstrip(" ")


def normal(char: str) -> str:
    if char.isalpha():
        return char.lower()[0]
    return "0" if char.isdecimal() else " " if char.isspace() else ""


def signed(value: int) -> int:
    return value - 0x10000 if value >= 0x8000 else value


def sketch(text: str) -> int:
    chars = normalised(text)
    if len(chars) < 16:
        return 0
    grams = {chars[place : place + 3] for place in range(len(chars) - 2)}
    hashes = [
        sum(ord(char) << 21 * place for place, char in enumerate(gram))
        * 0x9E3779B97F4A7C15 % 2**64 >> 48
        for gram in grams
    ]
    result = 0
    for place, factor in enumerate(FACTORS):
        least = min(signed(value * factor % 2**16) for value in hashes)
        result |= (least * 0x9E37 % 2**16 >> 12) << 4 * place
    return result or 1


def alike(left: int, right: int) -> int:
    return sum(left >> 4 * place & 15 == right >> 4 * place & 15 for place in range(16))


# --- results --------------------------------------------------------------------------------------
# Between anything else and a letter or digit; before an upper-case letter inside a name.
BEGINNING = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z0-9_\W])"
)


def is_transient(text: str) -> bool:
    text = text[:500]
    starts = [found.start() for found in BEGINNING.finditer(text)]
    for word, rest in result_words.TRANSIENT.items():
        expression = re.compile(f"(?i:{re.escape(word)})(?i:{rest})")
        if any(expression.match(text, start) for start in starts):
            return True
    return re.match(result_words.TRANSIENT_START, text) is not None


def is_acknowledgement(text: str) -> bool:
    line = text.strip()
    if 120 < len(line) <= 300:
        line, found, _ = line.partition(". ")
        line = line if found else ""
    if not 0 < len(line) <= 120 or not line.isprintable() or set(line) & {"?", "="}:
        return False
    line = line.lower().replace("\u2019", "'")
    as_json = line.startswith("{")
    if (line.startswith("[") and not line.startswith("[exit")) or (as_json and "[" in line):
        return False
    line = re.sub(result_words.ZERO, " done ", re.sub(result_words.SILENCE, "", line))
    if as_json:
        line = re.sub('[{}":,_]', " ", re.sub(result_words.NULLS, "", line))
    marks = " .,;:!'\"`()[]{}<>*-\u2013\u2014\u2026\u3002\uff01\uff0c\u2705\u2713\u2714"
    words = [word.strip(marks) for word in line.split()]
    words = [word for word in words if word]
    kinds = [kind_of(word) for word in words]
    names, numbers = kinds.count("name"), kinds.count("number")
    return (
        "done" in kinds and "no" not in kinds and numbers <= 2
        and names <= (0 if as_json and all(word.isascii() for word in words) else 2)
        and not (as_json and any(
            kind == "name" and word.isascii() for kind, word in zip(kinds, words, strict=True)
        ))
    )


def kind_of(word: str) -> str:
    if word in result_words.DONE:
        return "done"
    if word in result_words.NOT_DONE or word.endswith("n't"):
        return "no"
    if re.fullmatch(r"[\x21-\x7e]{3,}ed", word) and word not in result_words.PARTICIPLES_NOT:
        return "done"
    if word in result_words.BESIDE:
        return "beside"
    if word.isdecimal():
        return "number" if int(word) > 0 else "no"
    if word.isascii():
        return "name" if re.search("[a-z]", word) else "no"
    for kind, parts in (("no", result_words.NOT_DONE_PARTS), ("done", result_words.DONE_PARTS)):
        if any(part in word for part in parts):
            return kind
    return "name"


# --- silence --------------------------------------------------------------------------------------
def changes_something(tool: str, arguments: Any) -> bool:
    """Whether a call that came back empty says of itself that it changed something."""
    if any(word in result_words.CHANGES for word in words_of_name(tool[:120])):
        return True
    command = command_of(arguments)
    if not isinstance(command, str):
        return False
    command = command[:300]
    return first_command(command).lower() in result_words.COMMANDS or writes_a_file(command)


def words_of_name(name: str) -> list[str]:
    """The words of snake_case, kebab-case, camelCase and CAPITALS, which take the next capital."""
    words = [""]
    for char in name:
        newest = words[-1]
        if not (char.isascii() and char.isalpha()):
            words.append("")
        elif (newest[-1:].islower() and char.isupper()) or (
            len(newest) > 1 and newest.isupper() and char.islower()
        ):
            words.append(char)
        else:
            words[-1] += char
    return [word.lower() for word in words if word]


def command_of(arguments: Any) -> Any:
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return arguments
    if not isinstance(arguments, dict):
        return arguments
    return next((arguments[key] for key in result_words.COMMAND_KEYS if key in arguments), None)


def first_command(text: str) -> str:
    """The word a command begins with, behind one change of directory and behind sudo."""
    text = text.lstrip()
    if text.startswith("cd "):
        place = min((text.find(mark) for mark in "&|;" if mark in text), default=len(text))
        for mark in ("&&", ";"):
            if text.startswith(mark, place):
                return word_behind_sudo(text[place + len(mark) :].lstrip()) or "cd"
    return word_behind_sudo(text)


def word_behind_sudo(text: str) -> str:
    return first_word(text.removeprefix("sudo ")) or first_word(text)


def first_word(text: str) -> str:
    for place, char in enumerate(text):
        if not (char.isalnum() or char in "_-"):
            return text[:place]
    return text


def writes_a_file(text: str) -> bool:
    """Whether a > stands before the name of a file that ends a command, and is no arrow."""
    return any(
        char == ">" and text[place - 1 : place] not in {*"0123456789&>=<-"}
        and ends_in_a_file(text[place + 1 :].removeprefix(">"))
        for place, char in enumerate(text)
    )


def ends_in_a_file(text: str) -> bool:
    target = ""
    text = text.lstrip(" \t")
    if text[:1] in {"'", '"'}:
        name, closed, rest = text[1:].partition(text[0])
        rest = rest.lstrip(" \t")
        return bool(name and closed) and (
            rest == "" or rest[0] in ";&|\n" or (rest[0] in "0123456789" and rest[1:2] == ">")
        )
    for char in text:
        if char.isspace() or char in ";&|()'\"<>":
            break
        target += char
    rest = text[len(target) :].lstrip(" \t")
    named = any((char.isascii() and char.isalpha()) or char in "/~$" for char in target)
    # The number of a further redirection may stand close behind.
    shorter = target[-1:] in {*"0123456789"} and rest[:1] == ">" and target[:-1]
    ended = rest == "" or rest[0] in ";&|\n" or (rest[0] in "0123456789" and rest[1:2] == ">")
    return named and not target.startswith("/dev/null") and bool(ended or shorter)

