"""Untrusted plain data: every input quickly gives data or one kind of error."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.base.parsing import (
    YAML_LIMIT,
    ParseError,
    json_data,
    json_object,
    read_user_file,
    yaml_data,
    yaml_settings,
)
from cadenza.config.load import dump, load
from cadenza.config.spec import read_file
from cadenza.errors import CheckpointError, ConfigError
from cadenza.lab.cleanup import runs_of_open_trials
from cadenza.lab.sweeps.journal import Journal
from cadenza.records import alert_log, codec
from cadenza.records.folder import RunFolder, read_object
from cadenza.records.live_runs import tail
from cadenza.records.metrics import read as read_metrics
from cadenza.records.run_summary import last_row
from harness.command import cadenza
from harness.files import safe

SECONDS = 20  # on a busy machine; without bounds these take minutes, all memory, or the process
MOST = YAML_LIMIT - 100
DEEP = '{"env_steps": ' * 20_000 + "1" + "}" * 20_000


def doubled(entry: str, levels: int = 30) -> str:
    """Return YAML with anchors of nine aliases each of the previous one."""
    lines = (entry.format(i=i, parts=", ".join([f"*a{i - 1}"] * 9)) for i in range(1, levels))
    return "a0: &a0 {x: 1}\n" + "".join(lines)


YAML_BOMBS = {
    "aliases": (doubled("a{i}: &a{i} [{parts}]\n"), "its aliases expand to more than 20,000 values"),
    "merge keys": (doubled("a{i}: &a{i} {{<<: [{parts}], b{i}: 1}}\n"), "aliases expand to more than"),
    "an alias in itself": ("a: &a [*a]", "inside its own anchor"),
    "flow sequences": ("[" * MOST, "nested more than 100 deep"),
    "flow mappings": ("{a: " * (MOST // 4), "nested more than 100 deep"),
    "block sequences": ("- " * (MOST // 2), "nested more than 100 deep"),
    "keys": ("? " * (MOST // 2), "nested more than 100 deep"),
    "values": ("[" + "[]," * (MOST // 3) + "]", "more than 20,000 values"),
    "a long integer": ("a: " + "1" * MOST, "more than 300 digits"),
    "a long base 60": ("a: 1" + ":1" * (MOST // 2), "more than 300 digits"),
    "keys of one hash": ("".join(f"{(2**61 - 1) * i}: 1\n" for i in range(1, 9999)), "64 bits"),
    "directives": ("%TAG !a! x\n" * (MOST // 11) + "--- a", "%TAG"),
    "an odd date": ("a: 2001-13-45", "is no timestamp"),
    "no number": ("!!int ''", "is no int"),
    "no bool": ("!!bool x", "is no bool"),
    "a Python object": ("!!python/object:os.system x", "could not determine a constructor for the tag"),
    "a list for a key": ("[a]: 1", "unhashable"),
    "two equal keys": ("a: 1\na: 2", "key 'a' is given twice"),
    "a lone surrogate": ('a: "\\ud800"', "character"),
    "NUL": ("a: \0", "control characters|special characters"),
    "two documents": ("a\n--- b", "more than one document"),
    "too large": ("#" * (YAML_LIMIT + 1), "larger than 4 MiB"),
}


@pytest.mark.parametrize("case", YAML_BOMBS)
def test_a_yaml_bomb_is_refused_at_once(case: str) -> None:
    text, reason = YAML_BOMBS[case]
    began = time.monotonic()
    with pytest.raises(ParseError, match=reason) as caught:
        yaml_data(text)
    assert time.monotonic() - began < SECONDS
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


JSON_BOMBS = {
    "depth": ("[" * 20_000 + "]" * 20_000, "nested more than 100 deep"),
    "depth of 101": ("[" * 101 + "]" * 101, "nested more than 100 deep"),
    "lists": ("[" + "[]," * 1_000_000 + "1]", "more than 500,000 lists"),
    "digits": ("1" * 5000, "more than 300 digits"),
    "a lone surrogate": ('{"a": "\\ud800"}', "lone surrogate"),
    "no UTF-8": (b"\xff\xfe", "no UTF-8 text"),
    "nothing": ("", "not valid JSON"),
}


@pytest.mark.parametrize("case", JSON_BOMBS)
def test_a_json_bomb_is_refused_at_once(case: str) -> None:
    text, reason = JSON_BOMBS[case]
    assert isinstance(text, str | bytes)
    with pytest.raises(ParseError, match=reason):
        json_data(text)


def test_documents_within_the_limits_are_read() -> None:
    assert json_data("[" * 100 + "]" * 100) == yaml_data("[" * 100 + "]" * 100)
    assert json_data(b'"\\ud83d\\ude00"') == "\U0001f600"
    assert yaml_data("a: &a [1, 2.5]\nb: *a\nc: {<<: {x: 1, y: 2}, x: 3}") == {
        "a": [1, 2.5],
        "b": [1, 2.5],
        "c": {"x": 3, "y": 2},
    }
    assert yaml_data("!!set {a, b}") == {"a", "b"}
    assert yaml_data("!!pairs [a: 1]") == yaml_data("!!omap [a: 1]") == [("a", 1)]
    assert yaml_data("a: 1\na: 2\nb: 2020-01-01", unique=False, texts=True) == {"a": 2, "b": "2020-01-01"}
    for spec in ("CartPole-v1:ppo", "Pendulum-v1:sac"):
        text = dump(load(spec))
        assert yaml_data(text) == yaml.safe_load(text)


scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=8)
trees = st.recursive(
    scalars, lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=5), part, max_size=4)
)
noise = st.text(alphabet="[]{}:,-?&*!|>'\"%@<#~ \n\t\\0123456789.eEabnyx_=\ud800\0é", max_size=12)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(trees)
def test_yaml_reads_as_pyyaml_does(tree: Any) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    assert yaml_data(text) == yaml.safe_load(text)
    assert json_data(json.dumps(tree)) == tree


@settings(max_examples=500, derandomize=True, deadline=None, database=None)
@given(st.binary(max_size=60), trees, noise, st.integers(0, 200))
def test_arbitrary_bytes_raise_only_parse_errors(junk: bytes, tree: Any, change: str, place: int) -> None:
    written = yaml.safe_dump(tree), json.dumps(tree)
    mutated = [text[: place % (len(text) + 1)] + change + text[place % (len(text) + 1) :] for text in written]
    contents: list[str | bytes] = [junk, change, *mutated]
    for content in contents:
        for read in (yaml_data, json_data, json_object):
            with suppress(ParseError):
                read(content)


def test_only_regular_files_up_to_a_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    places = {"pipe": "a pipe", "socket": "a socket", "large": "larger than 4 MiB", ".": "a folder"}
    for name, reason in places.items():
        with pytest.raises(ParseError, match=reason):
            read_user_file(tmp_path / name)
    with pytest.raises(ParseError, match="a device"):
        read_user_file(Path("/dev/zero"))
    (tmp_path / "text").write_text("a: 1")
    (tmp_path / "link").symlink_to("text")
    assert read_user_file(tmp_path / "link") == b"a: 1"
    with pytest.raises(FileNotFoundError):
        read_user_file(tmp_path / "none")


@pytest.mark.parametrize("command", [["train"], ["sweep"], ["config", "migrate"]])
def test_a_yaml_bomb_on_the_command_line_is_refused_in_one_line(command: list[str], tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text(YAML_BOMBS["aliases"][0])
    cadenza(*command, bomb).refused(2, "bomb.yaml, line 5: its aliases expand to more than")
    os.mkfifo(tmp_path / "pipe.yaml")
    cadenza(*command, tmp_path / "pipe.yaml").refused(2, "cannot read", "it is a pipe")


def test_a_yaml_bomb_in_the_folder_of_a_defaults_list_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "main.yaml").write_text("defaults: [other, _self_]\n")
    (tmp_path / "other.yaml").write_text(YAML_BOMBS["aliases"][0])
    with pytest.raises(ConfigError, match=r"other.yaml, line 5: its aliases expand"):
        load(str(tmp_path / "main.yaml"))


def test_a_number_beyond_floats_is_refused_in_one_line(tmp_path: Path) -> None:
    for name, text in (("a.yaml", f"spec: CartPole-v1:ppo\nseed: {10**299}"), ("a.json", f'{{"seed": {"1" * 5000}}}')):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=r"too large|more than 300 digits"):
            load(str(tmp_path / name))
    with pytest.raises(ConfigError, match="too large"):
        load("CartPole-v1:ppo", [f"seed={10**400}"])


@pytest.mark.parametrize("line", [DEEP, '["a"]', "1" * 5000, '{"trial": Infinity, "event": "told"}', "{"])
def test_an_invalid_line_in_a_run_breaks_no_reader(line: str, tmp_path: Path) -> None:
    path = tmp_path / "sweeps" / "s" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n")
    run = RunFolder(tmp_path)
    run.config.path.write_text(line)
    place = safe(path)
    assert alert_log.read(place) == [] or line.startswith('{"trial"')
    assert [row for row in tail(place) if not isinstance(row, dict)] == []
    assert isinstance(last_row(place), dict)
    assert runs_of_open_trials(tmp_path) == {}
    assert isinstance(run.settings(), dict)
    with pytest.raises(CheckpointError, match="damaged"):
        Journal(place)
    with pytest.raises(CheckpointError):
        read_metrics(place)
    if not line.startswith('{"trial"'):
        with pytest.raises(CheckpointError, match="damaged"):
            read_object(place)
        with pytest.raises(ConfigError):
            read_file(path)


def test_a_deep_state_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        codec.unpack({"state.json": DEEP.encode()})


LINES = [
    *(
        "a: 1",
        "a: 2",
        "b:",
        "b: {x: 1}",
        "1: one",
        "yes: no",
        "c: >",
        "c: |-",
        "d: [1,",
        "d: 'text",
        'd: "text',
        "e:x",
        "e",
    ),
    *(
        "  x: 1",
        "  - 2",
        "- 3",
        "  ]",
        "]",
        "  '",
        "a: 3'",
        "",
        "# a",
        "---",
        "...",
        "f: &f 1",
        "g: *f",
        "? h",
        "\tz: 1",
    ),
]


def answer(parse: Any, content: bytes) -> Any:
    try:
        return repr(parse(content))
    except ParseError:
        return ParseError


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=7))
def test_settings_parsed_in_blocks_are_those_of_the_whole(lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    assert answer(yaml_settings, content) == answer(lambda text: yaml_data(text, unique=False, texts=True), content)


def test_the_configs_of_runs_are_parsed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    content = dump(load("CartPole-v1:ppo")).encode()
    whole = yaml_data(content, unique=False, texts=True)
    assert yaml_settings(content) == whole
    monkeypatch.setattr("cadenza.base.parsing.yaml_data", None)  # from now on, every block is known
    assert yaml_settings(content) == whole
