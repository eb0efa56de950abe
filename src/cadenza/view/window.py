"""Pictures in a window, at the pace of the environment. Space pauses; Escape, Q or closing the window ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np

from cadenza.view.video import captioned, stride_for


class Closed(Exception):
    """The person watching has seen enough."""


class Window:
    """Made with the first picture, and again where an environment's renderer closed it behind our back."""

    path: Path | None = None

    def __init__(self, fps: float, title: str) -> None:
        import pygame

        self._pygame = pygame
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
            display.set_caption(self._title)
        return display.get_surface()

    def _heed(self) -> None:
        """Obey keys; while paused, wait for one."""
        pygame, paused, waiting = self._pygame, False, True
        while waiting:
            for event in [pygame.event.wait()] if paused else pygame.event.get():
                key = event.key if event.type == pygame.KEYDOWN else None
                if event.type == pygame.QUIT or key in (pygame.K_ESCAPE, pygame.K_q):
                    raise Closed
                paused ^= key == pygame.K_SPACE
            waiting = paused
