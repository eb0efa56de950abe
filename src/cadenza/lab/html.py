"""Pages made of blocks (headings, tables, images …), as Markdown or as one self-contained HTML file."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cadenza.base.files import SafePath
from cadenza.base.text import fenced, paragraph
from cadenza.base.text import html as escape
from cadenza.base.text import markdown as plain

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1f2937; max-width: 54rem; margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .3rem 1.2rem .3rem 0; vertical-align: top; }
tr { border-bottom: 1px solid #e5e7eb; } th { color: #6b7280; font-weight: 500; }
td:last-child { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
pre { background: #f3f4f6; padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto; }
img, video { max-width: 100%; }
"""

# the pages of reports are light or dark, as the reader's system prefers
SHADES = """
:root { color-scheme: light dark; --ink: #1f2937; --faint: #e5e7eb; --quiet: #6b7280; --box: #f3f4f6; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --faint: #374151; --quiet: #9ca3af; --box: #1f2937; --page: #111827; }
  :root { --blue: #60a5fa; --green: #34d399; }
}
body { color: var(--ink); background: var(--page); }
tr { border-color: var(--faint); } th { color: var(--quiet); } pre { background: var(--box); }
figure { margin: 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
@media (max-width: 40rem) {
  td { overflow-wrap: anywhere; } td:first-child { min-width: 5.5em; } td, th { padding-right: .7rem; }
  figure svg { width: 36rem; max-width: none; }
}
summary { cursor: pointer; margin: .6rem 0; } summary:focus-visible { outline: 2px solid #2563eb; }
"""


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the page's title."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of plain text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Code:
    """A block of code."""

    text: str


@dataclass(frozen=True)
class Media:
    """An image, or a video that is linked (Markdown) or played (HTML)."""

    path: SafePath
    alt: str
    drawing: str | None = None  # the image as SVG, which an HTML page shows in its own colours

    @property
    def is_video(self) -> bool:
        return self.path.suffix in (".mp4", ".webm")


@dataclass(frozen=True)
class Details:
    """A long text that is folded behind its title."""

    title: str
    text: str


Block = Heading | Paragraph | Table | Code | Media | Details


def markdown(blocks: Sequence[Block], folder: Path) -> str:
    """Return the blocks as Markdown; paths of images are relative to `folder`, where the page will be stored."""
    return "\n\n".join(_markdown(block, folder) for block in blocks) + "\n"


def _markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {plain(text)}"
        case Paragraph(text):
            return paragraph(text)
        case Code(text):
            return fenced(text)
        case Table(head, rows):
            lines = [_cells(head), ["---"] * len(head), *map(_cells, rows)]
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)
        case Details(title, text):
            return f"<details><summary>{escape(title)}</summary>\n\n{fenced(text)}\n\n</details>"
        case Media(path, alt):
            place = quote(os.fsencode(path.path.relative_to(folder).as_posix()))
            label = plain(alt).replace("[", "\\[").replace("]", "\\]")
            return f"[{label}]({place})" if block.is_video else f"![{label}]({place})"


def _cells(row: Sequence[str]) -> list[str]:
    return [plain(" ".join(cell.split())) for cell in row]


def html(blocks: Sequence[Block], title: str) -> str:
    """Return the blocks as one HTML page that loads nothing from elsewhere."""
    body = fragment(blocks)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    head += f"<style>{STYLE}{SHADES}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def fragment(blocks: Sequence[Block]) -> str:
    """Return the blocks as a part of a page."""
    return "\n".join(_html(block) for block in blocks)


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Table(head, rows):
            top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
            lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
            table = f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
            return f'<div class="scroll">{table}</div>'
        case Details(title, text):
            return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
        case Media(_, alt, drawing) if drawing is not None:
            return f'<figure role="img" aria-label="{escape(alt)}">{drawing}</figure>'
        case Media(path, alt):
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
            if block.is_video:
                return f'<video controls loop muted src="{source}" title="{escape(alt)}"></video>'
            return f'<img src="{source}" alt="{escape(alt)}">'
