"""Pictures, each with a line of text below it, as a video file: .gif as is, .mp4 where PyAV is installed."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from cadenza.base import atomic, owned_files
from cadenza.base.files import SafePath
from cadenza.errors import ConfigError, MissingExtraError, install
from cadenza.records.folder import VIDEOS

if TYPE_CHECKING:
    from PIL.Image import Image

Place = Path | SafePath
GIF_WIDTH = 320
SMALL = 200  # narrower pictures are enlarged
CAPTION_HEIGHT = 20


class Screen(Protocol):
    """Where an episode is shown: a window, or a file that appears when it is left without an error."""

    stride: int  # it takes every so manieth step
    path: Place | None

    def show(self, picture: np.ndarray, caption: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def can_mp4() -> bool:
    """Whether PyAV is installed."""
    return find_spec("av") is not None


def check_video(path: Place) -> None:
    """Refuse a file that could not be written in the end."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--video {path}: the name must end in {' or '.join(FORMATS)}")
    if path.suffix.lower() == ".mp4" and not can_mp4():
        raise MissingExtraError(f".mp4 videos need an extra: {install('video')} (.gif needs none)")


def open_video(path: Place, fps: float) -> Screen:
    """A file for pictures that come `fps` times a second."""
    check_video(path)
    if isinstance(path, SafePath):
        path.parent.mkdir()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    return FORMATS[path.suffix.lower()](path, fps)


def save(path: Place, film: bytes) -> None:
    """Write a film; one among a run's videos is listed there, so that a cleanup may delete it."""
    if isinstance(path, SafePath) and path.parts[:-1] == (VIDEOS,):
        owned_files.note(path.parent, path.name, sha256(film).hexdigest())
    atomic.write_out(path, film)


def captioned(picture: np.ndarray, caption: str, width: int | None = None) -> Image:
    """The picture [height, width, 3], at most this wide, on top of a line of text."""
    from PIL import Image, ImageDraw, ImageFont

    shown = Image.fromarray(picture)
    if width is not None and shown.width > width:
        shown = shown.resize((width, round(shown.height * width / shown.width)))
    elif shown.width < SMALL:
        factor = -(-SMALL // shown.width)
        shown = shown.resize((shown.width * factor, shown.height * factor), Image.Resampling.NEAREST)
    whole = Image.new("RGB", (shown.width, shown.height + CAPTION_HEIGHT), "white")
    whole.paste(shown)
    ImageDraw.Draw(whole).text((6, shown.height + 3), caption, fill="black", font=ImageFont.load_default(12))
    return whole


def stride_for(fps: float, most: float) -> int:
    """Every how manieth picture to take, where `most` a second can be shown."""
    return max(1, round(fps / most))


class Gif:
    """Small and seen everywhere."""

    def __init__(self, path: Place, fps: float) -> None:
        self.path: Place | None = path
        self.stride = stride_for(fps, 25)
        self._milliseconds = round(100 * self.stride / fps) * 10 or 10  # the format counts in hundredths of a second
        self._pictures: list[Image] = []

    def show(self, picture: np.ndarray, caption: str) -> None:
        from PIL import Image

        small = captioned(picture, caption, GIF_WIDTH)
        self._pictures.append(small.quantize(64, method=Image.Quantize.FASTOCTREE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not self._pictures:
            return
        assert self.path is not None
        film, first, rest = BytesIO(), self._pictures[0], self._pictures[1:]
        first.save(film, "GIF", save_all=True, append_images=rest, duration=self._milliseconds, loop=0)
        save(self.path, film.getvalue())


class Mp4:
    """H.264 with colours as every player expects them."""

    def __init__(self, path: Place, fps: float) -> None:
        import av

        self.path: Place | None = path
        self.stride = stride_for(fps, 50)
        self._scratch = TemporaryDirectory(prefix="cadenza-film-")  # it is written twice: its index goes to the front
        self._temporary = Path(self._scratch.name, "film.mp4")
        self._file = av.open(str(self._temporary), "w", format="mp4", options={"movflags": "faststart"})
        self._rate = Fraction(fps / self.stride).limit_denominator(1000)
        self._stream: Any = None

    def show(self, picture: np.ndarray, caption: str) -> None:
        import av

        whole = np.asarray(captioned(picture, caption))
        height, width = (side // 2 * 2 for side in whole.shape[:2])  # yuv420p halves both
        if self._stream is None:
            self._stream = self._file.add_stream("libx264", rate=self._rate, options={"crf": "20"})
            self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(whole[:height, :width]), format="rgb24")
        self._file.mux(self._stream.encode(frame))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._stream is not None:
                self._file.mux(self._stream.encode())
            self._file.close()
            if kind is None and self._stream is not None:
                assert self.path is not None
                save(self.path, self._temporary.read_bytes())
        finally:
            self._scratch.cleanup()


FORMATS: dict[str, type[Gif] | type[Mp4]] = {".gif": Gif, ".mp4": Mp4}
