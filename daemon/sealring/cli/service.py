"""`sealring service`: a node that the machine itself starts, watches and restarts.

The machine's own manager does all of that: systemd, or launchd on macOS. A unit or a property list
is written, with a line that says by whom; what has no such line is neither replaced nor removed.
Neither kind of file has a secret: the node's command names its config alone.

- A node that fails is started again, without an end; one whose config is wrong (exit code 2) is
  not, under systemd.
- The watchdog is systemd's own, which hears from the node's event loop (`service.notify`): the same
  as ``/livez``, without a timer, a client and a port. launchd has none.
- Stopping may take as long as the config's `drain`, and `MARGIN`. The signal goes to the node
  alone, for its engines have to work until it has ended.
- Where memory runs out, an engine goes first (`sealring_trio.processes.launcher`), and the node
  starts another: the manager must not end the node for that (``OOMPolicy``).
"""

from __future__ import annotations

import math
import os
import plistlib
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
import cyclopts
import platformdirs
from sealring_trio.errors import OperationError, UserError
from sealring_trio.processes.interpreter import run_module

from sealring.cli.options import Positive
from sealring.files.config import Config, config_path, own_config
from sealring.local.node_socket import is_claimed

ManagerName = Literal["systemd", "launchd"]

MARGIN: Final = 30
"""Seconds beyond the config's `drain` that a node may take to stop."""

WATCHDOG: Final = 60
"""Seconds without a word from the node's event loop after which systemd starts it again."""

RESTART: Final = 5
"""Seconds before a node that failed is started again."""

MARK: Final = "Written by 'sealring service install'; 'sealring service uninstall' removes it."

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_KEPT: Final = "HF_HOME"
"""The variable of the installing shell that the node gets too: where the hub's models are."""

InstalledConfig = Annotated[
    Path | None, cyclopts.Parameter(help="The config that it was installed with.")
]
ManagerChoice = Annotated[
    ManagerName | None,
    cyclopts.Parameter(help="'systemd' or 'launchd'; this machine's if left out."),
]
ServiceName = Annotated[
    str | None, cyclopts.Parameter(help="What it is called, if it was given a name.")
]

app = cyclopts.App(
    name="service",
    help="""\
Have this machine start a node, watch it, and start it again.

On Linux systemd does it: as a unit of your own, or of the machine with
--system. On macOS launchd does: as a daemon of the machine, or as an agent
of your own with --user.

    sealring service install desk.toml
    sealring service logs desk.toml --follow

Next: sealring status --config desk.toml
""",
)


