"""docs/coming-from-sb3.md names what SB3 and sb3-contrib have, and only settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cadenza.config.load import load
from cadenza.errors import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-sb3.md").read_text()
NAMES = """
A2C DDPG DQN HER PPO SAC TD3 ARS CrossQ MaskablePPO QR-DQN RecurrentPPO TQC TRPO
MlpPolicy CnnPolicy MultiInputPolicy MlpLstmPolicy CnnLstmPolicy MultiInputLstmPolicy
BaseCallback CallbackList CheckpointCallback ConvertCallback EvalCallback EventCallback EveryNTimesteps HParamCallback
LogEveryNTimesteps ProgressBarCallback StopTrainingOnMaxEpisodes StopTrainingOnNoModelImprovement
StopTrainingOnRewardThreshold MaskableEvalCallback
DummyVecEnv SubprocVecEnv VecCheckNan VecExtractDictObs VecFrameStack VecMonitor VecNormalize VecTransposeImage
VecVideoRecorder StackedObservations Monitor AtariWrapper ClipRewardEnv EpisodicLifeEnv FireResetEnv MaxAndSkipEnv
NoopResetEnv StickyActionEnv WarpFrame ActionMasker make_vec_env make_atari_env
DictReplayBuffer DictRolloutBuffer HerReplayBuffer NStepReplayBuffer ReplayBuffer RolloutBuffer
NormalActionNoise OrnsteinUhlenbeckActionNoise VectorizedActionNoise
evaluate_policy check_env set_random_seed load_results results_plotter get_linear_fn
"""
SPECS = ("CartPole-v1:ppo", "Pendulum-v1:ppo", "CartPole-v1:dqn", "Pendulum-v1:sac", "ALE/Pong-v5:dqn")
SETTINGS = sorted(
    set(re.findall(r"(?:algorithm|environment|evaluation|checkpoint|logging|training)\.[\w.]+=[^`]+", PAGE))
)


def test_every_name_of_sb3_is_there() -> None:
    assert [name for name in NAMES.split() if not re.search(rf"\b{re.escape(name)}\b", PAGE)] == []


@pytest.mark.parametrize("text", [text for text in SETTINGS if "my_" not in text])
def test_its_settings_exist(text: str) -> None:
    settings = re.findall(r"[a-z]+\.[\w.]+=(?:.*\}\]?'?$|\S+)", text.strip().rstrip("'"))
    problems = []
    for spec in SPECS:
        try:
            load(spec, settings)
            return
        except ConfigError as problem:
            problems.append(f"{spec}: {problem}")
    pytest.fail("\n".join(problems))
