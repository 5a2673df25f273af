"""Installs clients into a cache folder, once: an environment of uv's for each of Python's, a folder
of npm's for Node's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from tests.clients.catalog import Client

PYTHON: Final = "3.11"
LIMIT: Final = 900  # seconds


class NotInstalledError(Exception):
    """A client cannot be installed; the text says why."""


def place_of(client: Client, cache: Path) -> Path:
    """Where *client* is, or would be."""
    if client.is_node:
        return cache / ("node-" + client.package.split(" ")[0].replace("/", "-").strip("@"))
    return cache / f"python-{client.package}"


def version_of(client: Client, cache: Path) -> str | None:
    """The version that is installed in *cache*."""
    place = place_of(client, cache)
    if client.is_node:
        about = place / "node_modules" / client.package.split(" ")[0] / "package.json"
        return json.loads(about.read_text())["version"] if about.exists() else None
    name = client.package.replace("-", "_")
    found = sorted(place.glob(f"lib/python*/site-packages/{name}-*.dist-info"))
    return found[-1].name.removesuffix(".dist-info").rpartition("-")[2] if found else None


def install(client: Client, cache: Path, upgrade: bool = False) -> str:
    """Install *client* into *cache* if it is not there, or *upgrade* it; its version. Raises
    `NotInstalledError`."""
    if not upgrade and (there := version_of(client, cache)):
        return there
    place = place_of(client, cache)
    place.mkdir(parents=True, exist_ok=True)
    if client.is_node:
        (place / "package.json").write_text('{"private": true}\n')
        packages = [f"{name.split(' ')[0]}@latest" for name in client.packages]
        _run("npm", "install", "--no-fund", "--no-audit", "--prefix", str(place), *packages)
    else:
        python = str(place / "bin" / "python")
        if not Path(python).exists():
            _run("uv", "venv", "--quiet", "--no-project", "--python", PYTHON, str(place))
        _run("uv", "pip", "install", "--quiet", "--upgrade", "--python", python, *client.packages)
    if (version := version_of(client, cache)) is None:
        raise NotInstalledError(f"{client.package} was installed, and is not there")
    return version


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except FileNotFoundError:
        raise NotInstalledError(f"there is no '{command[0]}' on this machine") from None
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"{command[0]} took longer than {LIMIT} s") from None
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NotInstalledError(f"{command[0]}: {why[0] if why else done.returncode}")