@attrs.frozen
class Service:
    """What is installed: the node of *config*. It runs as *account*; empty for whoever installs
    it."""

    config: Config
    account: str

    @property
    def command(self) -> list[str]:
        """What starts the node."""
        return run_module("sealring", "up", str(self.config.path.resolve()))

    @property
    def stop_seconds(self) -> int:
        """How long the node may take to stop."""
        return math.ceil(self.config.drain) + MARGIN

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the node needs of the shell that installs it."""
        return {_KEPT: os.environ[_KEPT]} if os.environ.get(_KEPT) else {}


# ---------------------------------------------------------------------- systemd


@attrs.frozen
class Systemd:
    """A service of Linux's manager, called *name*: the machine's (*system*) or a user's. The log is
    the journal's."""

    name: str
    system: bool

    @property
    def path(self) -> Path:
        """The unit's file."""
        folder = Path("/etc") if self.system else platformdirs.user_config_path()
        kind = "system" if self.system else "user"
        return folder / "systemd" / kind / f"{self.name}.service"

    def text(self, service: Service) -> str:
        """The unit."""
        if self.system:
            unit = ["Wants=network-online.target", "After=network-online.target"]
            more = [f"User={_word(service.account)}", "NoNewPrivileges=yes", *_cuda_first()]
            target = "multi-user.target"
        else:
            unit, more, target = [], [], "default.target"
        more += [f"Environment={_word(f'{k}={v}')}" for k, v in service.environment.items()]
        return "\n".join(
            [
                f"# {MARK}",
                "[Unit]",
                f"Description=sealring, the node of {_escaped(str(service.config.path.resolve()))}",
                *unit,
                "StartLimitIntervalSec=0",
                "",
                "[Service]",
                "Type=notify",
                "NotifyAccess=main",
                f"ExecStart={' '.join(map(_word, service.command))}",
                "ExecReload=/bin/kill -HUP $MAINPID",
                f"SyslogIdentifier={_escaped(self.name)}",
                *more,
                "UMask=0077",
                "Restart=on-failure",
                f"RestartSec={RESTART}",
                f"RestartPreventExitStatus={UserError.exit_code}",
                f"WatchdogSec={WATCHDOG}",
                "# A model may have to be fetched first.",
                "TimeoutStartSec=infinity",
                f"# The config's drain, and {MARGIN} s.",
                f"TimeoutStopSec={service.stop_seconds}",
                "# Engines work until the node has ended, and it starts those that end before.",
                "KillMode=mixed",
                "OOMPolicy=continue",
                "",
                "[Install]",
                f"WantedBy={target}",
                "",
            ]
        )

    def start(self) -> list[list[str]]:
        """The commands that take up its file, and start it now and at each boot."""
        begin = [*self._control, "restart", "--no-block", self.name]
        return [[*self._control, "daemon-reload"], [*self._control, "enable", self.name], begin]

    def stop(self) -> list[list[str]]:
        """The commands that stop it, and take it from the next boot."""
        return [[*self._control, "disable", "--now", self.name]]

    def forget(self) -> list[list[str]]:
        """The commands after its file has been removed."""
        return [[*self._control, "daemon-reload"]]

    def show(self) -> list[str]:
        """The command that shows how it is."""
        return [*self._control, "--no-pager", "--full", "status", self.name]

    def read(self, config: Path, lines: int, *, follow: bool) -> list[str]:
        """The command that shows the last *lines* of its log."""
        # Quiet: that the system's messages are not shown is no news to who asks for the user's own.
        unit = f"{self.name}.service"
        which = [f"--unit={unit}"] if self.system else ["--quiet", f"--user-unit={unit}"]
        more = ["--follow"] if follow else []
        return ["journalctl", "--no-pager", f"--lines={lines}", *more, *which]

    @property
    def _control(self) -> list[str]:
        return ["systemctl", *([] if self.system else ["--user"])]


def _cuda_first() -> list[str]:
    """What prepares an NVIDIA GPU as the machine begins. CUDA has this set-user-id program do it at
    its first use, which it cannot for a node that gains no right (``NoNewPrivileges``)."""
    tool = shutil.which("nvidia-modprobe")
    return [] if tool is None else [f"ExecStartPre=-+{_word(tool)} -c 0 -u"]


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """*text* as one word of a unit's line."""
    safe = _escaped(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{safe}"' if re.search(r"[^\w@%+=:,./-]", text) else safe


# ---------------------------------------------------------------------- launchd


@attrs.frozen
class Launchd:
    """A service of macOS's manager, as `Systemd` is one. The log is a file beside the config."""

    name: str
    system: bool

    @property
    def path(self) -> Path:
        """The property list."""
        agents = Path.home() / "Library/LaunchAgents"
        return (Path("/Library/LaunchDaemons") if self.system else agents) / f"{self.name}.plist"

    def text(self, service: Service) -> str:
        """The property list."""
        log = str(log_of(service.config.path))
        known = {
            "Label": self.name,
            "ProgramArguments": [*service.command, "--log-file", log],
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART,
            "ExitTimeOut": service.stop_seconds,
            # Else the system gives it less of the processor and the disk.
            "ProcessType": "Interactive",
            "WorkingDirectory": str(service.config.path.resolve().parent),
            "Umask": 0o077,
            # What is said before the log begins, or as the interpreter ends.
            "StandardErrorPath": log,
        }
        if self.system:
            known["UserName"] = service.account
        if service.environment:
            known["EnvironmentVariables"] = service.environment
        head, mark, rest = plistlib.dumps(known, sort_keys=False).decode().partition("<plist")
        return f"{head}<!-- {MARK} -->\n{mark}{rest}"

    def start(self) -> list[list[str]]:
        """The command that takes up its file, and starts it."""
        return [["launchctl", "bootstrap", self._domain, str(self.path)]]

    def stop(self) -> list[list[str]]:
        """The command that stops it."""
        return [["launchctl", "bootout", f"{self._domain}/{self.name}"]]

    def forget(self) -> list[list[str]]:
        """No command: launchd reads what is there."""
        return []

    def show(self) -> list[str]:
        """The command that shows how it is."""
        return ["launchctl", "print", f"{self._domain}/{self.name}"]

    def read(self, config: Path, lines: int, *, follow: bool) -> list[str]:
        """The command that shows the last *lines* of its log."""
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(log_of(config))]

    @property
    def _domain(self) -> str:
        return "system" if self.system else f"gui/{os.getuid()}"


