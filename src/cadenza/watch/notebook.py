"""The live table of a run in the output of a notebook's cell."""

from __future__ import annotations

import io
import sys
from typing import Any

from rich.console import Console, RenderableType

PAGE = '<pre style="line-height: 1.3; white-space: pre">{code}</pre>'
WIDTH = 110  # characters


def in_notebook() -> bool:
    """Return whether this program is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookLive:
    """Shows a table and replaces it in place, with the methods of rich's Live, which would need ipywidgets."""

    def __init__(self, display: RenderableType, console: Console) -> None:
        self.console = console
        self._handle = _ipython().display(_html(display), display_id=True)

    def update(self, display: RenderableType, refresh: bool = True) -> None:
        """Replace the table."""
        self._handle.update(_html(display))

    def stop(self) -> None:
        """Leave the table as it is."""


def _ipython() -> Any:
    import IPython.display

    return IPython.display


def _html(display: RenderableType) -> Any:
    """Return a renderable as a page for IPython."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, force_jupyter=False)
    console.print(display)
    return _ipython().HTML(console.export_html(code_format=PAGE, inline_styles=True))
