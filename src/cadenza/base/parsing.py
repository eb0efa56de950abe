"""Plain data from bytes that a stranger may have written: YAML and JSON within bounds of size, depth and time.

Every problem is a `ParseError`. YAML is built in one pass from the events of libyaml, which stands at most `DEPTH`
levels deep when the parser is stopped, so that neither its stack nor Python's can overflow.
"""

from __future__ import annotations

import json
import os
import re
import stat
from functools import cache
from pathlib import Path
from typing import Any

DEPTH = 100  # levels of lists and mappings
VALUES = 20_000  # of a YAML file, every alias counted as all that it stands for
DIGITS = 300  # of a number: a longer one does not fit into a float
DIRECTIVES = 16  # libyaml compares each %TAG with all before it
YAML_LIMIT = 4 << 20  # bytes of a file that a person writes
PYTHON_LIMIT = 1 << 18  # the same where PyYAML was built without libyaml: Python reads 400 KB in a second
EXPLAINED = 1 << 16  # characters of a faulty YAML that are read by Python, for its better message
JSON_LIMIT = 64 << 20
JSON_BRACKETS = 500_000  # [ and { in a JSON text: Python makes a million lists in a second or two

_TAG = "tag:yaml.org,2002:"
_TEXTS = (f"{_TAG}timestamp", f"{_TAG}binary")  # text to a reader who only shows it
_PAIRS = (f"{_TAG}omap", f"{_TAG}pairs")
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
    """Content that is not plain data within the bounds: `reason` is one line, `line` its place where that is known."""

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
        content = file.read(limit + 1)  # it may grow, and files of /proc have no size
    if len(content) > limit:
        raise ParseError(_too_large(limit))
    return content


def json_data(content: bytes | str, *, unique: bool = False, limit: int = JSON_LIMIT) -> Any:
    """Return the value of a JSON text; with `unique`, a key that is given twice is refused."""
    text = _decoded(content, limit)
    if text.count("[") + text.count("{") > JSON_BRACKETS:
        raise ParseError(f"more than {JSON_BRACKETS:,} lists and mappings")
    data = _json(text, _unique_keys if unique else None)
    if "\\u" in text and _SURROGATE.search(json.dumps(data, ensure_ascii=False)):
        raise ParseError("it holds half a character (a lone surrogate)")
    return data


