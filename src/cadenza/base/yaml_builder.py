"""Plain data from the events of a YAML document, within the limits of `parsing`. Imported late: yaml takes a while."""

from __future__ import annotations

from typing import Any

import yaml

from cadenza.base.parsing import DEPTH, DIGITS, VALUES, ParseError, excerpt, too_deep

TAG = "tag:yaml.org,2002:"
TEXTS = (f"{TAG}timestamp", f"{TAG}binary")  # text for a reader who only shows it
PAIRS = (f"{TAG}omap", f"{TAG}pairs")
NUMBERS = (f"{TAG}int", f"{TAG}float")
PLAIN = (f"{TAG}str", f"{TAG}merge", f"{TAG}value")
EVENTS: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RESOLVERS: Any = yaml.SafeLoader.yaml_implicit_resolvers
KINDS = ("null", "bool", "int", "float", "binary", "timestamp", "str")
_constructor = yaml.SafeLoader("")
CONSTRUCTORS: Any = {f"{TAG}{kind}": getattr(_constructor, f"construct_yaml_{kind}") for kind in KINDS}


class YamlBuilder:
    """Builds the value of one YAML document from its events, in one pass.

    With `unique`, equal keys of a mapping are refused. With `texts`, dates and binary data stay texts.
    """

    def __init__(self, text: str, unique: bool, texts: bool) -> None:
        self.source = EVENTS(text)
        self.unique, self.texts = unique, texts
        self.anchors: dict[str, tuple[Any, int]] = {}  # the value and its number of values, by name
        self.open: set[str] = set()  # anchors whose value is being built
        self.count = 0  # values, with what aliases expand to

    def document(self) -> Any:
        """Return the document's value, None for an empty text; refuse a second document."""
        take = self.source.get_event
        take()  # the stream's start
        if isinstance(take(), yaml.StreamEndEvent):
            return None
        data = self._value(take(), 0)
        take()  # the document's end
        after = take()
        if not isinstance(after, yaml.StreamEndEvent):
            raise ParseError("more than one document, where a single one is expected", _line(after))
        return data

    def _value(self, event: Any, depth: int) -> Any:
        self.count += 1
        if self.count > VALUES:
            raise ParseError(f"more than {VALUES:,} values", _line(event))
        kind, anchor, before = type(event), event.anchor, self.count
        if kind is yaml.AliasEvent:
            return self._alias(event)
        if anchor is not None:
            if anchor in self.anchors or anchor in self.open:
                raise ParseError(f"anchor '{excerpt(anchor)}' is given twice", _line(event))
            self.open.add(anchor)
        if kind is yaml.ScalarEvent:
            data = self._scalar(event)
        elif depth >= DEPTH:
            raise ParseError(too_deep(DEPTH), _line(event))
        elif kind is yaml.SequenceStartEvent:
            data = self._sequence(event, depth)
        else:
            data = self._mapping(event, depth)
        if anchor is not None:
            self.open.discard(anchor)
            self.anchors[anchor] = data, self.count - before + 1
        return data

    def _alias(self, event: Any) -> Any:
        name = event.anchor
        if name in self.open:
            raise ParseError(f"alias '{excerpt(name)}' stands inside its own anchor", _line(event))
        if name not in self.anchors:
            raise ParseError(f"undefined alias '{excerpt(name)}'", _line(event))
        data, size = self.anchors[name]
        self.count += size - 1
        if self.count > VALUES:
            raise ParseError(f"its aliases expand to more than {VALUES:,} values", _line(event))
        return data

    def _sequence(self, event: Any, depth: int) -> Any:
        take, end, items = self.source.get_event, yaml.SequenceEndEvent, []
        while type(below := take()) is not end:
            items.append(self._value(below, depth + 1))
        if event.tag in (None, "!", f"{TAG}seq"):
            return items
        if event.tag not in PAIRS:
            raise _unknown_tag(event)
        if not all(isinstance(item, dict) and len(item) == 1 for item in items):
            raise ParseError(f"expected a list of single pairs for {excerpt(event.tag)}", _line(event))
        return [next(iter(item.items())) for item in items]

    def _mapping(self, event: Any, depth: int) -> Any:
        take, end = self.source.get_event, yaml.MappingEndEvent
        data: dict[Any, Any] = {}
        names: set[str] = set()
        merged: list[dict[Any, Any]] = []
        while type(name := take()) is not end:
            is_merge = type(name) is yaml.ScalarEvent and name.value == "<<" and name.tag is None and not name.style
            key = None if is_merge else self._value(name, depth + 1)
            if self.unique and type(name) is yaml.ScalarEvent:
                if name.value in names:
                    raise ParseError(f"key '{excerpt(name.value)}' is given twice", _line(name))
                names.add(name.value)
            value = self._value(take(), depth + 1)
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
        if event.tag in (None, "!", f"{TAG}map"):
            return data
        if event.tag != f"{TAG}set":
            raise _unknown_tag(event)
        return set(data)

    def _scalar(self, event: Any) -> Any:
        text, tag = event.value, event.tag
        if tag is None or tag == "!":
            if not event.implicit[0]:
                return text
            tag = next((tag for tag, pattern in RESOLVERS.get(text[:1], ()) if pattern.match(text)), None)
            if tag is None:
                return text
        if tag in PLAIN or (self.texts and tag in TEXTS):
            return text
        if tag not in CONSTRUCTORS:
            raise _unknown_tag(event, tag)
        if tag in NUMBERS and len(text) > DIGITS:
            raise ParseError(f"a number of more than {DIGITS} digits", _line(event))
        try:
            return CONSTRUCTORS[tag](yaml.ScalarNode(tag, text))
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError, yaml.YAMLError):
            raise ParseError(f"'{excerpt(text)}' is no {tag.removeprefix(TAG)}", _line(event)) from None


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _check_key(key: Any, event: Any) -> None:
    if isinstance(key, list | dict | set):
        raise ParseError("a list, mapping or set cannot be a key (it is unhashable)", _line(event))
    if isinstance(key, int) and abs(key) >= 2**63:  # many of these can share one hash
        raise ParseError("a key that is a number of more than 64 bits", _line(event))


def _merged(value: Any, event: Any) -> list[dict[Any, Any]]:
    """Return the mappings that `<<` merges, the one that takes precedence first."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in parts):
        raise ParseError("<< expects a mapping or a list of mappings", _line(event))
    return parts


def _unknown_tag(event: Any, tag: str = "") -> ParseError:
    return ParseError(f"could not determine a constructor for the tag '{excerpt(tag or event.tag)}'", _line(event))
