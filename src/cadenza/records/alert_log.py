"""alerts.jsonl: the alerts that a run raised while it trained, one line each."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cadenza.base.files import SafePath
from cadenza.base.parsing import ParseError, json_data
from cadenza.base.text import printable
from cadenza.records import validity

Alert = dict[str, Any]


def line(alert: Alert) -> str:
    """Return an alert as one line of text."""
    text = f"{alert['rule']} at step {alert['env_steps']}: {alert['what']}"
    text += f" ({alert['explanation']})" if alert["explanation"] else ""
    return printable(text + (f"; try: {alert['hint']}" if alert["hint"] else ""))


def read(path: SafePath) -> list[Alert]:
    """Return the alerts in alerts.jsonl, without lines that were cut short or are no alerts."""
    alerts = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for text in lines:
        with suppress(ParseError):
            alerts.append(validity.alert(json_data(text)))
    return [alert for alert in alerts if alert is not None]
