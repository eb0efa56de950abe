"""The ids of the requirements: what shows each and which test holds it. As a program, print docs/requirements.md.

PYTHONPATH=tests python -m harness.requirements_page > docs/requirements.md
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).parents[1]
SOURCE = TESTS / "requirements.yaml"
STATUSES = ("shown", "partial", "missing")
SECTIONS = {
    "G": ("Single agents, config first", 66),
    "H": ("Teams of unlike agents", 53),
    "L": ("World models by phases", 48),
    "M": ("The daily work of research", 63),
}
IDS = [f"{letter}{number}" for letter, (_, count) in SECTIONS.items() for number in range(1, count + 1)]
HEAD = """\
# Requirements

Every id of the requirements on cadenza in one line: the feature, the command, Python call or page that shows it, and
the test that holds it (a path below `tests/`, or of the repository). The line also names what is missing of a feature.
Modules `my_…` are those of [extending.md](extending.md); `my_run.yaml` and the like stand for files of yours.

This page is generated from `tests/requirements.yaml`: `PYTHONPATH=tests python -m harness.requirements_page`. A test
checks that the tests, pages, calls and commands exist, with their options and settings.
"""


@dataclass(frozen=True)
class Requirement:
    """One id: nothing shows a missing feature, and a partial one is shown except for what `missing` names."""

    what: str
    shown_by: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    missing: str = ""

    @property
    def status(self) -> str:
        """`shown`, `partial` or `missing`."""
        return "missing" if not self.shown_by else "partial" if self.missing else "shown"


def read() -> dict[str, Requirement]:
    """Return the requirements by id, in the order of the file."""
    entries: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return {
        id: Requirement(entry["what"], texts(entry.get("shown_by")), texts(entry.get("test")), entry.get("missing", ""))
        for id, entry in entries.items()
    }


def texts(value: str | list[str] | None) -> tuple[str, ...]:
    """Return one text, several or none as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value or ())


def page() -> str:
    """Return docs/requirements.md."""
    requirements = read()
    lines = [HEAD]
    for letter, (title, _) in SECTIONS.items():
        lines += [f"## {letter}: {title}\n", "| id | feature | shown by | test |", "|---|---|---|---|"]
        lines += [*(row(id, entry) for id, entry in requirements.items() if id[0] == letter), ""]
    ids = {status: [id for id, entry in requirements.items() if entry.status == status] for status in STATUSES}
    lines += ["## Count\n", f"{', '.join(f'{len(ids[status])} {status}' for status in STATUSES)}.\n"]
    lines += [f"{status}: {', '.join(ids[status])}." for status in STATUSES[1:] if ids[status]]
    return "\n".join(lines) + "\n"


def row(id: str, entry: Requirement) -> str:
    """Return the line of an id in its table."""
    feature = f"{entry.what}. **{entry.status}**: {entry.missing}" if entry.missing else entry.what
    shown_by, test = (", ".join(map(cell, part)) for part in (entry.shown_by, entry.test))
    return f"| {id} | {feature} | {shown_by} | {test} |"


def cell(text: str) -> str:
    """Return a command, a call or a test as code, a page as a link."""
    if text.endswith(".md"):
        return f"[{Path(text).name}]({text.removeprefix('docs/') if text.startswith('docs/') else f'../{text}'})"
    return f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(page())
