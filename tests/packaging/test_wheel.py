"""The built wheel contains its YAML files and works outside the source tree."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_works_in_a_new_virtual_environment(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert "cadenza/conf/experiment/CartPole-v1/ppo.yaml" in names
    assert "cadenza/py.typed" in names
    assert {"cadenza/lab/inspector/page/app.js", "cadenza/lab/plot.js"} <= set(names)
    assert not [name for name in names if name.startswith("tests")]

    # A fresh environment with this one's third-party packages within reach: installing torch again takes minutes.
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = [str(python), "-c", "import cadenza; print(cadenza.__file__)"]
    assert subprocess.check_output(where, cwd=tmp_path, text=True).startswith(str(site))
    command = [str(home / "bin" / "cadenza"), "train", "CartPole-v1:ppo", "--max-timesteps", "512", "--quiet"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "runs" / "@last").exists()
