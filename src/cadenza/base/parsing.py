"""Parsing of YAML and JSON of unknown origin to plain data, within limits of size, depth and time.

Every problem is a `ParseError`. YAML is built in one pass from the events of libyaml (`yaml_builder.py`), which is
stopped at a depth of `DEPTH`, so that neither its stack nor Python's can overflow.
"""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

DEPTH = 100  # levels of lists and mappings
VALUES = 20_000  # values of a YAML file; an alias counts as all the values that it stands for
DIGITS = 300  # digits of a number: a longer one does not fit into a float
DIRECTIVES = 16  # libyaml compares each %TAG with all before it
YAML_LIMIT = 4 << 20  # bytes of a file that a person writes
PYTHON_LIMIT = 1 << 18  # the same where PyYAML was built without libyaml: Python reads 400 KB in a second
EXPLAINED = 1 << 16  # characters of a faulty YAML up to which Python's parser is asked for its better message
JSON_LIMIT = 64 << 20
JSON_BRACKETS = 500_000  # [ and { in a JSON text: Python makes a million lists in a second or two

SHORT = 1 << 15  # bytes of a YAML file whose parsed blocks are kept
BLOCK = re.compile(rb"^\w+:.*\n(?:[ \-].*\n)*", re.MULTILINE)  # a key with its value, up to the next key
ALIAS = re.compile(rb"[&*%]")  # what one block may say about another

