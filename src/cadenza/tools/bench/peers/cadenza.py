"""cadenza: a real run with its folder, rows and checkpoints, without evaluations."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cadenza.tools.bench.process import Recorder, TaskData

PPO = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "entropy_coef", "value_coef", "max_grad_norm")
REPLAY = ("warmup_steps", "train_every", "batch_size", "buffer_size", "learning_rate", "gamma")


def train(task: TaskData, recorder: Recorder) -> dict[str, Any]:
    """Train any of the algorithms below."""
    from cadenza.config.load import load
    from cadenza.engine import launch
    from cadenza.engine.events import Event, Saved
    from cadenza.lab.session import RunAttachments

    class RecordedRun(RunAttachments):
        """The attachments of `cadenza train`, and the recorder of its environments."""

        def attach(self, run: Any) -> None:
            super().attach(run)
            recorder.follow(run.collector, read=rewards_and_ends)

    def listen(event: Event) -> None:
        if isinstance(event, Saved):  # what is written after the last checkpoint is a report, not training
            recorder.end()

    file = Path("task.json")
    file.write_text(json.dumps(config_of(task)))
    folder = launch.train(load(str(file)), Path("runs"), ["cadenza", "bench"], RecordedRun(True, [listen])).folder
    status = folder.read_status()
    return recorder.figures(env_steps=status["env_steps"], updates=status["updates"], parameters=parameters(folder))


ppo = dqn = sac = mappo = happo = dreamer_v3 = train


def rewards_and_ends(step: Any) -> tuple[Any, Any]:
    """Return the rewards [N] and ends of episodes [N] of a step."""
    return sum(reward.sum(1) for reward in step.reward.values()), step.terminated | step.truncated


def config_of(task: TaskData) -> dict[str, Any]:
    """Return the task as the content of a config file; other settings have the plain algorithm's defaults."""
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


def atari(task: TaskData) -> dict[str, Any]:
    """Return settings for Atari that match the wrappers of other libraries."""
    if not task["env"].startswith("ALE/"):
        return {}
    usual = dict.fromkeys(("terminal_on_life_loss", "clip_rewards", "fire_reset"), True)
    return {"frame_stack": 4, "kwargs": {"repeat_action_probability": 0.0, **usual}}


def ppo_settings(settings: TaskData) -> dict[str, Any]:
    """Return cadenza's settings of PPO."""

    def scheduled(value: float) -> Any:
        return f"lin_{value}" if settings["anneal"] else value

    return {
        "learning_rate": scheduled(settings["learning_rate"]),
        "clip_range": scheduled(settings["clip_range"]),
        "optimizer": {"eps": settings["adam_eps"]},
        "actor": network(settings),
        "critic": network(settings),
        **{key: settings[key] for key in PPO},
    }


def dqn_settings(settings: TaskData) -> dict[str, Any]:
    """Return cadenza's settings of DQN."""
    return {
        "target_every": settings["target_every"] // settings["train_every"] * settings["gradient_steps"],
        "epsilon": {"start_value": 1.0, "end_value": settings["epsilon_end"], "end": settings["epsilon_share"]},
        "max_grad_norm": settings["max_grad_norm"],
        "hidden": network(settings),
        **replay(settings),
    }


def sac_settings(settings: TaskData) -> dict[str, Any]:
    """Return cadenza's settings of SAC."""
    return {"tau": settings["tau"], "actor": network(settings), "critic": network(settings), **replay(settings)}


def team_settings(settings: TaskData) -> dict[str, Any]:
    """Return PPO's settings with those of the presets `mappo` and `happo`, which a config file does not inherit."""
    team = ppo_settings(settings)
    team["critic"] |= {"sees": "state"}
    return {**team, "rewards": "team", "update": "sequential" if settings["groups"] > 1 else "together"}


def dreamer_settings(settings: TaskData) -> dict[str, Any]:
    """Return the settings, without features that others lack: stored latents, a critic on replay, AGC."""
    layers = dict.fromkeys(("encoder_layers", "decoder_layers", "reward_layers", "continue_layers"), settings["layers"])
    model = {
        "hidden": settings["units"],
        **{key: settings[key] for key in ("deter", "stoch", "classes", "units")},
        **layers,
    }
    return {
        "train_ratio": settings["gradient_steps"]
        / settings["train_every"]
        * settings["batch_size"]
        * settings["batch_length"],
        "stored_latents": False,
        "replay_value_scale": 0.0,
        "model": {**model, "cell": "norm_gru", "norm": "layer", "prior_layers": 1},
        "actor_layers": settings["layers"],
        "critic_layers": settings["layers"],
        "optimizer": {"name": "adam", "eps": 1e-8, "agc": 0.0, "warmup": 0},
        "max_grad_norm": 1000.0,
        **{key: settings[key] for key in ("batch_length", "horizon")},
        **{key: settings[key] for key in REPLAY},
    }


SETTINGS = {
    "dreamer_v3": dreamer_settings,
    "ppo": ppo_settings,
    "dqn": dqn_settings,
    "sac": sac_settings,
    "mappo": team_settings,
    "happo": team_settings,
}


def network(settings: TaskData) -> dict[str, Any]:
    """Return cadenza's settings of a network."""
    return {"hidden_sizes": settings["hidden_sizes"], "activation": settings["activation"]}


def replay(settings: TaskData) -> dict[str, Any]:
    """Return cadenza's settings of a replay and its updates."""
    steps, every = settings["gradient_steps"], settings["train_every"]
    ratio = steps / every
    if Fraction(repr(ratio)) * every < steps:  # a ratio that is rounded down would update a step late
        ratio = math.nextafter(ratio, math.inf)
    return {"update_ratio": ratio, **{key: settings[key] for key in REPLAY}}


def parameters(folder: Any) -> int:
    """Count the learned parameters, without target networks."""
    from cadenza.lab.playback import load_policy
    from cadenza.watch.workflow_contents import WorkflowContents

    player, _ = load_policy(folder)
    learned = WorkflowContents(player.workflow).parameters.values()
    return sum(parameter.numel() for parameter in learned if parameter.requires_grad)