def json_object(content: bytes | str, *, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Return the JSON object in a text; any other value is refused."""
    data = json_data(content, limit=limit)
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
        raise ParseError(_too_deep(DEPTH)) from None
    if text.count("[") + text.count("{") > DEPTH:
        _check_depth(data, DEPTH)
    return data


def yaml_data(content: bytes | str, *, unique: bool = True, texts: bool = False, limit: int = YAML_LIMIT) -> Any:
    """Return the value of a YAML document: what PyYAML's SafeLoader makes of it.

    With `unique`, a key that is given twice is refused, else the last counts. With `texts`, dates and binary data are
    the texts they are written as. Aliases share their value; those that would expand to more than `VALUES` values, or
    stand inside their own anchor, are refused.
    """
    import yaml

    text = _decoded(content, min(limit, YAML_LIMIT if hasattr(yaml, "CSafeLoader") else PYTHON_LIMIT))
    if text.count("%TAG") > DIRECTIVES:
        raise ParseError(f"more than {DIRECTIVES} %TAG directives")
    try:
        return _builder()(text, unique, texts).document()
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
    """What PyYAML's own parser says of a text that libyaml refused: it names the place better. None if it is long."""
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


@cache
def _builder() -> Any:
    """The class that builds plain data from YAML events; made once, because importing yaml takes a while."""
    import yaml

    events: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    constructor = yaml.SafeLoader("")
    makers: Any = {
        f"{_TAG}{kind}": getattr(constructor, f"construct_yaml_{kind}")
        for kind in ("null", "bool", "int", "float", "binary", "timestamp", "str")
    }
    numbers = (f"{_TAG}int", f"{_TAG}float")
    resolvers: Any = yaml.SafeLoader.yaml_implicit_resolvers

    class Builder:
        def __init__(self, text: str, unique: bool, texts: bool) -> None:
            self.source = events(text)
            self.unique, self.texts = unique, texts
            self.anchors: dict[str, tuple[Any, int]] = {}
            self.open: set[str] = set()
            self.count = 0  # values, with what aliases expand to

        def document(self) -> Any:
            take = self.source.get_event
            take()  # the stream's start
            if isinstance(take(), yaml.StreamEndEvent):
                return None
            data = self.value(take(), 0)
            take()  # the document's end
            after = take()
            if not isinstance(after, yaml.StreamEndEvent):
                raise ParseError("more than one document, where a single one is expected", _line(after))
            return data

        def value(self, event: Any, depth: int) -> Any:
            self.count += 1
            if self.count > VALUES:
                raise ParseError(f"more than {VALUES:,} values", _line(event))
            kind, anchor, before = type(event), event.anchor, self.count
            if kind is yaml.AliasEvent:
                return self.alias(event)
            if anchor is not None:
                if anchor in self.anchors or anchor in self.open:
                    raise ParseError(f"anchor '{_shown(anchor)}' is given twice", _line(event))
                self.open.add(anchor)
            if kind is yaml.ScalarEvent:
                data = self.scalar(event)
            elif depth >= DEPTH:
                raise ParseError(_too_deep(DEPTH), _line(event))
            elif kind is yaml.SequenceStartEvent:
                data = self.sequence(event, depth)
            else:
                data = self.mapping(event, depth)
            if anchor is not None:
                self.open.discard(anchor)
                self.anchors[anchor] = data, self.count - before + 1
            return data

        def alias(self, event: Any) -> Any:
            name = event.anchor
            if name in self.open:
                raise ParseError(f"alias '{_shown(name)}' stands inside its own anchor", _line(event))
            if name not in self.anchors:
                raise ParseError(f"undefined alias '{_shown(name)}'", _line(event))
            data, size = self.anchors[name]
            self.count += size - 1
            if self.count > VALUES:
                raise ParseError(f"its aliases expand to more than {VALUES:,} values", _line(event))
            return data

        def sequence(self, event: Any, depth: int) -> Any:
            take, end, items = self.source.get_event, yaml.SequenceEndEvent, []
            while type(below := take()) is not end:
                items.append(self.value(below, depth + 1))
            if event.tag in (None, "!", f"{_TAG}seq"):
                return items
            if event.tag not in _PAIRS:
                raise _unknown_tag(event.tag, _line(event))
            if not all(isinstance(item, dict) and len(item) == 1 for item in items):
                raise ParseError(f"expected a list of single pairs for {_shown(event.tag)}", _line(event))
            return [next(iter(item.items())) for item in items]

        def mapping(self, event: Any, depth: int) -> Any:
            take, end = self.source.get_event, yaml.MappingEndEvent
            data: dict[Any, Any] = {}
            names: set[str] = set()
            merged: list[dict[Any, Any]] = []
            while type(name := take()) is not end:
                is_merge = type(name) is yaml.ScalarEvent and name.value == "<<" and name.tag is None and not name.style
                key = None if is_merge else self.value(name, depth + 1)
                if self.unique and type(name) is yaml.ScalarEvent:
                    if name.value in names:
                        raise ParseError(f"key '{_shown(name.value)}' is given twice", _line(name))
                    names.add(name.value)
                value = self.value(take(), depth + 1)
                if is_merge:
                    merged += _merged(value, name)
                else:
                    if type(key) is not str:
                        _check_key(key, name)
                    data[key] = value
            if merged:
                base: dict[Any, Any] = {}
                for part in reversed(merged):
                    base.update(part)
                data = {**base, **data}
            if event.tag in (None, "!", f"{_TAG}map"):
                return data
            if event.tag != f"{_TAG}set":
                raise _unknown_tag(event.tag, _line(event))
            return set(data)

        def scalar(self, event: Any) -> Any:
            text, tag = event.value, event.tag
            if tag is None or tag == "!":
                if not event.implicit[0]:
                    return text
                tag = next((tag for tag, pattern in resolvers.get(text[:1], ()) if pattern.match(text)), None)
                if tag is None:
                    return text
            if tag == f"{_TAG}str" or (self.texts and tag in _TEXTS) or tag in (f"{_TAG}merge", f"{_TAG}value"):
                return text
            if tag not in makers:
                raise _unknown_tag(tag, _line(event))
            if tag in numbers and len(text) > DIGITS:
                raise ParseError(f"a number of more than {DIGITS} digits", _line(event))
            try:
                return makers[tag](yaml.ScalarNode(tag, text))
            except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError, yaml.YAMLError):
                name = tag.removeprefix(_TAG)
                raise ParseError(f"'{_shown(text)}' is no {name}", _line(event)) from None

    return Builder


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _check_key(key: Any, event: Any) -> None:
    if isinstance(key, list | dict | set):
        raise ParseError("found unhashable key", _line(event))
    if isinstance(key, int) and abs(key) >= 2**63:  # many of these can share one hash
        raise ParseError("a key that is a number of more than 64 bits", _line(event))


def _merged(value: Any, event: Any) -> list[dict[Any, Any]]:
    """The mappings that `<<` merges, the one that wins first."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        raise ParseError("<< expects a mapping or a list of mappings", _line(event))
    return parts


def _unknown_tag(tag: str, line: int) -> ParseError:
    return ParseError(f"could not determine a constructor for the tag '{_shown(tag)}'", line)


def _decoded(content: bytes | str, limit: int) -> str:
    """The text of UTF-8 bytes, or the text itself, if it is not above the limit."""
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
            raise ParseError(f"key '{_shown(key)}' is given twice")
        data[key] = value
    return data


def _check_depth(data: Any, depth: int) -> None:
    level = [data]
    for _ in range(depth):
        level = [part for item in level for part in _parts(item) if isinstance(part, list | dict)]
        if not level:
            return
    raise ParseError(_too_deep(depth))


def _parts(item: Any) -> Any:
    return item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for holds, name in _KINDS if holds(mode)), "something else")
        raise ParseError(f"it is {kind}, not a file")


def _too_large(limit: int) -> str:
    return f"larger than {limit >> 20} MiB" if limit >= 1 << 20 else f"larger than {limit >> 10} KiB"


def _too_deep(depth: int) -> str:
    return f"nested more than {depth} deep"


def _shown(text: str) -> str:
    """A text of a stranger on one line, and no longer than a line."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= 60 else f"{text[:57]}..."


def _one_line(text: str) -> str:
    return (text.splitlines() or [""])[0]
