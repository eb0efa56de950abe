"""Pictures in a window, at the pace of the environment, and the keys pressed there."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from cadenza.base.text import printable
from cadenza.lab.view.keyboard import ENDS, PAUSES
from cadenza.lab.view.video import Place, captioned, stride_for

HELD = ("left", "right", "up", "down", "space", *"abcdefghijklmnopqrstuvwxyz0123456789")


class Closed(Exception):
    """The person watching has seen enough."""


class Window:
    """Made with the first picture, and again where an environment's renderer closed it behind our back.

    Space pauses; Escape, Q or closing the window ends it. Where a person plays (`played`), Escape and closing it do.
    """

    path: Place | None = None

    def __init__(self, fps: float, title: str, played: bool = False) -> None:
        import pygame

        self._pygame = pygame
        self._played = played
        self._tapped: set[str] = set()  # keys that went down since they were asked for, and may be up again
        self._title = title
        self.stride = stride_for(fps, 60)
        self._rate = fps / self.stride
        self._clock = pygame.time.Clock()

    def show(self, picture: np.ndarray, caption: str) -> None:
        pygame, whole = self._pygame, captioned(picture, caption)
        surface = self._surface(whole.size)
        surface.blit(pygame.image.frombuffer(whole.tobytes(), whole.size, "RGB"), (0, 0))
        pygame.display.flip()
        self._heed()
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
        """Names of the keys that are down; `wait` for one."""
        pygame = self._pygame
        self._heed()
        while wait and not self._tapped:
            self._take(pygame.event.wait())
        held = pygame.key.get_pressed()
        keys = self._tapped | {key for key in HELD if held[pygame.key.key_code(key)]}
        self._tapped = set()
        return frozenset(keys)

    def _heed(self) -> None:
        """Obey keys; while paused, wait for one."""
        paused, waiting = False, True
        while waiting:
            for event in [self._pygame.event.wait()] if paused else self._pygame.event.get():
                paused ^= self._take(event)
            waiting = paused

    def _take(self, event: Any) -> bool:
        """Whether the event is a key that pauses."""
        pygame = self._pygame
        if event.type == pygame.QUIT:
            raise Closed
        if event.type != pygame.KEYDOWN:
            return False
        key = pygame.key.name(event.key)
        if key == "escape" or (key in ENDS and not self._played):
            raise Closed
        self._tapped.add(key)
        return key in PAUSES and not self._played
