from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from cadenza.config import load as load_module
from cadenza.config.convert import config_hash, to_dict
from cadenza.config.load import dump, load, read, resolve
from cadenza.config.networks import OptimizerConfig
from cadenza.config.schedules import Schedule
from cadenza.config.schema import RunConfig
from cadenza.config.spec import experiments
from cadenza.errors import CadenzaError, ConfigError, MissingExtraError, NotFoundError


def python(code: str, *arguments: str, cwd: Path | None = None) -> str:
    """The output of a fresh interpreter: what is imported, and what is global, starts from nothing."""
    ran = subprocess.run(
        [sys.executable, "-c", dedent(code), *arguments], capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def test_tuned_spec() -> None:
    config = load("CartPole-v1:ppo")
    assert config.experiment == "CartPole-v1/ppo"
    assert config.environment.id == "CartPole-v1"
    assert config.algorithm.learning_rate == Schedule("linear", 0.001, 0.0)
    assert config.algorithm.minibatch(config.environment.num_envs) == 256


def test_untuned_spec_has_the_defaults() -> None:
    config = load("toy/identity:ppo")
    assert config.experiment is None
    plain = RunConfig(algorithm=type(config.algorithm)(), environment=config.environment)
    assert config == plain


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_loads_by_name_as_by_spec(name: str) -> None:
    try:
        config = load(name)
    except MissingExtraError as problem:
        pytest.skip(str(problem))
    env, _, variant = name.rpartition("/")
    assert config == load(f"{env}:{variant}")
    assert config.environment.id == env
    assert config.experiment == name
    left_out = [layer.source for layer in resolve(name, trace=True).layers if layer.source.startswith("override ~")]
    assert left_out == []  # it says nothing that does nothing


def test_id_without_version_means_the_newest() -> None:
    assert load("CartPole:ppo") == load("CartPole-v1:ppo")
    assert load("CartPole-v1:ppo", ["environment.id=Acrobot"]).environment.id == "Acrobot-v1"


def test_override_grammar() -> None:
    config = load(
        "CartPole-v1:ppo",
        [
            "algorithm.gamma=0.9",
            "algorithm.target_kl=1e-2",
            "++algorithm.max_grad_norm=null",
            "+tags=[a,'b c']",
            "environment.kwargs={render_mode: rgb_array, sizes: [1, 2]}",
            "environment.kwargs.extra=true",
            "algorithm.actor={hidden_sizes: [32]}",
            "algorithm.clip_range={schedule: linear, start_value: 0.2, end_value: 0.1}",
            "algorithm.n_steps=${environment.num_envs}",
            "training.early_stop.at_least=100",
            "training.phases=[{name: a, duration_cycles: 3, hooks: [collect, {name: update, times: 2}]}]",
            "~algorithm.gae_lambda",
            "name=7",
        ],
    )
    assert (config.algorithm.gamma, config.algorithm.target_kl, config.algorithm.max_grad_norm) == (0.9, 0.01, None)
    assert config.tags == ("a", "b c")
    assert config.environment.kwargs == {"render_mode": "rgb_array", "sizes": [1, 2], "extra": True}
    assert config.algorithm.actor.hidden_sizes == (32,)
    assert config.algorithm.clip_range == Schedule("linear", 0.2, 0.1)
    assert config.algorithm.n_steps == 8
    assert config.training.early_stop is not None
    assert config.training.early_stop.at_least == 100
    assert config.training.phases is not None
    assert [hook.times for hook in config.training.phases[0].hooks] == [1, 2]
    assert config.algorithm.gae_lambda == type(config.algorithm)().gae_lambda
    assert config.name == "7"


def test_what_was_tuned_for_one_algorithm_is_not_tuned_for_another() -> None:
    config = load("CartPole-v1:ppo", ["algorithm=a2c"])
    assert (config.algorithm.name, config.experiment) == ("a2c", None)


def test_what_an_experiment_says_of_an_exchanged_part_is_left_out(tmp_path: Path) -> None:
    evolved = load("Pendulum-v1:mpc", ["algorithm.controller=evolved"])
    assert (evolved.algorithm.horizon, evolved.algorithm.planning.candidates) == (15, 1000)  # the schema's
    assert evolved.algorithm.memory.hidden == 128
    file = tmp_path / "mine.yaml"
    file.write_text("spec: Pendulum-v1:mpc\nalgorithm: {controller: evolved}\n")
    assert load(str(file)).algorithm == evolved.algorithm
    with pytest.raises(ConfigError, match=r"^algorithm.horizon=7: does nothing without controller=plan or random$"):
        load("Pendulum-v1:mpc", ["algorithm.controller=evolved", "algorithm.horizon=7"])
    file.write_text("spec: Pendulum-v1:mpc\nalgorithm: {controller: evolved, horizon: 7}\n")
    with pytest.raises(ConfigError, match=r"^algorithm.horizon=7: does nothing without controller=plan or random$"):
        load(str(file))


def test_later_override_wins() -> None:
    assert load("CartPole-v1:ppo", ["seed=1", "seed=2"]).seed == 2


def test_experiment_override_chooses_another_file() -> None:
    config = load("CartPole-v1/ppo", ["experiment=Pendulum-v1/ppo"])
    assert config == load("Pendulum-v1/ppo")


def test_stored_config_is_used_as_it_is(tmp_path: Path) -> None:
    stored = load("CartPole-v1:ppo", ["seed=5", "algorithm.gamma=0.5", "tags=[x]"])
    as_yaml, as_json = tmp_path / "config.yaml", tmp_path / "config.json"
    as_yaml.write_text(dump(stored))
    as_json.write_text(json.dumps(to_dict(stored)))
    assert load(str(as_yaml)) == load(str(as_json)) == read(as_yaml) == stored
    changed = load(str(as_yaml), ["algorithm.learning_rate.end_value=0.0005", "seed=6"])
    assert changed.algorithm.learning_rate == Schedule("linear", 0.001, 0.0005)
    assert (changed.seed, changed.algorithm.gamma, changed.experiment) == (6, 0.5, "CartPole-v1/ppo")


@pytest.mark.parametrize(
    "text",
    [
        "spec: CartPole-v1:ppo\nalgorithm: {gamma: 0.5, optimizer: {eps: 1e-7}}",
        "experiment: CartPole-v1/ppo\nalgorithm: {gamma: 0.5, optimizer: {eps: 1e-7}}",
        "environment: {id: CartPole-v1}\nalgorithm: {name: ppo, gamma: 0.5, optimizer: {eps: 1e-7}}",
        "environment.id: CartPole-v1\nalgorithm.name: ppo\nalgorithm.gamma: 0.5\nalgorithm.optimizer.eps: 1e-7",
    ],
    ids=["spec", "experiment", "blocks", "dotted"],
)
def test_plain_file_lies_over_its_spec(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(text)
    expected = load("CartPole-v1:ppo", ["algorithm.gamma=0.5", "algorithm.optimizer.eps=1e-7", "seed=2"])
    assert load(str(path), ["seed=2"]) == expected


def test_plain_json_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"spec": "CartPole-v1:ppo", "seed": 4}))
    assert load(str(path)) == load("CartPole-v1:ppo", ["seed=4"])