def log_of(config: Path) -> Path:
    """The log file of the node of *config* under launchd."""
    return config.resolve().with_suffix(".log")


# ---------------------------------------------------------------------- the commands


Manager = Systemd | Launchd
MANAGERS: Final[dict[ManagerName, type[Manager]]] = {"systemd": Systemd, "launchd": Launchd}


@app.command
def install(
    config: Path | None = None,
    *,
    system: bool = False,
    user: bool = False,
    account: str | None = None,
    name: str | None = None,
    manager: ManagerChoice = None,
    dry_run: bool = False,
) -> None:
    """Have this machine start the node of a config, now and at each boot.

    A node that fails is started again after five seconds. It has the drain
    time of its config, and half a minute, to stop. Install it again after
    you have changed 'drain', or moved sealring.

        sealring service install desk.toml
        sudo sealring service install desk.toml --system

    A service of the machine runs as the user who owns the node's key.

    Parameters
    ----------
    config
        The node's config file, or the folder that has it as node.toml; that
        of the default folder if left out.
    system
        A service of the machine, which takes root. The default on macOS.
    user
        A service of your own. The default on Linux.
    account
        User that a service of the machine runs as; the owner of the node's
        key if left out.
    name
        What the service is called; sealring- and the name of the config file
        if left out.
    dry_run
        Print what would be written and run, and do nothing.
    """
    kind, given, name = _kind(manager), name, _name(config, name)
    if system and user:
        raise UserError("--system and --user exclude each other", "Give one of the two.")
    system = system or (kind == "launchd" and not user)
    if account is not None and not system:
        raise UserError("a service of your own runs as you", "Leave --account out.")
    settings = own_config(config)
    account = (account or _owner(settings)) if system else ""
    files = MANAGERS[kind](name, system)
    path, text = files.path, files.text(Service(settings, account))
    if dry_run:
        print(f"# {path}\n{text}# Then: {'; '.join(map(' '.join, files.start()))}")
        return
    _check_own(path)
    _check_can(kind, system=system)
    if kind == "launchd" and path.exists():
        _try(files.stop())
    fresh = not path.exists()
    taken = fresh and is_claimed(settings.state)
    _write(path, text)
    try:
        for command in files.start():
            _run(command)
    except OperationError:
        if fresh:
            path.unlink()
        raise
    print(f"{name} is installed ({path}) and starts.")
    if taken:
        print(
            "A node of this config runs already, which is not this service's. End it (Ctrl-C where "
            "it was started); until then the service cannot begin, and tries again."
        )
    which = ["--name", given] if given else [str(settings.path.resolve())]
    print(f"See: sealring service status {shlex.join(which)}")
    if kind == "systemd" and not system:
        me = pwd.getpwuid(os.getuid()).pw_name
        if not Path("/var/lib/systemd/linger", me).exists():
            print(
                "It ends when you log out, and begins when you log in. To have it run always: "
                f"sudo loginctl enable-linger {me}"
            )


@app.command
def uninstall(
    config: InstalledConfig = None, *, name: ServiceName = None, manager: ManagerChoice = None
) -> None:
    """Stop a service that 'sealring service install' made, and remove it.

    The config, keys, state and logs of the node stay.
    """
    kind, name = _kind(manager), _name(config, name)
    files = _installed(kind, name)
    path = files.path
    _check_own(path)
    _check_can(kind, system=files.system)
    if kind == "launchd":
        _try(files.stop())  # it may not be loaded
    else:
        for command in files.stop():
            _run(command)
    try:
        path.unlink()
    except OSError as error:
        raise OperationError(f"cannot remove {path}: {error.strerror}", "Remove it.") from None
    for command in files.forget():
        _run(command)
    print(f"{name} is removed ({path})")
    if (more := path.with_name(f"{path.name}.d")).exists():
        print(f"Your own changes of it stay: {more}")


