"""alerts.jsonl: what was wrong with a run while it trained, one line for each time it was told."""

from __future__ import annotations

from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.parsing import ParseError, json_data
from cadenza.base.text import printable
from cadenza.records import validity

Alert = dict[str, Any]


def line(alert: Alert) -> str:
    """An alert in one line."""
    text = f"{alert['rule']} at step {alert['env_steps']}: {alert['what']}"
    text += f" ({alert['explanation']})" if alert["explanation"] else ""
    return printable(text + (f"; try: {alert['hint']}" if alert["hint"] else ""))


def read(path: SafePath) -> list[Alert]:
    """What a run's alerts.jsonl holds; a line that was cut short or is no alert is left out."""
    found = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for text in lines:
        try:
            found.append(validity.alert(json_data(text)))
        except ParseError:
            continue
    return [alert for alert in found if alert is not None]
