"""Names in the package are nouns, verbs or questions, and a module's or a class's name has one meaning.

Participles and prepositions say nothing about the value that they name.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import cadenza

ROOT = Path(cadenza.__file__).parent
EMPTY_WORDS = frozenset(
    (
        "asked",
        "chosen",
        "done",
        "found",
        "given",
        "held",
        "kept",
        "known",
        "of",
        "own",
        "said",
        "seen",
        "shown",
        "taken",
        "told",
        "wanted",
    )
)
ALLOWED = {  # number of such names that a file may still have; may only shrink
    "records/live_runs.py": 1,
}


def names(node: ast.AST) -> list[str]:
    """Return the names that `node` gives to values, arguments, attributes, functions and classes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case _:
            return []


def test_no_value_argument_function_or_class_is_named_by_a_participle_or_preposition() -> None:
    counts: dict[str, int] = {}
    for path in sorted(ROOT.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        banned = sum(name.strip("_").lower() in EMPTY_WORDS for node in nodes for name in names(node))
        if banned:
            counts[path.relative_to(ROOT).as_posix()] = banned
    more = {file: count for file, count in counts.items() if count > ALLOWED.get(file, 0)}
    assert not more, f"empty words as names, by file: {more}"
    fewer = {file: counts.get(file, 0) for file, count in ALLOWED.items() if count > counts.get(file, 0)}
    assert not fewer, f"lower ALLOWED to {fewer}"


def test_no_class_shares_its_name_with_another() -> None:
    classes = [
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    shared = [name for name, count in Counter(classes).items() if count > 1]
    assert not shared, f"classes of one name: {shared}"


def test_no_module_shares_its_stem_with_another_than_its_command() -> None:
    modules = [path.relative_to(ROOT) for path in ROOT.rglob("*.py") if not path.stem.startswith("__")]
    stems = Counter(module.stem for module in modules if module.parts[0] != "cli")
    shared = [stem for stem, count in stems.items() if count > 1]
    assert not shared, f"modules of one stem: {shared}"