@app.command
def status(
    config: InstalledConfig = None, *, name: ServiceName = None, manager: ManagerChoice = None
) -> int:
    """Show what the service manager knows of a service.

    How the node itself is: sealring status --config CONFIG
    """
    return _show(_installed(_kind(manager), _name(config, name)).show())


@app.command
def logs(
    config: InstalledConfig = None,
    *,
    follow: bool = False,
    lines: Positive = 50,
    name: ServiceName = None,
    manager: ManagerChoice = None,
) -> int:
    """Show the log of a service.

    Parameters
    ----------
    follow
        Go on as lines come, until Ctrl-C.
    lines
        How many of the last lines.
    """
    files = _installed(_kind(manager), _name(config, name))
    return _show(files.read(config_path(config), lines, follow=follow))


def _kind(given: ManagerName | None) -> ManagerName:
    return given or ("launchd" if sys.platform == "darwin" else "systemd")


def _name(config: Path | None, given: str | None) -> str:
    """What the service of *config* is called. Raises `UserError`."""
    name = given or f"sealring-{config_path(config).stem}"
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot be a service's name",
            "Give one of up to 64 letters, digits, dots, hyphens and underscores: --name",
        )
    return name


def _owner(config: Config) -> str:
    """The user who owns the node's key. Raises `UserError`."""
    try:
        found = config.key.stat().st_uid
    except OSError as error:
        raise UserError(
            f"cannot look at the node's key {config.key}: {error.strerror}",
            "Make it first (sealring keygen), or say which user the node runs as: --account",
        ) from None
    if found == 0:
        raise UserError(
            f"the node's key {config.key} is root's, and a node should not run as root",
            "Make a user for it (useradd --system sealring), and give it the node's folder "
            "(chown -R sealring).",
        )
    try:
        return pwd.getpwuid(found).pw_name
    except KeyError:
        raise UserError(
            f"the node's key {config.key} belongs to the user {found}, whom nobody knows here",
            "Say which user the node runs as: --account",
        ) from None


def _check_own(path: Path) -> None:
    """Raise `UserError` if there is a file at *path* that install did not write."""
    try:
        text = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "See who owns it.") from None
    if MARK not in text:
        raise UserError(
            f"{path} was not written by 'sealring service install'",
            "Choose another name with --name, or see to that file yourself.",
        )


def _check_can(kind: ManagerName, *, system: bool) -> None:
    """Raise `UserError` if this machine or this user cannot have the service."""
    tool = "systemctl" if kind == "systemd" else "launchctl"
    if shutil.which(tool) is None:
        raise UserError(
            f"there is no {tool} here, and so no {kind}",
            "Start the node by what this machine has (sealring up), or see the files with "
            "--dry-run.",
        )
    if system and os.geteuid() != 0:
        raise UserError("a service of the machine is root's to install", "Run it with sudo.")


def _installed(kind: ManagerName, name: str) -> Manager:
    """The service *name*, which is there. Raises `UserError`."""
    for system in (False, True):
        if (files := MANAGERS[kind](name, system)).path.exists():
            return files
    raise UserError(
        f"there is no service {name} here",
        "Name the config that it was installed with, or its name with --name.",
    )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o644)
    except OSError as error:
        raise OperationError(
            f"cannot write {path}: {error.strerror}", "See who owns its folder."
        ) from None


def _run(command: Sequence[str]) -> None:
    """Run *command*. Raises `OperationError` with what it said if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise OperationError(f"'{' '.join(command)}' failed: {said}", "Put that right, and again.")


def _try(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        subprocess.run(command, check=False, capture_output=True)


def _show(command: Sequence[str]) -> int:
    """Run *command* for a person to see; its exit code. Raises `OperationError`."""
    try:
        return subprocess.run(command, check=False).returncode
    except FileNotFoundError:
        raise OperationError(f"there is no {command[0]} here", "See the manager itself.") from None