def test_file_with_a_defaults_list_and_groups_beside_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "mine.yaml": """
                defaults:
                  - experiment: CartPole-v1/ppo
                  - network: small
                  - _self_
                seed: 9
            """,
            "network/small.yaml": "# @package algorithm\nactor: {hidden_sizes: [8]}\n",
            "network/large.yaml": "# @package algorithm\nactor: {hidden_sizes: [256, 256]}\n",
        },
    )
    config = load(str(tmp_path / "mine.yaml"))
    assert config == load("CartPole-v1:ppo", ["seed=9", "algorithm.actor.hidden_sizes=[8]"])
    large = load(str(tmp_path / "mine.yaml"), ["network=large"])
    assert large.algorithm.actor.hidden_sizes == (256, 256)
    with pytest.raises(NotFoundError, match=r"^'network=larg': no such choice; did you mean 'large'\?"):
        load(str(tmp_path / "mine.yaml"), ["network=larg"])


def test_a_choice_called_by_a_number_can_be_taken_back() -> None:
    plain, small = load("Pendulum-v1:tdmpc2"), load("Pendulum-v1:tdmpc2", ["size=1"])
    assert small != plain
    assert load("Pendulum-v1:tdmpc2", ["size=[1]"]) == small
    for taken_back in ("~size", "~size=1"):
        assert load("Pendulum-v1:tdmpc2", ["size=1", taken_back]) == plain


