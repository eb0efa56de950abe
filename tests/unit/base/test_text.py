"""Text from a stranger's files in terminals, pages, shells and spreadsheets."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import cadenza
from cadenza.base import text
from cadenza.base.json_text import terminal_line, without_digest
from cadenza.config.load import as_yaml
from cadenza.engine.scheduler import PhaseProgress
from cadenza.lab.html import Block, Code, Heading, Media, Paragraph, Table, html, markdown
from cadenza.records.folder import RunFolder
from cadenza.watch.console import Console
from harness.command import cadenza as command
from harness.command import copied
from harness.files import safe

EVIL = "a\x1b]0;t\x07\r\x9b2J\u202eb\u2066\u200b\u2028\x7f\udcff[red]x[/red]"
MARKUP = "<script>alert(1)</script><img src=x onerror=y><!-- [x](javascript:y) ![](http://t/p.png) | `c` ```\n# h"


def test_printable_escapes_control_characters_and_keeps_the_rest() -> None:
    escaped = text.printable(EVIL)
    assert escaped.isprintable()
    for escape in (r"\x1b", r"\x07", r"\r", r"\x9b", r"\u202e", r"\u2066", r"\u200b", r"\u2028", r"\x7f", r"\udcff"):
        assert escape in escaped
    assert text.printable("Größe ≥ 1, 日本語 [red]") == "Größe ≥ 1, 日本語 [red]"
    assert text.lines("a\tb\nc\r") == "a\tb\nc\\r"
    assert text.one_line("a\nerror: b\x1b") == "a error: b\\x1b"


def test_a_shell_reads_back_what_was_quoted() -> None:
    for word in ("plain", "it's", "a b", "a\nb\x1b'\\", "\u202e!$x", "日\x07"):
        quoted = text.shell(word)
        assert quoted.isprintable()
        script = f"printf %s {quoted}"
        out = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}).stdout
        assert out.decode() == word


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.add(tag)


def test_pages_show_markup_in_names_and_values_as_it_is(tmp_path: Path) -> None:
    picture = tmp_path / "a) (b.png"
    picture.write_bytes(b"")
    blocks: list[Block] = [Heading(MARKUP), Paragraph(MARKUP), Table((MARKUP, "b"), [(MARKUP, EVIL)]), Code(MARKUP)]
    written = markdown([*blocks, Media(safe(picture), MARKUP)], tmp_path)
    prose, fence, code = written.partition("````\n")
    assert fence
    assert code.startswith(MARKUP)
    assert "<" not in prose
    assert not re.search(r"(?<!\\)\]\s*[(\[:]", prose)
    table = [line for line in prose.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert all(line.replace("\\|", "").count("|") == 3 for line in table)
    assert "](a%29%20%28b.png)" in code
    page = html(blocks, MARKUP)
    assert Tags(page).names.isdisjoint({"script", "img"})
    assert all(c.isprintable() or c == "\n" for c in page)


def test_ordinary_text_in_markdown_stays_as_it_is() -> None:
    for plain in ("algorithm.clip_range", "90 ± 5 (from 81 to 99)", "[64, 64]", "0.0003", "CartPole-v1:ppo", "-5"):
        assert text.markdown(plain) == plain
    assert text.paragraph("# no heading") == "\\# no heading"
    assert text.paragraph("1. no list") == "1\\. no list"


def test_csv_cells_are_no_formulas() -> None:
    assert text.cell("=1+1") == "'=1+1"
    assert text.cell("@x\n") == "'@x\\n"
    assert [text.cell(value) for value in (-1.5, None, "CartPole-v1")] == [-1.5, None, "CartPole-v1"]


def test_yaml_and_json_escape_invisible_characters_and_keep_their_values() -> None:
    tree = {"name": "a\u202eb\x9b日"}
    for written, read in ((as_yaml(tree), yaml.safe_load), (terminal_line(tree), json.loads)):
        assert text.lines(written) == written
        assert read(written) == tree
    assert "日" in as_yaml({"name": "日"})


def test_the_console_and_the_log_write_one_printable_line_for_an_entry(tmp_path: Path) -> None:
    stream, log = io.StringIO(), tmp_path / "run.log"
    console = Console(False, 10, stream, log=safe(log))
    console.start([f"run {EVIL}\n2026-01-01 00:00:00 forged"], 0, PhaseProgress("", last=True))
    console.note(f"{EVIL}\n2026-01-01 00:00:00 forged", warning=True)
    console.finish("done")
    for written in (stream.getvalue(), log.read_text()):
        assert len(written.splitlines()) == 3
        assert all(line.isprintable() for line in written.splitlines())
        assert not any(line.startswith("2026-01-01 00:00:00 forged") for line in written.splitlines())


def test_commands_print_a_hostile_run_without_control_characters(whole: RunFolder, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "runs")
    manifest, evil = without_digest(json.loads(folder.manifest.read_text())), EVIL[:-13]  # a whole text
    named = folder.path.rename(folder.path.with_name("evil\x1b[31m\n\u202e[red]"))
    (named / "manifest.json").write_text(json.dumps(manifest | {"name": evil, "tags": [evil], "command": [evil]}))
    (named / "status.json").write_text(json.dumps({"status": "failed", "message": EVIL}))
    alert = {"rule": EVIL, "severity": EVIL, "env_steps": 1, "what": EVIL, "hint": EVIL}
    (named / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    config = yaml.safe_load((named / "config.yaml").read_text())
    (named / "config.yaml").write_text(json.dumps(config | {"name": EVIL[:-13], "tags": [EVIL[:-13]]}))
    place = ("--runs-dir", tmp_path / "runs")
    for arguments in (("list",), ("show", named.name), ("report", named.name), ("diff", named.name, named.name),
                      ("show", "evil\x1b[2J"), ("export", named.name, "--format", "csv"),
                      ("list", "--json"), ("show", named.name, "--json")):  # fmt: skip
        outcome = command(*arguments, *place)
        assert outcome.code in (0, 2), outcome.err
        for line in (outcome.out + outcome.err).split("\n"):
            assert line.isprintable(), (arguments, line)
    assert all(line.isprintable() for line in (named / "report.md").read_text().split("\n"))


def test_commands_print_through_the_one_function_that_escapes() -> None:
    package = Path(cadenza.__file__).parent
    for path in sorted((package / "cli").glob("*.py")):
        if path.name in ("main.py", "output.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "typer.echo", "sys.stdout.write"), f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("form", ["{}:ppo", "{}", "CartPole-v1:{}", "x\0y:ppo"])
def test_a_spec_too_long_for_a_file_name_is_a_spec_error(form: str) -> None:
    command("train", form.format("x" * 5000), "--cfg").refused(2)
