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
    """A kind of package, and how cadenza finds it."""

    group: str  # entry point group
    description: str
    registered: str  # the name that specs use
    arguments: str  # of `cadenza train`, to try it


KINDS = {
    "algorithm": Kind("algorithms", "An algorithm of your own.", "$package", "CartPole-v1:$package"),
    "env": Kind("environments", "An environment of your own.", "$package/$Class-v0", "$package/$Class-v0:ppo"),
    "wrapper": Kind("wrappers", "A wrapper of your own.", "$Class", "CartPole-v1:ppo 'environment.wrappers=[$Class]'"),
    "network": Kind(
        "networks", "An encoder of your own.", "$package", "CartPole-v1:ppo algorithm.torso.encoder=$package"
    ),
    "buffer": Kind("buffers", "A replay of your own.", "$package", "CartPole-v1:dqn training.buffers.replay=$package"),
    "sink": Kind("sinks", "A metric sink of your own.", "$package", "CartPole-v1:ppo 'logging.sinks=[$package]'"),
}
PACKAGE = "package"  # all of these in one package


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join((*KINDS, PACKAGE))}.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The package's name in lower case, as my-walker.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write to this new folder. Default: ./NAME.")] = None,
    json: Json = False,
) -> None:
    """Write a package with a part of your own, or with one of each kind.

    The package works as it is, and has a test that passes.

    Example: cadenza new algorithm my-gradient
    """
    kinds = list(KINDS) if kind == PACKAGE else [kind]
    if not {*kinds} <= {*KINDS}:
        from cadenza.errors import nearest

        choices = (*KINDS, PACKAGE)
        raise typer.BadParameter(f"KIND {kind}: unknown{nearest(kind, choices)} (there are: {', '.join(choices)})")
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or keyword.iskeyword(package) or name.endswith(("-", "_")):
        raise typer.BadParameter(f"NAME {name}: must be lower case letters, digits and dashes, as in my-walker")
    for one in kinds:
        check_free(one, name, package)
    if find_spec(package) is not None:
        raise typer.BadParameter(f"NAME {name}: a module '{package}' exists already; choose another name")
    folder = out or Path(name)
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists: give a new folder with --out")
    paths = write(kinds, name, package, folder)
    if json:
        print_json({"folder": str(folder.absolute()), "files": paths})
        return
    for path in paths:
        say(folder / path)
    say(f"try it: cd {folder} && pip install pytest -e . && python -m pytest", err=True)


def check_free(kind: str, name: str, package: str) -> None:
    """Refuse a name that cadenza or an installed package uses already: specs would find that one."""
    from cadenza.config import registry

    group, registered = KINDS[kind].group, camel(package) if kind == "wrapper" else package
    names = {*entry_points(group=f"cadenza.{group}").names}
    if kind == "algorithm":
        settings = files("cadenza.conf").joinpath("algorithm").iterdir()
        names |= {*registry.ALGORITHMS, *(path.name.removesuffix(".yaml") for path in settings)}
    elif kind == "env":
        names |= {*registry.FAMILIES}
    elif kind == "wrapper":
        import gymnasium.wrappers

        names |= {*registry.wrappers(), *gymnasium.wrappers.__all__}
    if registered in names:
        raise typer.BadParameter(f"NAME {name}: '{registered}' is one of the {group} already; choose another name")


def write(kinds: list[str], name: str, package: str, folder: Path) -> list[str]:
    """Write the package's files from their skeletons; return their paths."""
    words = {"name": name, "package": package, "Class": camel(package)}
    single = KINDS[kinds[0]].description if len(kinds) == 1 else "Parts of your own."
    points, commands, texts = [], [], {f"src/{package}/__init__.py": f'"""{single}"""\n'}
    for kind in kinds:
        entry = KINDS[kind]
        slots = {**words, "module": kind, "description": entry.description}
        slots["registered"] = Template(entry.registered).substitute(slots)
        line = f'"{slots["registered"]}" = "{package}.{kind}:{slots["Class"]}"'
        points.append(f'[project.entry-points."cadenza.{entry.group}"]\n{line}')
        commands.append(f"cadenza train {Template(entry.arguments).substitute(slots)}")
        texts[f"src/{package}/{kind}.py"] = skeleton(f"{kind}.py.txt", slots)
        texts[f"tests/test_{kind}.py"] = skeleton(f"test_{kind}.py.txt", slots)
    words |= {"description": single, "points": "\n\n".join(points), "commands": "\n".join(commands)}
    texts["pyproject.toml"] = skeleton("pyproject.toml.txt", words)
    texts[".gitignore"] = skeleton("gitignore.txt", words)
    texts["README.md"] = skeleton("readme.md.txt", words)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return sorted(texts)


def skeleton(name: str, words: dict[str, str]) -> str:
    """Return the text of a skeleton with these words in it."""
    return Template(files("cadenza.skeletons").joinpath(name).read_text(encoding="utf-8")).substitute(words)


def camel(package: str) -> str:
    """Return `my_walker` as `MyWalker`."""
    return "".join(part.capitalize() for part in package.split("_"))
