"""cadenza itself: a real run with its folder, its rows and its checkpoints, as it is shipped but for evaluations."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Task, Watch

PPO = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "entropy_coef", "value_coef", "max_grad_norm")
REPLAY = ("warmup_steps", "train_every", "batch_size", "buffer_size", "learning_rate", "gamma")


def train(task: Task, watch: Watch) -> dict[str, Any]:
    import cadenza
    from cadenza.engine import build
    from cadenza.engine.events import Event, Saved

    make_vector = vars(build)["make_vector"]

    def watched(*args: Any, **kwargs: Any) -> Any:
        env = make_vector(*args, **kwargs)
        watch.follow(env, read=earned)
        return env

    def listen(event: Event) -> None:
        if isinstance(event, Saved):  # what is written after the last checkpoint is a report, not training
            watch.end()

    vars(build)["make_vector"] = watched
    file = Path("task.json")
    file.write_text(json.dumps(config_of(task)))
    run = cadenza.train(str(file), runs_dir=Path("runs"), on_event=listen)
    status = run.result
    return watch.figures(env_steps=status["env_steps"], updates=status["updates"], parameters=parameters(run))


ppo = dqn = sac = mappo = happo = dreamer_v3 = train


def earned(step: Any) -> tuple[Any, Any]:
    return sum(reward.sum(1) for reward in step.reward.values()), step.terminated | step.truncated


def config_of(task: Task) -> dict[str, Any]:
    """The task as a config file; settings it does not name have cadenza's defaults: the plain algorithm's."""
    algorithm = task["algorithm"]
    return {
        "environment": {"id": task["env"], "num_envs": task["num_envs"], **atari(task)},
        "algorithm": {"name": algorithm, **SETTINGS[algorithm](task[algorithm])},
        "training": {"max_timesteps": task["timesteps"]},
        "evaluation": {"every_steps": None, "at_end": False},
        "runtime": {"threads": task["threads"]},
        "device": "cpu",
        "seed": task["seed"],
    }


def atari(task: Task) -> dict[str, Any]:
    """What other libraries' wrappers for Atari do."""
    if not task["env"].startswith("ALE/"):
        return {}
    usual = dict.fromkeys(("terminal_on_life_loss", "clip_rewards", "fire_reset"), True)
    return {"frame_stack": 4, "kwargs": {"repeat_action_probability": 0.0, **usual}}


def ppo_settings(given: Task) -> dict[str, Any]:
    def scheduled(value: float) -> Any:
        return f"lin_{value}" if given["anneal"] else value

    return {
        "learning_rate": scheduled(given["learning_rate"]),
        "clip_range": scheduled(given["clip_range"]),
        "optimizer": {"eps": given["adam_eps"]},
        "actor": network(given),
        "critic": network(given),
        **{key: given[key] for key in PPO},
    }


def dqn_settings(given: Task) -> dict[str, Any]:
    return {
        "target_every": given["target_every"] // given["train_every"] * given["gradient_steps"],
        "epsilon": {"start_value": 1.0, "end_value": given["epsilon_end"], "end": given["epsilon_share"]},
        "max_grad_norm": given["max_grad_norm"],
        "hidden": network(given),
        **replay(given),
    }


def sac_settings(given: Task) -> dict[str, Any]:
    return {"tau": given["tau"], "actor": network(given), "critic": network(given), **replay(given)}


def team_settings(given: Task) -> dict[str, Any]:
    """Beside PPO's, what the presets `mappo` and `happo` say: a file names everything itself."""
    settings = ppo_settings(given)
    settings["critic"] |= {"sees": "state"}
    return {**settings, "rewards": "team", "update": "sequential" if given["groups"] > 1 else "together"}


def dreamer_settings(given: Task) -> dict[str, Any]:
    """What others do not have is switched off: states kept in the replay, a critic that learns from it, AGC."""
    layers = dict.fromkeys(("encoder_layers", "decoder_layers", "reward_layers", "continue_layers"), given["layers"])
    model = {"hidden": given["units"], **{key: given[key] for key in ("deter", "stoch", "classes", "units")}, **layers}
    return {
        "train_ratio": given["gradient_steps"] / given["train_every"] * given["batch_size"] * given["batch_length"],
        "stored_latents": False,
        "replay_value_scale": 0.0,
        "model": {**model, "cell": "norm_gru", "norm": "layer", "prior_layers": 1},
        "actor_layers": given["layers"],
        "critic_layers": given["layers"],
        "optimizer": {"name": "adam", "eps": 1e-8, "agc": 0.0, "warmup": 0},
        "max_grad_norm": 1000.0,
        **{key: given[key] for key in ("batch_length", "horizon")},
        **{key: given[key] for key in REPLAY},
    }


SETTINGS = {
    "dreamer_v3": dreamer_settings,
    "ppo": ppo_settings,
    "dqn": dqn_settings,
    "sac": sac_settings,
    "mappo": team_settings,
    "happo": team_settings,
}


def network(given: Task) -> dict[str, Any]:
    return {"hidden_sizes": given["hidden_sizes"], "activation": given["activation"]}


def replay(given: Task) -> dict[str, Any]:
    steps, every = given["gradient_steps"], given["train_every"]
    ratio = steps / every
    if Fraction(repr(ratio)) * every < steps:  # a third, rounded down, would come a step late
        ratio = math.nextafter(ratio, math.inf)
    return {"update_ratio": ratio, **{key: given[key] for key in REPLAY}}


def parameters(run: Any) -> int:
    """Those that are learned; target networks are not."""
    from cadenza.engine.playback import load_policy
    from cadenza.watch.workflow_contents import WorkflowContents

    player, _ = load_policy(run.folder)
    owned = WorkflowContents(player.workflow).parameters.values()
    return sum(parameter.numel() for parameter in owned if parameter.requires_grad)
