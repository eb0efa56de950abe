"""Text of unknown origin made safe to show: on a terminal, in Markdown, in HTML, in a shell command, in a table.

Names, messages and values of a run may come from somebody else's files. Whatever shows them escapes them by one of
these functions where they enter a terminal, a log or a page.
"""

from __future__ import annotations

import html as markup
import re
import shlex

PUNCTUATION = r"!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-"
# Markup inside a line of Markdown. A bracket counts only where a link or a definition would begin.
INLINE = re.compile(rf"\\(?=[{PUNCTUATION}]|\Z)|[`*|~$]|(?<!\w)_|_(?!\w)|\](?=\s*[(\[:])")
ENTITY = re.compile(r"&(?=#?\w+;)")
# The beginnings of other kinds of blocks at the start of a line.
BLOCK = re.compile(r"[#>=]|[+-](?=\s|[-\s]*\Z)|\d+(?=[.)](?:\s|\Z))")
FORMULA = ("=", "+", "-", "@")


def printable(text: str, keep: str = "") -> str:
    r"""Return the text with every character that a terminal obeys or hides as an escape such as `\x1b` or `\u202e`.

    These are the characters for which `str.isprintable` is false: controls (C0, DEL, C1), bidi overrides, zero-width
    characters, line separators, surrogates. `keep` holds those that stay, for example line breaks and tabs.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else escape(c) for c in text)


def lines(text: str) -> str:
    """Return a text of several lines made printable; line breaks and tabs stay."""
    return printable(text, "\n\t")


def one_line(text: str) -> str:
    """Return the text on one line: line breaks become spaces, the rest is printable."""
    return printable(" ".join(text.split("\n")))


def escape(character: str) -> str:
    r"""Return a character as Python writes it: `\n`, `\x1b`, `\u202e`."""
    return character.encode("unicode_escape").decode()


def markdown(text: str) -> str:
    """Return Markdown, for inside one line, that shows the text as it is: no HTML, links, pictures or table cells."""
    text = ENTITY.sub("&amp;", printable(text))
    text = INLINE.sub(lambda match: f"\\{match[0]}", text)
    return text.replace("<", "&lt;")


def paragraph(text: str) -> str:
    """Return a Markdown paragraph that shows the text as it is, on one line."""
    text = markdown(" ".join(text.split()))
    begin = BLOCK.match(text)
    if begin is not None:
        text = f"{begin[0]}\\{text[begin.end() :]}" if begin[0].isdigit() else f"\\{text}"
    return text


def fenced(text: str) -> str:
    """Return a Markdown code block; its fence is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{lines(text)}\n{fence}"


def html(text: str) -> str:
    """Return HTML that shows the text as it is, in an element or in a quoted attribute."""
    return markup.escape(lines(text))


def shell(text: str) -> str:
    r"""Return the text quoted as one word for bash, zsh and ksh, printable: `$'a\x1bb'` where it has to be."""
    if printable(text) == text:
        return shlex.quote(text)
    return f"$'{''.join(_shell_character(c) for c in text)}'"


def _shell_character(c: str) -> str:
    if c in "'\\":
        return f"\\{c}"
    if c.isprintable():
        return c
    if "\udc80" <= c <= "\udcff":  # a byte of a file name that is no UTF-8
        return f"\\x{ord(c) - 0xDC00:02x}"
    return f"\\x{ord(c):02x}" if c.isascii() else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


def command(words: list[str]) -> str:
    """Return a command line of these words."""
    return " ".join(shell(word) for word in words)


def cell(value: object) -> object:
    """Return a value for a CSV cell: text without control characters, and nothing that a spreadsheet calculates."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA) else text
