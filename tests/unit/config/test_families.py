"""Every place that names a family of environments agrees with the list in `config/families.py`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from cadenza.config.families import FAMILIES

ROOT = Path(__file__).parents[3]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def makefile_list(name: str) -> set[str]:
    line = re.search(rf"^{name} := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line, f"the Makefile sets no {name}"
    return set(re.split(r"[,\s]+", line[1]))


def test_every_family_has_a_module_and_an_extra_that_pyproject_defines() -> None:
    for family in FAMILIES.values():
        path = ROOT / "src" / Path(*family.module.split("."))
        assert path.with_suffix(".py").is_file(), f"{family.name}: no module {family.module}"
        assert family.extra in {None, *EXTRAS}, f"{family.name}: pyproject.toml has no extra '{family.extra}'"
        assert family.extra or family.by_hand or not family.requires, f"{family.name}: says not how to install it"


def test_the_makefile_installs_every_extra() -> None:
    covered = makefile_list("EXTRAS") | makefile_list("ALONE") | {"dmc"}  # dmc has a line of its own
    difference = covered ^ EXTRAS.keys()
    assert not difference, f"Makefile: EXTRAS and ALONE differ from pyproject's extras in {sorted(difference)}"


def test_constraints_pin_every_package_of_the_families() -> None:
    pins = {normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    needed = [requirement for family in FAMILIES.values() for requirement in EXTRAS.get(family.extra or "", [])]
    names = {normal(re.split(r"[<>=~;\[ ]", requirement)[0]) for requirement in needed}
    assert not names - pins, f"constraints.txt pins no version of {sorted(names - pins)}"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_docs_table_has_a_row_for_every_family_with_its_extra() -> None:
    page = (ROOT / "docs" / "environments.md").read_text()
    table = page[page.index("| family |") :].partition("\n\n")[0].splitlines()[2:]
    rows = {name: row for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert not FAMILIES.keys() ^ rows.keys(), "docs/environments.md: the table of families differs from FAMILIES"
    for family in FAMILIES.values():
        if family.extra:
            assert family.extra in rows[family.name].split("|")[3], f"docs/environments.md: {family.name}'s extra"
