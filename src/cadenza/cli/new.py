"""`cadenza new`."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from cadenza.cli.output import Json, print_json, say


@dataclass(frozen=True)
class Kind:
    """What can be made, and how cadenza is told of it."""

    group: str  # of entry points
    description: str
    known: str  # the name it is known by
    command: str


KINDS = {
    "algorithm": Kind("algorithms", "An algorithm of one's own.", "$package", "cadenza train CartPole-v1:$package"),
    "env": Kind(
        "environments",
        "An environment of one's own.",
        "$package/$Class-v0",
        "cadenza train $package/$Class-v0:ppo environment.max_episode_steps=30",
    ),
    "wrapper": Kind(
        "wrappers", "A wrapper of one's own.", "$Class", "cadenza train CartPole-v1:ppo 'environment.wrappers=[$Class]'"
    ),
}


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"what: {', '.join(KINDS)}")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the package: lower case, as in my-walker")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="a new folder  [default: NAME, here]")] = None,
    json: Json = False,
) -> None:
    """A package of your own with a working algorithm, environment or wrapper, and a test that passes at once.

    Example: cadenza new algorithm my-gradient
    """
    if kind not in KINDS:
        from cadenza.errors import nearest

        raise typer.BadParameter(f"KIND {kind}: unknown{nearest(kind, KINDS)} (there are: {', '.join(KINDS)})")
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or keyword.iskeyword(package) or name.endswith(("-", "_")):
        raise typer.BadParameter(f"NAME {name}: must be lower case letters, digits and dashes, as in my-walker")
    check_free(kind, name, package)
    if find_spec(package) is not None:
        raise typer.BadParameter(f"NAME {name}: there is a module '{package}' already; take another name")
    folder = out or Path(name)
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists: give a new folder with --out")
    written = write(kind, name, package, folder)
    if json:
        print_json({"folder": str(folder.absolute()), "files": written})
        return
    for path in written:
        say(folder / path)
    say(f"try it: cd {folder} && python -m pytest", err=True)


def check_free(kind: str, name: str, package: str) -> None:
    """Refuse a name that cadenza or an installed package has taken: the one that is known would be used."""
    from cadenza.config import registry

    group, taken = KINDS[kind].group, camel(package) if kind == "wrapper" else package
    known = {*entry_points(group=f"cadenza.{group}").names}
    if kind == "algorithm":
        settings = files("cadenza.conf").joinpath("algorithm").iterdir()
        known |= {*registry.ALGORITHMS, *(path.name.removesuffix(".yaml") for path in settings)}
    elif kind == "env":
        known |= {*registry.FAMILIES}
    else:
        import gymnasium.wrappers

        known |= {*registry.wrappers(), *gymnasium.wrappers.__all__}
    if taken in known:
        raise typer.BadParameter(f"NAME {name}: '{taken}' is among the {group} already; take another name")


def write(kind: str, name: str, package: str, folder: Path) -> list[str]:
    """The package's files, from their skeletons."""
    chosen, module = KINDS[kind], kind
    words = {"name": name, "package": package, "module": module, "Class": camel(package), "group": chosen.group}
    for key in ("description", "known", "command"):
        words[key] = Template(getattr(chosen, key)).substitute(words)
    skeletons = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "readme.md.txt",
        f"src/{package}/{module}.py": f"{kind}.py.txt",
        f"tests/test_{module}.py": f"test_{kind}.py.txt",
    }
    texts = {f"src/{package}/__init__.py": f'"""{chosen.description}"""\n'}
    for path, skeleton in skeletons.items():
        text = files("cadenza.skeletons").joinpath(skeleton).read_text(encoding="utf-8")
        texts[path] = Template(text).substitute(words)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return sorted(texts)


def camel(package: str) -> str:
    return "".join(part.capitalize() for part in package.split("_"))