def test_file_whose_defaults_list_names_an_algorithm_alone(tmp_path: Path) -> None:
    write(tmp_path, {"config.yaml": "defaults:\n  - algorithm: ppo\nenvironment: {id: Acrobot-v1}\nseed: 1\n"})
    config = load(str(tmp_path / "config.yaml"))
    assert (config.environment.id, config.seed, config.experiment) == ("Acrobot-v1", 1, None)


def test_file_wins_over_its_defaults_list(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    write(tmp_path, {"mine.yaml": "defaults:\n  - experiment: CartPole-v1/ppo\nalgorithm: {gamma: 0.5}\n"})
    assert load(str(tmp_path / "mine.yaml")).algorithm.gamma == 0.5
    assert not recwarn.list


def test_users_folder_adds_experiments_and_groups(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "experiment/quick.yaml": """
                # @package _global_
                defaults:
                  - /experiment/CartPole-v1/ppo
                  - _self_
                training: {max_timesteps: 512}
            """,
            "experiment/MountainCar-v0/ppo.yaml": """
                # @package _global_
                defaults: [{/algorithm: ppo}, _self_]
                environment: {id: MountainCar-v0}
                seed: 8
            """,
            "size/mini.yaml": "# @package algorithm\nactor: {hidden_sizes: [4]}\n",
        },
    )
    quick = load("quick", config_dir=tmp_path)
    assert (quick.training.max_timesteps, quick.experiment, quick.algorithm.gamma) == (512, "quick", 0.98)
    own = load("MountainCar-v0:ppo", config_dir=tmp_path)
    assert (own.seed, own.experiment) == (8, "MountainCar-v0/ppo")
    tiny = load("CartPole-v1:ppo", ["size=mini"], config_dir=tmp_path)
    assert tiny.algorithm.actor.hidden_sizes == (4,)
    with pytest.raises(NotFoundError, match="did you mean 'quick'"):
        load("quik", config_dir=tmp_path)
    assert load("CartPole-v1:ppo", [f"hydra.searchpath=['file://{tmp_path}']", "size=mini"]) == tiny


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "seed: [1", "{path}, line 1: "),
        ("a.yaml", "seed: 1\nseed: 2", "{path}, line 2: key 'seed' is given twice"),
        ("a.json", '{"seed": 1,}', "{path}, line 1: not valid JSON"),
        ("a.json", '{"seed": 1, "seed": 2}', "{path}: key 'seed' is given twice"),
        ("a.yaml", "- 1", "{path}: must hold settings (key: value), not a list"),
        ("a.yaml", "", "{path}: must hold settings (key: value), not nothing"),
        ("a.yaml", "seed: 1", "{path}: environment.id is missing; add it, or 'spec: ENV:VARIANT'"),
        ("a.yaml", "environment: {id: CartPole-v1}", "{path}: algorithm.name is missing"),
        ("a.yaml", "spec: CartPole-v1:ppo\nsed: 1", "unknown key 'sed'; did you mean 'seed'?"),
        ("a.yaml", "spec: CartPole-v1:ppo\nname: !!python/object:os.system x", "{path}, line 2: could not determine"),
        ("a.yaml", "spec: CartPole-v1:ppo\nname: 2020-01-01", "'{path}' cannot be composed: "),
        ("a.yml", "defaults: [algorithm: ppo]", "environment.id is missing"),
        ("a.yaml", "defaults: [{algorithm: pppo}]", "'{path}' cannot be composed: "),
        ("a.yaml", "defaults: [a]", "'{path}' cannot be composed: "),
        ("a.yaml", "defaults: [{algorithm: ppo}]", "environment.id is missing"),
        ("a.yaml", "defaults: [_self_]", "algorithm.name is missing: must name an algorithm (known: a2c, "),
        ("a.yaml", "defaults: [b]", "{folder}/b.yaml, line 2: "),
        ("a.yaml", "defaults: []\nhydra: {searchpath: [file:///nowhere]}", "'{path}' cannot be composed: provider="),
        ("a.yaml", "schema_version: 99", "schema_version=99: written by a newer cadenza"),
    ],
)
def test_bad_file_is_refused_in_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, {name: text, "b.yaml": "x: 1\n: ]\n"}) / name
    with pytest.raises(CadenzaError) as caught:
        load(str(path))
    assert str(caught.value).startswith(message.format(path=path, folder=tmp_path))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no folder"):
        load("CartPole-v1:ppo", config_dir=tmp_path / "nowhere")


