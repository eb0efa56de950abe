"""A PostgreSQL server for tests, if Debian's package is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OWNER = "postgres"


def installed() -> list[Path]:
    """Return the folders with initdb and pg_ctl, the newest last."""
    return sorted(path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def as_owner() -> list[str]:
    """Return the command prefix that runs as the server's user, because the server refuses to run as root."""
    return ["runuser", "-u", OWNER, "--"] if os.geteuid() == 0 else []


@contextmanager
def server() -> Iterator[str]:
    """Start a server with an empty database; yield its URL. Its socket is in a folder that is deleted at the end."""
    if not installed():
        pytest.skip("PostgreSQL is not installed (apt install postgresql)")
    bin, prefix = installed()[-1], as_owner()
    place = Path(tempfile.mkdtemp(prefix="cadenza-postgres-"))
    data = place / "data"
    try:
        if prefix:
            shutil.chown(place, OWNER)
        init = [*prefix, str(bin / "initdb"), "-D", str(data), "-A", "trust", "-U", OWNER, "--no-sync", "--no-locale"]
        subprocess.run([*init, "-E", "UTF8"], check=True, capture_output=True, cwd=place)
        options = f"-c listen_addresses='' -c unix_socket_directories={place} -c fsync=off -c max_connections=100"
        start = [*prefix, str(bin / "pg_ctl"), "-D", str(data), "-w", "-l", str(place / "log"), "-o", options, "start"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=place)
        try:
            yield f"postgresql://{OWNER}@/postgres?host={place}"
        finally:
            stop = [*prefix, str(bin / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, capture_output=True, cwd=place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
