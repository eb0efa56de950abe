"""Video files of pictures with a caption below each: .gif, and .mp4 where PyAV is installed."""

from __future__ import annotations

import math
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

VideoPath = Path | SafePath
GIF_WIDTH = 320
MIN_WIDTH = 200  # narrower pictures are enlarged
CAPTION_HEIGHT = 20


class Screen(Protocol):
    """An output for an episode: a window, a terminal, or a file that is written when the context ends normally."""

    stride: int  # every `stride`-th step is shown
    path: VideoPath | None

    def show(self, picture: np.ndarray, caption: str) -> None:
        """Show a picture [height, width, 3] with a caption."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def can_mp4() -> bool:
    """Return whether PyAV is installed."""
    return find_spec("av") is not None


def check_video(path: VideoPath) -> None:
    """Refuse a file whose format is unknown or needs an extra that is not installed."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--video {path}: the name must end in {' or '.join(FORMATS)}")
    if path.suffix.lower() == ".mp4" and not can_mp4():
        raise MissingExtraError(f".mp4 videos need an extra: {install('video')} (.gif needs none)")


def open_video(path: VideoPath, fps: float) -> Screen:
    """Open a video file for an environment with `fps` steps a second."""
    check_video(path)
    if isinstance(path, SafePath):
        path.parent.mkdir()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    return FORMATS[path.suffix.lower()](path, fps)


def save(path: VideoPath, content: bytes) -> None:
    """Write a video; in a run's `videos` folder, list it as cadenza's, so that `cadenza cleanup` may delete it."""
    if isinstance(path, SafePath) and path.parts[:-1] == (VIDEOS,):
        owned_files.note(path.parent, path.name, sha256(content).hexdigest())
    atomic.write_out(path, content)


def captioned(picture: np.ndarray, caption: str, width: int | None = None) -> Image:
    """Return the picture [height, width, 3], at most `width` wide, with the caption below it."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    if width is not None and image.width > width:
        image = image.resize((width, round(image.height * width / image.width)))
    elif image.width < MIN_WIDTH:
        factor = math.ceil(MIN_WIDTH / image.width)
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    canvas = Image.new("RGB", (image.width, image.height + CAPTION_HEIGHT), "white")
    canvas.paste(image)
    ImageDraw.Draw(canvas).text((6, image.height + 3), caption, fill="black", font=ImageFont.load_default(12))
    return canvas


def stride_for(fps: float, max_fps: float) -> int:
    """Return n so that every n-th of `fps` pictures a second gives about `max_fps` or fewer."""
    return max(1, round(fps / max_fps))


class Gif:
    """A GIF in 64 colours: small, and every program shows it."""

    def __init__(self, path: VideoPath, fps: float) -> None:
        self.path: VideoPath | None = path
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
        file, first, rest = BytesIO(), self._pictures[0], self._pictures[1:]
        first.save(file, "GIF", save_all=True, append_images=rest, duration=self._milliseconds, loop=0)
        save(self.path, file.getvalue())


class Mp4:
    """An H.264 video in the colour format that every player supports."""

    def __init__(self, path: VideoPath, fps: float) -> None:
        import av

        self.path: VideoPath | None = path
        self.stride = stride_for(fps, 50)
        self._scratch = TemporaryDirectory(prefix="cadenza-video-")  # `faststart` writes the file twice
        self._temporary = Path(self._scratch.name, "video.mp4")
        self._file = av.open(str(self._temporary), "w", format="mp4", options={"movflags": "faststart"})
        self._rate = Fraction(fps / self.stride).limit_denominator(1000)
        self._stream: Any = None

    def show(self, picture: np.ndarray, caption: str) -> None:
        import av

        pixels = np.asarray(captioned(picture, caption))
        height, width = (side // 2 * 2 for side in pixels.shape[:2])  # yuv420p needs even sizes
        if self._stream is None:
            self._stream = self._file.add_stream("libx264", rate=self._rate, options={"crf": "20"})
            self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels[:height, :width]), format="rgb24")
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