def test_algorithm_without_yaml_of_its_own_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from cadenza.config import registry

    mine = registry.Algorithm("mine", "", "cadenza.workflows.ppo_config:PPOConfig", "nowhere:Nothing")
    monkeypatch.setitem(registry.ALGORITHMS, "mine", mine)
    config = load("CartPole-v1:mine", ["algorithm.gamma=0.5"])
    assert (config.algorithm.name, config.algorithm.gamma, config.experiment) == ("mine", 0.5, None)


def test_reading_a_stored_config_imports_neither_hydra_nor_torch(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump(load("CartPole-v1:ppo")))
    code = """
        import sys
        from pathlib import Path
        from cadenza.config.load import read
        read(Path(sys.argv[1]))
        print(sorted({"hydra", "omegaconf", "torch", "gymnasium"} & set(sys.modules)))
    """
    assert python(code, str(path)).strip() == "[]"


def test_loading_with_plain_overrides_imports_neither_hydra_nor_torch() -> None:
    code = """
        import sys
        from cadenza.config.load import load
        load("CartPole-v1:ppo", ["seed=1"])
        print(sorted({"hydra", "omegaconf", "torch"} & set(sys.modules)))
    """
    assert python(code).strip() == "[]"


def test_works_inside_a_hydra_program_and_leaves_it_untouched(tmp_path: Path) -> None:
    write(tmp_path, {"conf/config.yaml": "defaults: [base, _self_]\nrate: 3\njob: ${hydra:job.name}\n"})
    program = """
        from dataclasses import dataclass

        import hydra
        from hydra.core.config_store import ConfigStore
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        from cadenza.config.load import load
        from cadenza.errors import ConfigError

        @dataclass
        class Base:
            rate: int = 1
            job: str = ""

        ConfigStore.instance().store(name="base", node=Base)
        ConfigStore.instance().store(group="algorithm", name="ppo", node=Base)  # clashes with a file of cadenza's
        OmegaConf.register_new_resolver("twice", lambda number: 2 * number)
        OmegaConf.register_new_resolver("add", lambda *texts: "-".join(texts))  # clashes with one of cadenza's

        @hydra.main(version_base="1.1", config_path="conf", config_name="config")
        def main(cfg):
            before = HydraConfig.get(), GlobalHydra.instance().hydra, hydra.version.getbase()
            assert load("CartPole-v1:ppo", ["seed=${twice:4}"]).seed == 8
            assert load("CartPole-v1:ppo", ["name=${add:a,b}"]).name == "a-b"
            try:
                load("CartPole-v1:ppo", ["seed=x"])
            except ConfigError:
                pass
            after = HydraConfig.get(), GlobalHydra.instance().hydra, hydra.version.getbase()
            assert all(one is two for one, two in zip(before, after))
            assert (cfg.rate, cfg.job) == (3, "program")
            assert hydra.compose("config", ["rate=4"]).rate == 4
            print("done")

        main()
    """
    write(tmp_path, {"program.py": program})
    ran = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert ran.stdout.strip().endswith("done"), ran.stderr