_TWO_DIGITS = re.compile("[0-9]{2}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class ParseError(ValueError):
    """Content that is not plain data within the limits: `reason` is one line of text, `line` the place or None."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason if line is None else f"line {line}: {reason}")
        self.reason = reason
        self.line = line


def read_user_file(path: Path, limit: int = YAML_LIMIT) -> bytes:
    """Return the bytes of a regular file that the user named; links are followed.

    A pipe, a device, a socket, a folder and a file above `limit` bytes are refused without being read (ParseError).
    OSError passes through.
    """
    _check_regular(os.stat(path).st_mode)  # opening some devices does something
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        _check_regular(status.st_mode)
        if status.st_size > limit:
            raise ParseError(_too_large(limit))
        content = file.read(status.st_size + 1)
        if len(content) > status.st_size:  # it has grown, or is one of /proc, which have no size
            content += file.read(limit + 1 - len(content))
    if len(content) > limit:
        raise ParseError(_too_large(limit))
    return content


def yaml_settings(content: bytes) -> Any:
    """Return what `yaml_data` does, without unique keys and with dates as texts; do not change it.

    The blocks of a mapping are parsed one by one and kept in memory: the configs of a folder's runs differ in few.
    """
    if blocks := yaml_blocks(content):
        with suppress(ValueError, TypeError):  # a value over several blocks, or no mapping
            return {key: value for block in blocks for key, value in _yaml_block(block).items()}
    return yaml_data(content, unique=False, texts=True)


def yaml_blocks(content: bytes) -> list[bytes]:
    """Return the lines of each key of a short mapping with its value; nothing for content that may be anything else."""
    blocks = BLOCK.findall(content) if len(content) <= SHORT and not ALIAS.search(content) else []
    return blocks if b"".join(blocks) == content else []


@lru_cache(256)
def _yaml_block(block: bytes) -> dict[Any, Any]:
    return dict(yaml_data(block, unique=False, texts=True))


def json_data(content: bytes | str, *, unique: bool = False, limit: int = JSON_LIMIT) -> Any:
    """Return the value of a JSON text; with `unique`, a key that is given twice is refused."""
    text = _decoded(content, limit)
    if text.count("[") + text.count("{") > JSON_BRACKETS:
        raise ParseError(f"more than {JSON_BRACKETS:,} lists and mappings")
    data = _json(text, _unique_keys if unique else None)
    if "\\u" in text and _SURROGATE.search(json.dumps(data, ensure_ascii=False)):
        raise ParseError("it holds half a character (a lone surrogate)")
    return data


def json_object(content: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a text; any other value is refused."""
    data = json_data(content)
    if not isinstance(data, dict):
        raise ParseError("no JSON object")
    return data


def json_tree(content: bytes) -> Any:
    """Return the value of a JSON text of any size, such as a checkpoint's state; only its depth is bounded."""
    return _json(_decoded(content, len(content)), None)


def _json(text: str, hook: Any) -> Any:
    # a number of so many digits is met twice by steps of half its length
    whole = _whole if _TWO_DIGITS.search(text[:: DIGITS // 2]) else None
    try:
        data = json.loads(text, object_pairs_hook=hook, parse_int=whole)
    except json.JSONDecodeError as problem:
        raise ParseError(f"not valid JSON ({problem.msg})", problem.lineno) from None
    except RecursionError:
        raise ParseError(too_deep(DEPTH)) from None
    if text.count("[") + text.count("{") > DEPTH:
        _check_depth(data, DEPTH)
    return data


def yaml_data(content: bytes | str, *, unique: bool = True, texts: bool = False) -> Any:
    """Return the value of a YAML document, as PyYAML's SafeLoader does.

    With `unique`, a key that is given twice is refused, otherwise the last one counts. With `texts`, dates and binary
    data stay texts. Aliases share their value; those that would expand to more than `VALUES` values, or stand inside
    their own anchor, are refused.
    """
    import yaml

    from cadenza.base.yaml_builder import YamlBuilder

    text = _decoded(content, YAML_LIMIT if hasattr(yaml, "CSafeLoader") else PYTHON_LIMIT)
    if text.count("%TAG") > DIRECTIVES:
        raise ParseError(f"more than {DIRECTIVES} %TAG directives")
    try:
        return YamlBuilder(text, unique, texts).document()
    except ParseError:
        raise
    except yaml.YAMLError as error:
        problem = _in_plainer_words(text) or error
        mark = getattr(problem, "problem_mark", None)
        reason = getattr(problem, "problem", None) or getattr(problem, "reason", None) or "not valid YAML"
        raise ParseError(_one_line(str(reason)), None if mark is None else mark.line + 1) from None
    except ValueError as error:  # text that UTF-8 cannot hold
        raise ParseError(_one_line(f"not valid YAML ({error})")) from None


def _in_plainer_words(text: str) -> Any:
    """Return the error of PyYAML's own parser, which describes the place better than libyaml; None for a long text."""
    import yaml

    level = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader) if len(text) <= EXPLAINED else ():
            level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if level > DEPTH:
                break
    except yaml.YAMLError as problem:
        return problem
    except (ValueError, OverflowError):  # "\\UFFFFFFFF": no character
        return None
    return None


def _decoded(content: bytes | str, limit: int) -> str:
    """Return UTF-8 bytes as text, or a text itself; refuse what is above the limit."""
    if len(content) > limit:
        raise ParseError(_too_large(limit))
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ParseError(f"no UTF-8 text ({problem.reason} at byte {problem.start})") from None


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ParseError(f"a number of more than {DIGITS} digits")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise ParseError(f"key '{excerpt(key)}' is given twice")
        data[key] = value
    return data


def _check_depth(data: Any, depth: int) -> None:
    level = [data]
    for _ in range(depth):
        level = [part for item in level for part in _parts(item) if isinstance(part, list | dict)]
        if not level:
            return
    raise ParseError(too_deep(depth))


def _parts(item: Any) -> Any:
    return item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for holds, name in _KINDS if holds(mode)), "something else")
        raise ParseError(f"it is {kind}, not a file")


def _too_large(limit: int) -> str:
    return f"larger than {limit >> 20} MiB" if limit >= 1 << 20 else f"larger than {limit >> 10} KiB"


def too_deep(depth: int) -> str:
    return f"nested more than {depth} deep"


def excerpt(text: str) -> str:
    """Return a text of unknown origin for a message: printable, and at most 60 characters long."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= 60 else f"{text[:57]}..."


def _one_line(text: str) -> str:
    return (text.splitlines() or [""])[0]
