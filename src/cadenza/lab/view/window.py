"""A screen in a window: pictures at the pace of the environment, and the keys pressed there."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from cadenza.base.text import printable
from cadenza.lab.view.keyboard import ENDS, PAUSES
from cadenza.lab.view.video import VideoPath, captioned, stride_for

KEYS = ("left", "right", "up", "down", "space", *"abcdefghijklmnopqrstuvwxyz0123456789")


class ClosedByUserError(Exception):
    """The person at the screen has closed it."""


class Window:
    """A window, opened with the first picture and again if an environment's renderer has closed it.

    Space pauses, Escape and Q close it; when `interactive`, only Escape does.
    """

    path: VideoPath | None = None

    def __init__(self, fps: float, title: str, interactive: bool = False) -> None:
        import pygame

        self._pygame = pygame
        self._interactive = interactive
        self._tapped: set[str] = set()  # keys that went down since the last `pressed`, and may be up again
        self._title = title
        self.stride = stride_for(fps, 60)
        self._rate = fps / self.stride
        self._clock = pygame.time.Clock()

    def show(self, picture: np.ndarray, caption: str) -> None:
        pygame, image = self._pygame, captioned(picture, caption)
        surface = self._surface(image.size)
        surface.blit(pygame.image.frombuffer(image.tobytes(), image.size, "RGB"), (0, 0))
        pygame.display.flip()
        self._handle_events()
        self._clock.tick(self._rate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pygame.display.quit()

    def _surface(self, size: tuple[int, int]) -> Any:
        display = self._pygame.display
        if not display.get_init() or display.get_surface() is None:
            display.init()
            display.set_mode(size)
            display.set_caption(printable(self._title))
        return display.get_surface()

    def pressed(self, wait: bool = False) -> frozenset[str]:
        """Return the names of the keys that are down; with `wait`, wait for one."""
        pygame = self._pygame
        self._handle_events()
        while wait and not self._tapped:
            self._handle(pygame.event.wait())
        down = pygame.key.get_pressed()
        keys = self._tapped | {key for key in KEYS if down[pygame.key.key_code(key)]}
        self._tapped = set()
        return frozenset(keys)

    def _handle_events(self) -> None:
        """Carry out the keys that close or pause; while paused, wait for one."""
        paused, waiting = False, True
        while waiting:
            for event in [self._pygame.event.wait()] if paused else self._pygame.event.get():
                paused ^= self._handle(event)
            waiting = paused

    def _handle(self, event: Any) -> bool:
        """Note a pressed key; return whether it pauses. An event that closes the window raises."""
        pygame = self._pygame
        if event.type == pygame.QUIT:
            raise ClosedByUserError
        if event.type != pygame.KEYDOWN:
            return False
        key = pygame.key.name(event.key)
        if key == "escape" or (key in ENDS and not self._interactive):
            raise ClosedByUserError
        self._tapped.add(key)
        return key in PAUSES and not self._interactive