def test_hydra_is_left_uninitialised_where_nobody_uses_it() -> None:
    code = """
        from cadenza.config.load import load
        load("CartPole-v1:ppo")
        from hydra import compose, initialize_config_module
        from hydra.core.global_hydra import GlobalHydra
        assert not GlobalHydra.instance().is_initialized()
        with initialize_config_module("cadenza.conf", version_base="1.3"):
            print(compose("cadenza", ["experiment=CartPole-v1/ppo"]).algorithm.name)
    """
    assert python(code).strip() == "ppo"


def test_dump_is_plain_yaml() -> None:
    config = load("CartPole-v1:ppo")
    assert yaml.safe_load(dump(config)) == to_dict(config)
    with pytest.raises(ConfigError):
        load("CartPole-v1:ppo", ["environment.id=${oc.env:NO_SUCH_VARIABLE_HERE}"])


def test_keys_from_the_environment_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CADENZA_TEST_WORD", "word")
    text = """
        spec: CartPole-v1:ppo
        name: ${oc.env:CADENZA_TEST_WORD}
        tags: [a, "${name}"]
        environment.kwargs: {a: {b: "x${oc.decode:${oc.env:CADENZA_TEST_WORD}}"}, c: "${environment.kwargs.a}"}
        seed: ${environment.num_envs}
    """
    config = load(str(write(tmp_path, {"own.yaml": dedent(text)}) / "own.yaml"))
    assert (config.name, config.tags, config.seed) == ("word", ("a", "word"), 8)
    assert config.from_environment == ("environment.kwargs.a.b", "environment.kwargs.c", "name", "tags.1")
    stored = tmp_path / "stored.yaml"
    stored.write_text(dump(config))
    assert read(stored) == config
    assert load(str(stored), ["seed=3"]).from_environment == config.from_environment
    assert config_hash(config) == config_hash(replace(config, from_environment=()))
    plain = load("CartPole-v1:ppo")
    assert plain.from_environment == ()
    assert "from_environment" not in dump(plain)


def test_interpolations_that_multiply_are_refused(tmp_path: Path) -> None:
    lines = [f"  a{i}: '{''.join([f'${{environment.kwargs.a{i - 1}}}'] * 9)}'" for i in range(1, 30)]
    text = "\n".join(["spec: CartPole-v1:ppo", "environment.kwargs:", "  a0: xxxxxxxx", *lines])
    with pytest.raises(ConfigError, match="interpolations expand to more than"):
        load(str(write(tmp_path, {"own.yaml": text}) / "own.yaml"))


def test_a_config_is_composed_and_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(module: Any, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **options: (calls.append(name), original(*args, **options))[1])

    counted(load_module, "_compose")
    counted(load_module, "build")
    load("CartPole-v1:ppo", ["++algorithm.gamma=0.9"])  # plain overrides take no Hydra
    assert calls == ["_compose", "build"]


@pytest.mark.parametrize("spec", ["CartPole-v1:a2c", "CartPole-v1:dreamer_v3"])
def test_an_optimizer_of_a_user_takes_nothing_from_the_shipped_settings_of_another(spec: str) -> None:
    config = load(spec, ["algorithm.optimizer.name=torch.optim:RAdam"])
    assert config.algorithm.optimizer == OptimizerConfig("torch.optim:RAdam")
    with pytest.raises(ConfigError, match=r"algorithm\.optimizer\.eps belongs to cadenza's own optimizers"):
        load(spec, ["algorithm.optimizer.name=torch.optim:RAdam", "algorithm.optimizer.eps=0.1"])
