"""`${…}` in configs: arithmetic, and limits: a stranger's file may hold none, and the size of their values is bounded.

OmegaConf resolves them; it is imported only when needed. Keys set by environment variables are listed, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from operator import add, mul, sub
from typing import Any

from cadenza.base.text import printable
from cadenza.config.convert import EXPONENT
from cadenza.config.convert import LARGEST as LARGEST_NUMBER
from cadenza.errors import ConfigError

ENVIRONMENT = "oc.env"  # OmegaConf's resolver of environment variables
MOST = 1_000  # interpolations resolved, repetitions included
LARGEST = 1 << 20  # characters and values that they expand to
START = re.compile(r"\$\{")
FREE = ("vars", "_dims")  # blocks of a config for numbers and texts of the user's own, which other values refer to
EXACT = 2**53  # above it, a division is not exact


def _quotient(one: float, other: float) -> float:
    """Return a whole number where two whole numbers divide without a rest."""
    exact = isinstance(one, int) and isinstance(other, int) and max(abs(one), abs(other)) <= EXACT and one % other == 0
    return one // other if exact else one / other


ARITHMETIC: dict[str, tuple[Callable[..., float], int]] = {  # by resolver: the operation, and its least arguments
    "add": (lambda *numbers: reduce(add, numbers), 2),
    "sub": (lambda *numbers: reduce(sub, numbers), 2),
    "mul": (lambda *numbers: reduce(mul, numbers), 2),
    "div": (lambda *numbers: reduce(_quotient, numbers), 2),
    "int": (int, 1),
}
# The value of another key, which reads nothing else, or arithmetic, whose arguments are looked at on their own.
PURE = re.compile(rf"\$\{{\s*(\.*[\w-]+(\.[\w-]+|\[\w+\])*\s*\}}|({'|'.join(ARITHMETIC)}):)")


def calls(data: Any) -> Iterator[tuple[str, str]]:
    """Yield `(dotted key, text)` of every interpolation in plain data, keys included, that may call a resolver.

    A resolver may read variables, files or the clock, and its name may itself be interpolated. The value of another
    key calls none, and arithmetic reads nothing.
    """
    return (place for place in interpolations(data) if not PURE.match(place[1]))


def interpolations(data: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield `(dotted key, text from there on)` of every interpolation in plain data, keys included."""
    if isinstance(data, str):
        for start in START.finditer(data):
            yield where, data[start.start() :]
    elif isinstance(data, dict):
        for key, value in data.items():
            place = f"{where}.{key}" if where else str(key)
            yield from interpolations(key, place)
            yield from interpolations(value, place)
    elif isinstance(data, list | tuple | set | frozenset):
        for index, value in enumerate(data):
            yield from interpolations(value, f"{where}[{index}]")


def refuse_interpolations(data: Any, where: object) -> None:
    """Refuse interpolations in a stranger's data: a value from elsewhere escapes every check of what stands there."""
    for key, text in interpolations(data):
        excerpt = printable(text if len(text) <= 60 else f"{text[:57]}...")
        step = "add --trust if you trust its author"
        raise ConfigError(f"{where}: {printable(key)} would resolve '{excerpt}' here and was not made here: {step}")


@contextmanager
def bounded() -> Iterator[list[str]]:
    """Provide `ARITHMETIC`; refuse to resolve more than `MOST` interpolations, or to more than `LARGEST` values.

    Characters count as values. Yield the list that the names of environment variables are added to as they are read.
    OmegaConf's global resolvers must be a copy that the caller replaces afterwards.
    """
    from omegaconf.base import Container
    from omegaconf.basecontainer import BaseContainer

    names: list[str] = []
    left = {"count": MOST, "size": LARGEST}
    inner = Container._resolve_interpolation_from_parse_tree
    read = BaseContainer._resolvers[ENVIRONMENT]

    def resolve(self: Any, *args: Any, **settings: Any) -> Any:
        left["count"] -= 1
        node = inner(self, *args, **settings) if left["count"] >= 0 else None
        left["size"] -= _size(node, left["size"])
        if min(left.values()) < 0:
            raise ConfigError(f"interpolations expand to more than {MOST:,} others or {LARGEST >> 20} MiB")
        return node

    def environment(config: Any, parent: Any, node: Any, args: Any, args_str: Any) -> Any:
        names.append(str(args[0]) if args else "")
        return read(config, parent, node, args, args_str)

    container: Any = Container
    BaseContainer._resolvers[ENVIRONMENT] = environment
    for name in ARITHMETIC:
        BaseContainer._resolvers.setdefault(name, partial(_calculate, name))  # a program may have its own
    container._resolve_interpolation_from_parse_tree = resolve
    try:
        yield names
    finally:
        container._resolve_interpolation_from_parse_tree = inner
        BaseContainer._resolvers[ENVIRONMENT] = read


def _calculate(name: str, config: Any, parent: Any, node: Any, args: Any, args_str: Any) -> int | float:
    """Return the result of a resolver of `ARITHMETIC`, in the form in which OmegaConf calls resolvers."""
    operation, least = ARITHMETIC[name]
    if len(args) < least or (name == "int" and len(args) > 1):
        raise ConfigError(f"${{{name}:…}} takes {'one number' if name == 'int' else 'two numbers or more'}")
    numbers = [float(one) if isinstance(one, str) and EXPONENT.fullmatch(one) else one for one in args]
    for one in numbers:
        if isinstance(one, bool) or not isinstance(one, int | float) or not abs(one) < LARGEST_NUMBER:  # or NaN
            raise ConfigError(f"${{{name}:…}} takes numbers below 2**63, not {printable(repr(one)[:60])}")
    try:
        result = operation(*numbers)
    except ZeroDivisionError:
        raise ConfigError(f"${{{name}:…}}: division by zero") from None
    if not abs(result) < LARGEST_NUMBER:
        raise ConfigError(f"${{{name}:…}}: the result is too large")
    return result


def _size(node: Any, most: int) -> int:
    """Return the number of characters and values of an unresolved node, or a number above `most`."""
    total, pending = 0, [node]
    while pending and total <= most:
        item = pending.pop()
        content = getattr(item, "_content", None)  # a container's
        value = item._value() if content is None and hasattr(item, "_value") else None
        total += 1 + (len(value) if isinstance(value, str) else 0)
        pending += content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return total


def from_environment(config: Any, names: list[str]) -> list[str]:
    """Return the dotted keys of an OmegaConf config whose value comes from the environment, directly or by another key.

    `names` is the list that `bounded` yields.
    """
    from omegaconf import OmegaConf
    from omegaconf.basecontainer import BaseContainer

    keys: list[str] = []

    def visit(container: Any, where: str) -> None:
        mapping = OmegaConf.is_dict(container)
        for key in list(container) if mapping else range(len(container)):
            place = f"{where}.{key}" if where else str(key)
            if OmegaConf.is_interpolation(container, key):
                names.clear()
                value = container[key]
                if isinstance(value, BaseContainer):
                    OmegaConf.to_container(value, resolve=True)
                if names:
                    keys.append(place)
            elif isinstance(part := container._get_node(key), BaseContainer) and part._content not in (None, "???"):
                visit(part, place)

    visit(config, "")
    return keys
