"""What a world model imagines beside what happened: a video of images, curves of numbers and rewards."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from cadenza.base.files import SafePath
from cadenza.base.streams import EVALUATION, Streams
from cadenza.data.batches import Sequences
from cadenza.data.replay import ReplayStore
from cadenza.engine.playback import load_policy
from cadenza.envs.seeds import PLAY, EpisodeSeeds
from cadenza.envs.vector import make_vector
from cadenza.errors import ConfigError
from cadenza.lab.view.video import open_video, save
from cadenza.records.folder import RunFolder
from cadenza.trees import map_tree
from cadenza.types import Imagination, Imagines, Mode

SEQUENCES, KNOWN, STEPS = 4, 5, 45  # side by side; steps the model sees, and in all at most
TRIED = 24  # sequences that the best are chosen from
PLAYED = 400  # steps of the policy to choose from, where there is no replay at hand
CURVES = 6  # numbers of an observation that are drawn, at most


def imagine_run(folder: RunFolder, seed: int, checkpoint: str, trust: bool = False) -> list[SafePath]:
    """What `cadenza play --imagine` writes: the policy plays for a while, and its model tells what it expects."""
    player, name = load_policy(folder, checkpoint, trust)
    workflow, config = player.workflow, player.config
    like = workflow.stores().get("replay")
    if not (isinstance(workflow, Imagines) and workflow.imagines and isinstance(like, ReplayStore)):
        raise ConfigError(f"run {folder.id}: {config.algorithm.name} learns no model of the world that could imagine")
    store = ReplayStore(PLAYED + like.stack + 2, 1, stack=like.stack, revisable=like.revisable)
    mode = Mode(explore=False, phase=player.phase, streams=Streams(seed, branch=(EVALUATION,)))
    env = make_vector(config.environment, EpisodeSeeds(seed, PLAY), num_envs=1)
    try:
        step, carry = env.current, workflow.initial_carry(1)
        for _ in range(PLAYED):
            acted = workflow.act(step, carry, mode)
            after = env.step(acted.action)
            store.add(step, acted, after)
            step, carry = after, acted.carry
    finally:
        env.close()
    return record_imagination(workflow, {"replay": store}, folder.outlet / "videos", f"imagination-{name}-seed{seed}")


def record_imagination(
    workflow: Any, stores: dict[str, Any], folder: SafePath, title: str = "imagination"
) -> list[SafePath]:
    """Files for the run of a workflow that can `imagine`, from its own replay; none for others."""
    store = stores.get("replay")
    if not (isinstance(workflow, Imagines) and workflow.imagines and isinstance(store, ReplayStore) and store.ready()):
        return []
    drawn = unbroken(store)
    found = workflow.imagine(drawn, KNOWN, seed=0)
    folder.mkdir()
    made = [write_curves(found, folder / f"{title}.png")]
    for key, seen in found.obs.items():
        if seen.ndim == 5:
            name = key.removeprefix("image.").replace(".", "-")
            path = folder / (f"{title}-{name}.gif" if name else f"{title}.gif")
            made.append(write_video(seen, found.predicted_obs[key], path))
    return made


def unbroken(store: ReplayStore) -> Sequences:
    """Some that begin no new episode for as long as possible, and end before that: no model could foresee it."""
    rows = min(STEPS, int(store.lengths.max()) - 2) + 1
    drawn = store.sequences(TRIED, rows, np.random.default_rng(0))
    later = np.pad(drawn.is_first[:, 2:], ((0, 0), (0, 1)), constant_values=True)  # the first row only leads there
    whole = 2 + later.argmax(1)  # rows before the next episode
    best = np.argsort(-whole, kind="stable")[:SEQUENCES]
    cut = max(int(whole[best].min()), min(KNOWN + 2, rows))
    arrays = {name: value for name, value in vars(drawn).items() if value is not None}
    return Sequences(**map_tree(lambda x: x[best, :cut], arrays))


def write_video(seen: np.ndarray, predicted: np.ndarray, path: SafePath) -> SafePath:
    """Sequences [B, T, C, H, W] side by side: above what happened, then what was predicted, then how they differ."""
    with open_video(path, fps=8) as screen:
        for step in range(seen.shape[1]):
            truth, model = (np.concatenate([coloured(one) for one in part[:, step]], 1) for part in (seen, predicted))
            error = ((model.astype(np.int16) - truth + 255) // 2).astype(np.uint8)
            told = "seen and described" if step < KNOWN else "imagined"
            screen.show(np.concatenate([truth, model, error]), f"step {step + 1}: {told}")
    return path


def coloured(image: np.ndarray) -> np.ndarray:
    """[C, H, W] to [H, W, 3]: of a stack of frames the newest."""
    newest = image[-3:] if image.shape[0] % 3 == 0 else np.repeat(image[-1:], 3, 0)
    return np.moveaxis(newest, 0, -1)


def write_curves(found: Imagination, path: SafePath) -> SafePath:
    """Rewards and the first numbers of the first sequence."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = [("reward", found.reward[0], found.predicted_reward[0])]
    if "vector" in found.obs:
        truth, model = found.obs["vector"][0], found.predicted_obs["vector"][0]
        lines += [(f"number {i}", truth[:, i], model[:, i]) for i in range(min(CURVES, truth.shape[-1]))]
    figure = Figure(figsize=(8, 1.4 * len(lines) + 0.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for index, (name, truth, model) in enumerate(lines):
        axes = figure.add_subplot(len(lines), 1, index + 1)
        axes.plot(truth, color="#9ca3af", linewidth=2, label="happened")
        axes.plot(model, color="#2563eb", linewidth=1.2, label="predicted")
        axes.axvline(KNOWN - 0.5, color="#1f2937", linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_ylabel(name, fontsize=8)
        axes.tick_params(labelsize=7)
    figure.axes[0].legend(frameon=False, fontsize=8, ncols=2, loc="best")
    figure.axes[0].set_title(f"the model sees {KNOWN} steps, then the actions alone", fontsize=10, loc="left")
    picture = BytesIO()
    figure.savefig(picture, format="png")
    save(path, picture.getvalue())
    return path
