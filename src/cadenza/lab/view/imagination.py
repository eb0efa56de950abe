"""Predictions of a world model beside what happened: a video of images, plots of numbers and rewards."""

from __future__ import annotations

from contextlib import closing
from io import BytesIO
from typing import Any

import numpy as np

from cadenza.base.files import SafePath
from cadenza.base.streams import EVALUATION, Streams
from cadenza.data.batches import Sequences
from cadenza.data.replay import ReplayStore
from cadenza.envs.ledger import PLAY, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.lab.charts import new_figure
from cadenza.lab.playback import load_policy
from cadenza.lab.svg_charts import BLUE, GREY, INK
from cadenza.lab.view.video import open_video, save
from cadenza.records.folder import RunFolder
from cadenza.trees import map_tree
from cadenza.types import Imagination, Imagines, Mode

SEQUENCES = 4  # side by side in a video
OBSERVED, STEPS = 5, 45  # steps that the model observes before it imagines; steps in all, at most
CANDIDATES = 24  # sequences from which the best are selected
PLAY_STEPS = 400  # of the policy, where there is no replay
CURVES = 6  # numbers of an observation that are plotted, at most


def imagine_run(folder: RunFolder, seed: int, checkpoint: str, trust: bool = False) -> tuple[str, list[SafePath]]:
    """Let the policy of a checkpoint play; return the checkpoint's name, and the files with what its model imagines."""
    player, name = load_policy(folder, checkpoint, trust)
    workflow, config = player.workflow, player.config
    replay = workflow.stores().get("replay")
    if not (isinstance(workflow, Imagines) and workflow.imagines and isinstance(replay, ReplayStore)):
        raise ConfigError(f"run {folder.id}: {config.algorithm.name} learns no model of the world that could imagine")
    store = ReplayStore(PLAY_STEPS + replay.stack + 2, 1, stack=replay.stack, revisable=replay.revisable)
    mode = Mode(explore=False, phase=player.phase, streams=Streams(seed, branch=(EVALUATION,)))
    with closing(make_vector(config.environment, EpisodeSeeds(seed, PLAY), num_envs=1)) as env:
        step, carry = env.current, workflow.initial_carry(1)
        for _ in range(PLAY_STEPS):
            acted = workflow.act(step, carry, mode)
            after = env.step(acted.action)
            store.add(step, acted, after)
            step, carry = after, acted.carry
    videos, title = folder.outlet / "videos", f"imagination-{name}-seed{seed}"
    return name, record_imagination(workflow, {"replay": store}, videos, title)


def record_imagination(
    workflow: Any, stores: dict[str, Any], folder: SafePath, title: str = "imagination"
) -> list[SafePath]:
    """Write what the workflow imagines about sequences of its replay; no files if it cannot imagine."""
    store = stores.get("replay")
    if not (isinstance(workflow, Imagines) and workflow.imagines and isinstance(store, ReplayStore) and store.ready()):
        return []
    imagination = workflow.imagine(sequences_within_episodes(store), OBSERVED, seed=0)
    folder.mkdir()
    files = [write_plots(imagination, folder / f"{title}.png")]
    for key, images in imagination.obs.items():
        if images.ndim == 5:
            name = key.removeprefix("image.").replace(".", "-")
            path = folder / (f"{title}-{name}.gif" if name else f"{title}.gif")
            files.append(write_video(images, imagination.predicted_obs[key], path))
    return files


def sequences_within_episodes(store: ReplayStore) -> Sequences:
    """Return the sampled sequences that stay longest within an episode, cut where the first of them leaves it.

    No model could predict the first observation of the next episode.
    """
    rows = min(STEPS, int(store.lengths.max()) - 2) + 1
    sample = store.sequences(CANDIDATES, rows, np.random.default_rng(0))
    # row 0 only leads to the first step, and row 1 may begin an episode
    next_is_first = np.pad(sample.is_first[:, 2:], ((0, 0), (0, 1)), constant_values=True)
    lengths = 2 + next_is_first.argmax(1)
    longest = np.argsort(-lengths, kind="stable")[:SEQUENCES]
    cut = max(int(lengths[longest].min()), min(OBSERVED + 2, rows))
    arrays = {name: value for name, value in vars(sample).items() if value is not None}
    return Sequences(**map_tree(lambda x: x[longest, :cut], arrays))


def write_video(images: np.ndarray, predicted: np.ndarray, path: SafePath) -> SafePath:
    """Write sequences [B, T, C, H, W] side by side: above what happened, then the prediction, then the difference."""
    with open_video(path, fps=8) as screen:
        for step in range(images.shape[1]):
            truth, model = (np.concatenate([to_rgb(one) for one in part[:, step]], 1) for part in (images, predicted))
            error = ((model.astype(np.int16) - truth + 255) // 2).astype(np.uint8)
            stage = "observed and reconstructed" if step < OBSERVED else "imagined"
            screen.show(np.concatenate([truth, model, error]), f"step {step + 1}: {stage}")
    return path


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Return an image [C, H, W], the newest of a stack of frames, as [H, W, 3]."""
    newest = image[-3:] if image.shape[0] % 3 == 0 else np.repeat(image[-1:], 3, 0)
    return np.moveaxis(newest, 0, -1)


def write_plots(imagination: Imagination, path: SafePath) -> SafePath:
    """Plot the rewards and the first numbers of the first sequence."""
    lines = [("reward", imagination.reward[0], imagination.predicted_reward[0])]
    if "vector" in imagination.obs:
        truth, model = imagination.obs["vector"][0], imagination.predicted_obs["vector"][0]
        lines += [(f"number {i}", truth[:, i], model[:, i]) for i in range(min(CURVES, truth.shape[-1]))]
    figure = new_figure(8, 1.4 * len(lines) + 0.6)
    for index, (name, truth, model) in enumerate(lines):
        axes = figure.add_subplot(len(lines), 1, index + 1)
        axes.plot(truth, color=GREY, linewidth=2, label="happened")
        axes.plot(model, color=BLUE, linewidth=1.2, label="predicted")
        axes.axvline(OBSERVED - 0.5, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_ylabel(name, fontsize=8)
        axes.tick_params(labelsize=7)
    figure.axes[0].legend(frameon=False, fontsize=8, ncols=2, loc="best")
    figure.axes[0].set_title(f"the model observes {OBSERVED} steps, then only the actions", fontsize=10, loc="left")
    picture = BytesIO()
    figure.savefig(picture, format="png")
    save(path, picture.getvalue())
    return path
