"""Runs that name code: which places count, and that nothing is imported before it is trusted."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from cadenza import api
from cadenza.config import registry
from cadenza.config.convert import to_dict
from cadenza.config.load import dump, load
from cadenza.config.schema import RunConfig
from cadenza.errors import CadenzaError, ConfigError, StorageError
from cadenza.records.folder import RunFolder, create, file_digest
from cadenza.records.trust import code_named, require_trust, require_trust_of_file
from harness.command import cadenza
from harness.memory import Memory, MemoryConfig

PATH = "canary.cage:Bird"


@dataclass(frozen=True)
class ChoosyConfig(MemoryConfig):
    returns: Literal["mc:rtg", "mc:episode"] = "mc:rtg"
    model: str = ""
    parts: tuple[str, ...] = ()


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package that writes a file when it is imported."""
    sung = tmp_path / "sung"
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary" / "cage.py").write_text(f"open({str(sung)!r}, 'w')\nclass Bird: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("canary", "canary.cage"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return sung


def placed(key: str, value: Any) -> dict[str, Any]:
    """Return the plain data of a config with a value at a dotted key."""
    data: dict[str, Any] = to_dict(load("toy/identity:ppo"))
    *parents, leaf = key.split(".")
    block = data
    for parent in parents:
        block = block[parent]
    block[leaf] = value
    return data


PLACES = {
    "environment.id": PATH,
    "environment.wrappers": [{"id": "TimeAwareObservation"}, {"id": PATH}],
    "algorithm.name": PATH,
    "algorithm.torso.encoder": PATH,
    "algorithm.torso.kwargs": {"inner": [PATH]},
    "algorithm.optimizer.name": PATH,
    "algorithm.learning_rate": {"schedule": PATH},
    "algorithm.actor": {"_target_": "canary.cage.Bird"},
    "algorithm.advantage": {"_target_": "canary.cage.Bird", "_partial_": True},
    "training.buffers": {"rollout": {"id": PATH}},
    "logging.sinks": ["named", {"id": PATH}],
}


@pytest.mark.parametrize("key", PLACES)
def test_every_place_that_names_code_is_seen(key: str) -> None:
    assert code_named(placed(key, PLACES[key])) == [PATH]


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", PATH), ("tags", [PATH]), ("environment.kwargs", {"map": PATH}), ("training.init_from", PATH)],
)
def test_text_that_nothing_imports_is_no_code(key: str, value: Any) -> None:
    assert code_named(placed(key, value)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("environment.kwargs", {"config_path": "e.cfg"}),
        ("environment.kwargs", {"xml_file": "/a/robot.xml"}),
        ("environment.kwargs", {"deep": [{"scenario": "..\\e.cfg"}]}),
        ("environment.kwargs", {"scenario": "here.txt"}),
        ("environment.wrappers", [{"id": "RecordVideo", "video_folder": "~/films"}]),
        ("logging.sinks", [{"id": "named", "address": "https://elsewhere"}]),
    ],
)
def test_a_file_that_an_environment_would_open_is_named(
    key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.txt").touch()
    (named,) = code_named(placed(key, value))
    assert named in str(value).replace("\\\\", "\\")
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    folder.config.path.write_text(yaml.safe_dump(placed(key, value)))
    with pytest.raises(ConfigError, match=r"would open .* and was not made here: add --trust"):
        folder.read_config()


def test_ones_own_run_stays_ones_own_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("toy/identity:ppo")
    config = replace(config, environment=replace(config.environment, kwargs={"scenario": "here.txt"}))
    folder = create(tmp_path / "runs", config, ["test"])
    monkeypatch.chdir(tmp_path)
    Path("here.txt").touch()
    assert folder.read_config() == config


def test_one_of_a_few_words_is_no_code_and_any_other_text_may_be(forgotten: None) -> None:
    registry.register_algorithm("choosy", config=ChoosyConfig)(Memory)
    data = to_dict(load("toy/identity:choosy"))
    assert code_named(data) == []
    data["algorithm"] |= {"model": PATH, "parts": ["a", "b:c"]}
    assert code_named(data) == [PATH, "b:c"]


@pytest.mark.parametrize("key", [key for key in PLACES if key != "algorithm.torso.kwargs"])
def test_a_strangers_code_is_named_and_never_imported(key: str, canary: Path, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    folder.config.path.write_text(yaml.safe_dump(placed(key, PLACES[key])))
    with pytest.raises(ConfigError, match=rf"{folder.id} would import '{PATH}' and was not made here: add --trust"):
        folder.read_config()
    assert not canary.exists()


GIVEN = [
    ["train"],
    ["train", "--cfg"],
    ["plan"],
    ["config", "explain", "seed"],
    ["verify", "--resume"],
    ["tune", "--trials", "1", "--dry-run"],
]


@pytest.mark.parametrize("command", GIVEN)
def test_a_strangers_config_given_as_a_spec_is_refused_too(command: list[str], canary: Path, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    folder.config.path.write_text(yaml.safe_dump(placed("environment.id", PATH)))
    cadenza(*command, str(folder.config)).refused(2, f"would import '{PATH}'", "--trust")
    assert not canary.exists()


def test_a_strangers_config_given_to_the_interface_is_refused_too(canary: Path, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    folder.config.path.write_text(yaml.safe_dump(placed("environment.id", PATH)))
    with pytest.raises(ConfigError, match=f"would import '{PATH}'"):
        api.train(str(folder.config), runs_dir=tmp_path)
    folder.config.path.write_text(yaml.safe_dump(placed("plugins", [PATH.partition(":")[0]])))
    with pytest.raises(ConfigError, match="would import"):
        api.tune(str(folder.config), trials=1, runs_dir=tmp_path)
    assert not canary.exists()
    folder.manifest.path.write_text("{")
    cadenza("train", folder.config).refused(78, "manifest.json is damaged")


def test_an_old_layout_cannot_smuggle_code_in(canary: Path, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    folder.config.path.write_text(yaml.safe_dump(placed("algorithm.name", PATH) | {"schema_version": 0}))
    with pytest.raises(ConfigError, match="add --trust"):
        folder.read_config()
    assert not canary.exists()


def own(tmp_path: Path) -> tuple[RunFolder, RunConfig]:
    config = load("cadenza.envs.toys.toy:Identity:ppo")
    return create(tmp_path / "runs", config, ["test"]), config


def test_what_the_engine_changes_in_ones_own_run_stays_ones_own(tmp_path: Path) -> None:
    folder, config = own(tmp_path)
    assert folder.read_config() == config
    longer = replace(config, environment=replace(config.environment, num_envs=3))
    folder.change_config(dump(longer))
    assert folder.read_config() == longer


def test_what_a_stranger_changes_in_ones_own_run_does_not(tmp_path: Path) -> None:
    folder, config = own(tmp_path)
    folder.config.path.write_text(dump(replace(config, environment=replace(config.environment, kwargs={"n": 3}))))
    with pytest.raises(ConfigError, match="was not made here"):
        folder.read_config()
    with pytest.raises(ConfigError, match="was changed after the run began"):
        folder.read_config(trust=True)


def test_a_sink_that_a_stranger_adds_or_exchanges_is_refused(canary: Path, tmp_path: Path) -> None:
    config = load("toy/identity:ppo")
    for sinks in ((), ("cadenza.watch.tensorboard:TensorBoard",)):
        signed = replace(config, logging=replace(config.logging, sinks=sinks))
        folder = create(tmp_path / "runs", signed, ["test"])
        assert folder.read_config() == signed
        folder.config.path.write_text(dump(replace(config, logging=replace(config.logging, sinks=(PATH,)))))
        with pytest.raises(ConfigError, match=f"would import '{PATH}' and was not made here: add --trust"):
            folder.read_config()
    assert not canary.exists()


PUBLISHING: list[dict[str, Any]] = [{"wandb": True}, {"sinks": ["named"]}]


@pytest.mark.parametrize("settings", PUBLISHING)
def test_a_strangers_run_publishes_with_trust_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    data = to_dict(load("toy/identity:ppo"))
    folder.config.path.write_text(yaml.safe_dump(data | {"logging": data["logging"] | settings}))
    (key,) = settings
    for command in ("resume", folder.path), ("train", folder.config):
        cadenza(*command).refused(2, f"would publish by 'logging.{key}' and was not made here: add --trust")
    require_trust(folder.settings(), folder.read_manifest(), folder.path)  # to evaluate it, nothing is published


def test_ones_own_sinks_are_signed_and_those_that_stay_here_need_no_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("toy/identity:ppo", ["logging.wandb=true", "logging.wandb_project=mine"])
    folder = create(tmp_path / "runs", config, ["test"])
    longer = replace(config, training=replace(config.training, max_timesteps=5))
    folder.change_config(dump(longer))
    assert folder.read_config(training=True) == longer
    folder.config.path.write_text(dump(replace(config, logging=replace(config.logging, wandb_project="theirs"))))
    with pytest.raises(ConfigError, match=r"would publish by 'logging\.wandb'"):
        folder.read_config(training=True)
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")  # no key: the run is made all the same
    folder = create(tmp_path / "runs", config, ["test"])
    with pytest.raises(ConfigError, match=r"would publish by 'logging\.wandb'"):
        folder.read_config(training=True)
    local = load("toy/identity:ppo", ["logging.wandb=offline", "logging.tensorboard=true"])
    assert create(tmp_path / "runs", local, ["test"]).read_config(training=True) == local


def test_trusting_a_run_once_is_not_trusting_it_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, config = own(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert folder.read_config(trust=True) == config
    folder.change_config(dump(replace(config, seed=5)))
    assert file_digest(folder.config) in folder.read_manifest()["configs"]
    with pytest.raises(ConfigError, match="was not made here"):
        folder.read_config()


@pytest.mark.parametrize("key", [key for key in PLACES if key not in ("algorithm.torso.kwargs", "training.buffers")])
def test_an_upgrade_imports_nothing_either(key: str, canary: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(placed(key, PLACES[key]) | {"schema_version": 0, "max_updates": 5}))
    del (stored := yaml.safe_load(file.read_text()))["training"]
    file.write_text(yaml.safe_dump(stored))
    told = cadenza("config", "migrate", file).succeeded()
    assert told.err == f"note: values are not checked, that would import '{PATH}': add --trust if you trust it\n"
    assert yaml.safe_load(told.out)["training"] == {"max_updates": 5}
    assert not canary.exists()


def test_an_upgrade_that_is_trusted_checks_all(canary: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(placed("algorithm.name", PATH)))
    cadenza("config", "migrate", file, "--trust").refused(2, f"'{PATH}' must be a workflow class")
    assert canary.exists()


ODD = [5, "x", 1.5, None, True, [1], ["a:b"], [[1]], {"a": 1}, {"id": 3}, {1: 2}]


KEYS = [
    "environment",
    "algorithm",
    "environment.id",
    "algorithm.name",
    "environment.wrappers",
    "algorithm.torso",
    "logging.sinks",
    "training.buffers",
    "plugins",
]


@pytest.mark.parametrize("key", KEYS)
def test_nonsense_in_a_strangers_config_is_one_line(key: str, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    for value in ODD:
        folder.config.path.write_text(yaml.safe_dump(placed(key, value)))
        with pytest.raises(CadenzaError) as caught:  # if nothing else, that it was changed
            folder.read_config()
        assert "\n" not in str(caught.value)


def test_values_that_no_config_of_ours_holds_are_nobodys_own(tmp_path: Path) -> None:
    folder, config = own(tmp_path)
    folder.config.path.write_text(dump(config).replace("kwargs: {}", "kwargs: {day: 2020-01-01}", 1))
    with pytest.raises(ConfigError, match="was not made here"):
        folder.read_config()


@pytest.mark.parametrize("value", ODD)
def test_nonsense_for_signatures_signs_nothing(value: Any, tmp_path: Path) -> None:
    folder, _ = own(tmp_path)
    manifest = folder.read_manifest() | {"signatures": value}
    folder.manifest.path.write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="was not made here"):
        folder.read_config()


def test_a_place_for_the_key_that_cannot_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("toy/identity:ppo")
    config = replace(config, environment=replace(config.environment, kwargs={"scenario": "here.txt"}))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"file/cadenza/key: .* \(XDG_STATE_HOME takes another place\)"):
        create(tmp_path / "runs", config, ["test"])
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StorageError, match="home directory"):
        create(tmp_path / "runs", config, ["test"])
    assert list((tmp_path / "runs").iterdir()) == []


def homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")  # as Python says where HOME is unset and no user is known


@pytest.mark.parametrize(
    "hidden",
    [
        "!!pairs [a: /x/evil.cfg]",
        "!!omap [a: {b: /x/evil.cfg}]",
        "!!set {/x/evil.cfg}",
        "{/x/evil.cfg: 1}",
        "[[/x/evil.cfg]]",
    ],
)
def test_a_file_hidden_in_any_container_is_named(hidden: str, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    text = folder.config.read_text().replace("wrappers: []", f"wrappers: [{{id: X, given: {hidden}}}]")
    folder.config.path.write_text(text)
    with pytest.raises(ConfigError, match=r"would open '/x/evil.cfg' and was not made here: add --trust"):
        folder.read_config()


def test_code_hidden_in_any_container_is_named() -> None:
    for hidden in ([("a", PATH)], {PATH}, {PATH: 1}, [{"a": (PATH,)}]):
        assert PATH in code_named(placed("algorithm.torso.kwargs", hidden))


SURROUNDINGS = [
    "${device}",
    "${oc.env:CADENZA_TEST_SECRET}",
    "x${oc.decode:${oc.env:A}}",
    "${hydra:runtime.cwd}",
    "${oc.${seed}:A}",
]


@pytest.mark.parametrize("text", SURROUNDINGS)
def test_a_strangers_config_reads_no_surroundings(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_TEST_SECRET", "secret")
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    stored = folder.config.read_text()
    folder.config.path.write_text(stored.replace("name: ''", f"name: {text}"))
    link = tmp_path / "mine.yaml"
    link.symlink_to(folder.config.path)
    for path in (folder.config, link):
        with pytest.raises(ConfigError, match=r"name would resolve '\$\{.*' here and was not made here: add --trust"):
            require_trust_of_file(str(path))
    link.unlink()
    link.write_text(folder.config.read_text())
    require_trust_of_file(str(link))  # no run's: the user's own word


@pytest.mark.parametrize("place", ["id: ${name}", "id: toy/identity\n  wrappers: ${tags}"])
def test_a_strangers_code_that_another_key_names_is_not_imported(place: str, canary: Path, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    stored = folder.config.read_text().replace("id: toy/identity", place).replace("  wrappers: []\n", "")
    folder.config.path.write_text(stored.replace("name: ''", f"name: {PATH}").replace("tags: []", f"tags: ['{PATH}']"))
    cadenza("plan", folder.config, "seed=1").refused(2, "would resolve '${", "--trust")
    assert not canary.exists()


def test_a_strangers_secret_stays_one_on_the_command_line(tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    folder.config.path.write_text(folder.config.read_text().replace("name: ''", "name: ${oc.env:HOME}"))
    for command in (["train", "--cfg"], ["plan"], ["config", "explain", "name"]):
        cadenza(*command, folder.config, "seed=1").refused(2, "name would resolve '${oc.env:HOME}'", "--trust")
    told = cadenza("train", "--cfg", "--trust", folder.config, "seed=1").succeeded()
    assert "from_environment:\n- name\n" in told.out


@pytest.mark.parametrize(
    "text", ["defaults: [x]\n", "spec: a:b\n", "schema_version: 2\nenvironment.id: a:b\n", "sweep: {}\n"]
)
def test_another_file_in_a_strangers_run_is_taken_with_trust_alone(text: str, tmp_path: Path) -> None:
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"])
    (folder.path / "other.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"other.yaml is in a run's folder and no config that a run stores"):
        require_trust_of_file(str(folder.path / "other.yaml"))
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    (tmp_path / "other.yaml").write_text(text)
    require_trust_of_file(str(tmp_path / "other.yaml"))


@pytest.fixture
def strange(canary: Path, tmp_path: Path) -> Path:
    """Return a stored config in the folder of a stranger's run, which has files that import the canary beside it."""
    folder = create(tmp_path / "runs", load("toy/identity:ppo"), ["test"]).path
    for group in ("bait", "networks"):
        (folder / group).mkdir()
        (folder / group / "large.yaml").write_text("# @package _global_\nplugins: [canary.cage]\n")
    return folder / "config.yaml"


def test_a_strangers_config_chooses_no_files_beside_it(strange: Path, canary: Path, tmp_path: Path) -> None:
    strange.write_text("environment: {id: toy/identity}\nalgorithm: {name: ppo}\nbait: large\n")  # of version 0
    cadenza("train", "--cfg", strange).refused(2, "unknown key 'bait'")
    strange.write_text(dump(load("toy/identity:ppo")) + "defaults: [{bait: large}]\n")
    own = tmp_path / "own.yaml"
    own.write_text(f"defaults: [{strange}, _self_]\n")
    cadenza("train", "--cfg", own).refused(2, "is in a run's folder and no config that a run stores")
    strange.write_text(dump(load("toy/identity:ppo")))
    own.write_text(f"defaults: [{strange}, _self_]\nnetworks: large\n")
    assert "- 512" in cadenza("train", "--cfg", own).succeeded().out
    assert not canary.exists()


NAMED = ("defaults: [/DIR/config, _self_]", "defaults: [DIR/config@_global_, _self_]", "defaults: [{DIR: config}]")


@pytest.mark.parametrize("text", [*NAMED, "environment: {id: toy/identity}\nalgorithm: {name: ppo}\nruns: config"])
def test_a_strangers_config_is_found_by_its_path_alone(text: str, strange: Path, canary: Path, tmp_path: Path) -> None:
    strange.write_text(dump(load("toy/identity:ppo")) + "plugins: [canary.cage]\n")
    if "runs: config" in text:
        strange.parent.rename(tmp_path / "moved")
        (tmp_path / "runs").rename(tmp_path / "others")
        (tmp_path / "moved").rename(tmp_path / "runs")
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("DIR", f"runs/{strange.parent.name}"))
    cadenza("train", "--cfg", own).refused(2, "is in a run's folder and no choice of a config group")
    assert not canary.exists()


def test_a_trusted_file_in_the_folder_of_a_run_may_build_on_those_beside_it(strange: Path, canary: Path) -> None:
    (strange.parent / "other.yaml").write_text("defaults: [seeds, bait: large]\nspec: toy/identity:ppo\n")
    (strange.parent / "seeds.yaml").write_text("seed: 7\n")
    cadenza("train", "--cfg", strange.parent / "other.yaml").refused(2, "no config that a run stores", "--trust")
    assert not canary.exists()
    assert "\nseed: 7\n" in cadenza("train", "--cfg", "--trust", strange.parent / "other.yaml").succeeded().out
    assert canary.exists()


def test_a_strangers_config_is_refused_however_its_path_is_written(strange: Path, canary: Path, tmp_path: Path) -> None:
    strange.write_text(dump(load("toy/identity:ppo")) + "plugins: [canary.cage]\n")
    own = tmp_path / "own"  # without a suffix
    own.write_text(f"defaults: [{strange}, _self_]\n")
    for spec in (f"+experiment={strange}", own):
        cadenza("train", "--cfg", spec).refused(2, "would import 'canary.cage'", "--trust")
    assert not canary.exists()


def test_a_manifest_that_is_a_folder_makes_a_config_nobodys_own(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    (tmp_path / "config.yaml").write_text("spec: CartPole-v1:ppo\nname: ${oc.env:HOME}\n")
    cadenza("train", tmp_path / "config.yaml", "--cfg").refused(78, "manifest.json is a folder, not a file")


def test_an_upgrade_follows_no_link_in_the_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("name: secret\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    (run / "config.yaml").symlink_to(tmp_path / "secret.yaml")
    cadenza("config", "migrate", run / "config.yaml").refused(78, "config.yaml is a link")
