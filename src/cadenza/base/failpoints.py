"""Named points in the code where a test can kill the process or make the disk fail.

CADENZA_FAILPOINT=name, name@K (the K-th hit), name@K+ (and every later one); after the number :kill, :enospc or :eio.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import dataclass

from cadenza.errors import ConfigError

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # either ends a process at once on Windows, with this exit code
_FORM = re.compile(r"(?P<name>[^@]+)(@(?P<at>[1-9]\d*)(?P<onwards>\+)?(:(?P<action>kill|stop|enospc|eio))?)?")


@dataclass
class Failpoint:
    """An armed point: the K-th hit acts, with `+` every later one too."""

    name: str
    at: int = 1
    onwards: bool = False
    action: str = "kill"
    hits: int = 0

    def hit(self) -> None:
        """Count a hit, and act if it is the one."""
        self.hits += 1
        if self.hits < self.at or (self.hits > self.at and not self.onwards):
            return
        if self.action in ("kill", "stop"):
            os.kill(os.getpid(), KILL if self.action == "kill" else signal.SIGSTOP)
            return
        number = errno.ENOSPC if self.action == "enospc" else errno.EIO
        raise OSError(number, os.strerror(number), f"failpoint {self.name}")


def parse(text: str) -> Failpoint | None:
    """Return the failpoint that a value of CADENZA_FAILPOINT describes; None for an empty value."""
    if not text:
        return None
    form = _FORM.fullmatch(text)
    if form is None:
        raise ConfigError(f"CADENZA_FAILPOINT='{text}': write name, name@K or name@K:kill|stop|enospc|eio")
    return Failpoint(form["name"], int(form["at"] or 1), bool(form["onwards"]), form["action"] or "kill")


armed = parse(os.environ.get("CADENZA_FAILPOINT", ""))


def failpoint(name: str) -> None:
    """Mark a point; do nothing unless CADENZA_FAILPOINT names it."""
    if armed is not None and armed.name == name:
        armed.hit()
