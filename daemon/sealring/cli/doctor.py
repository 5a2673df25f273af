"""`sealring doctor`: looks at one machine of a ring, and says what is not right and what mends it.

It needs no ring and no running node: it reads the node's files, dials the other members as far as
TCP, and asks the node of this machine if there is one. A connection that it opens says nothing and
is closed at once, which the other node takes for a dial that was abandoned.

Each check gives findings. A finding's *facts* are numbers and codes that name nobody: `--collect`
writes these alone.
"""

from __future__ import annotations

import json as json_text
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import psutil  # type: ignore[import-untyped]
from sealring_protocol.codec.messages import Backend
from sealring_protocol.security.identity import node_id
from sealring_protocol.security.roster import SignedRoster
from sealring_trio.errors import FOUND_WRONG, UserError
from sealring_trio.fetching.hub import Hub
from sealring_trio.files.key_files import WRITABLE, others_may, read_key, read_public_key
from sealring_trio.files.models import describe_model, find_model
from sealring_trio.files.rosters import DAY, WARNING_DAYS, RosterStore, left, seconds_left
from sealring_trio.node.service import check_member, check_model, needs_no_engine, this_build
from sealring_trio.units import parse_address, wall_ms

from sealring.cli.members import found_beside
from sealring.cli.options import AsJson, OwnConfig
from sealring.files.cluster import write_new
from sealring.files.config import Config, own_config
from sealring.generation.status import build_info
from sealring.http.connections import raise_limit
from sealring.joining.fingerprint import fingerprint
from sealring.local.node_socket import NobodyThere, answer_of
from sealring.output import print_json, visible

OK, WRONG, UNSEEN, NOTE = "ok", "wrong", "unseen", "note"
"""What a finding says: it is right, it is not, it could not be looked at, or it is for people to
know and no fault."""

COULD_NOT_LOOK: Final = 1
DIAL_SECONDS: Final = 3.0
NODE_SECONDS: Final = 5.0
FEW_DESCRIPTORS: Final = 1024

_VPN: Final = ("tun", "tap", "utun", "wg", "ppp", "ipsec", "tailscale", "zt")
"""How the names of interfaces begin that are those of a VPN."""

_BACKENDS: Final = "from sealring_model.loading.structure import backends; print(backends())"


@attrs.frozen
class Finding:
    """What the check *check* found: its *state*, in words *what*, and what mends it (*advice*)."""

    check: str
    state: str
    what: str
    advice: str = ""
    facts: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Patient:
    """A machine of a ring: its config, its verified roster, and what its node says, if it runs."""

    config: Config
    roster: SignedRoster | None
    own: bytes
    status: Mapping[str, Any] | None

    @property
    def is_witness(self) -> bool:
        """Whether it is a witness, by its roster."""
        return self.roster is not None and needs_no_engine(self.roster.roster, self.own)

    @property
    def linked(self) -> dict[int, str]:
        """The names of the members to which a control link is up, by rank."""
        peers = [] if self.status is None else self.status["peers"]
        return {peer["rank"]: peer["name"] for peer in peers if peer["control"]}


def doctor(*, config: OwnConfig = None, collect: Path | None = None, json: AsJson = False) -> None:
    """Look at this machine of a ring, and say what is not right and what mends it.

    It works whether or not the ring does, and on any of its machines: it reads
    the node's files, dials the other members, and asks this machine's node if
    it runs. It measures no bandwidth. Clocks are compared by the links that are
    up; no time server is asked.

        sealring doctor
        sealring doctor --config desk.toml --json
        sealring doctor --collect report.json

    The exit code is that of the worst finding: 0 all is right, 1 something
    could not be looked at, 3 something is not right.

    Next: run it on the other machines. What they see of this one is theirs to
    say.

    Parameters
    ----------
    collect
        Write a report to this new file: versions, states and numbers, without
        names, addresses, paths and keys.
    """
    findings = examine(config)
    if collect is not None:
        _write_report(collect, findings)
    if json:
        print_json({"findings": [attrs.asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    states = {finding.state for finding in findings}
    if WRONG in states:
        sys.exit(FOUND_WRONG)
    if UNSEEN in states:
        sys.exit(COULD_NOT_LOOK)


def examine(path: Path | None) -> list[Finding]:
    """What all checks find with the config at *path*, or the default one."""
    machine = [*_limits(), *_aes()]
    try:
        config = own_config(path)
    except UserError as error:
        return [*_versions(), *machine, Finding("config", WRONG, error.what, error.advice)]
    found, own, roster = _identity(config)
    said, status = _ask(config)
    patient = Patient(config, roster, own, status)
    valid = Finding("config", OK, f"{config.path} is valid")
    versions = _versions(witness=patient.is_witness)
    findings = [*versions, *machine, valid, *found, *said]
    checks: tuple[tuple[str, Callable[[Patient], Iterator[Finding]]], ...] = (
        ("model", _model),
        ("collectives", _collectives),
        ("node", _node),
        ("clock", _clock),
        ("reach", _reach),
    )
    for name, check in checks:
        try:
            findings += check(patient)
        except OSError as error:
            what = f"the system does not let it look: {error.strerror or error}"
            findings.append(Finding(name, UNSEEN, what))
    return findings


# ------------------------------------------------------------- this machine


def _versions(*, witness: bool = False) -> Iterator[Finding]:
    info = build_info()
    own = this_build()
    text = f"sealring {own.text}, Python {info['python']}, MLX {info['mlx']}"
    missing = info["mlx"] == "none" and not witness
    advice = "Install sealring with MLX for this machine: see the README." if missing else ""
    facts = {**info, "steps": [own.oldest, own.newest], "system": platform.system()}
    yield Finding("versions", WRONG if missing else OK, text, advice, facts)


def _limits() -> Iterator[Finding]:
    limit = raise_limit()  # as a node does
    few = limit < FEW_DESCRIPTORS
    text = f"a node may open {limit} files and connections"
    advice = "Raise the hard limit: LimitNOFILE= of its service, or ulimit -Hn, as root."
    state, advice = (WRONG, advice) if few else (OK, "")
    yield Finding("descriptors", state, text, advice, {"limit": limit})


def _aes() -> Iterator[Finding]:
    known = has_aes()
    if known is None:
        yield Finding("aes", NOTE, "this system does not say whether its processor has AES")
        return
    text = "the processor computes AES itself" if known else "the processor has no AES of its own"
    advice = 'suites = ["chacha20-poly1305"] in every config is faster there.' if not known else ""
    yield Finding("aes", OK if known else NOTE, text, advice, {"hardware": known})


def has_aes(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Whether the processor computes AES; None if the system does not say. Apple's all do."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return True
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return None
    flags = [line.partition(":")[2].split() for line in lines if line.startswith(_FLAGS)]
    return "aes" in flags[0] if flags else None


_FLAGS: Final = ("flags", "Features")


# ------------------------------------------------------------- the node's files


def _identity(config: Config) -> tuple[list[Finding], bytes, SignedRoster | None]:
    """What is found of the key, the state folder and the roster; with the node's id, and the
    roster."""
    findings = []
    own, roster = b"", None
    try:
        own = node_id(read_key(config.key).public_key)
        findings.append(Finding("key", OK, f"{config.key} is a private key, and yours alone"))
    except UserError as error:
        findings.append(Finding("key", WRONG, error.what, error.advice))
    findings += _state(config)
    try:
        coordinator = read_public_key(config.coordinator)
        roster = RosterStore(config.state, coordinator).newest(config.roster, wall_ms())
    except UserError as error:
        findings.append(Finding("roster", WRONG, error.what, error.advice))
    else:
        findings += [_roster(config, roster, own), _spare(roster)]
    return findings, own, roster


def _state(config: Config) -> Iterator[Finding]:
    """Whether others may write where the node keeps its roster and its API keys."""
    try:
        fault = others_may(config.state.stat(), WRITABLE)
    except FileNotFoundError:
        yield Finding("state", NOTE, f"{config.state} is not there yet: no node has run with it")
        return
    except OSError as error:
        yield Finding("state", UNSEEN, f"{config.state} cannot be looked at: {error.strerror}")
        return
    if fault:
        what = f"the state folder {config.state} is not yours alone: {fault}"
        advice = f"As the user of the node: chmod 700 {config.state}; as another, this is no fault."
        yield Finding("state", WRONG, what, advice)
    else:
        yield Finding("state", OK, f"nobody else may write in {config.state}")


def _roster(config: Config, signed: SignedRoster, own: bytes) -> Finding:
    roster, now = signed.roster, wall_ms()
    seconds = seconds_left(roster, now)
    text = f"roster {roster.serial} of {roster.name}, {len(roster.members)} members, "
    text += left(roster, now)
    facts = {"members": len(roster.members), "serial": roster.serial, "left_s": int(seconds)}
    renew = "Sign it again: sealring roster renew, and sealring roster install."
    try:
        if own:
            check_member(config, roster, own)
    except UserError as error:
        return Finding("roster", WRONG, error.what, error.advice, facts)
    if now < roster.issued_ms:
        what = "the roster was signed later than this machine's clock says"
        return Finding("roster", WRONG, what, "Set the clock right.", facts)
    soon = seconds < WARNING_DAYS * DAY and config.coordinator_key is None
    if seconds <= 0 or soon:
        return Finding("roster", WRONG, text, renew, facts)
    return Finding("roster", OK, text, "", facts)


def _spare(signed: SignedRoster) -> Finding:
    made = signed.roster.appointment
    if made is None:
        what = (
            "this cluster has no spare coordinator: if the coordinator's key is lost, it ends when "
            "its roster expires"
        )
        return Finding("spare", NOTE, what, "Where that key is: sealring coordinator spare FILE")
    text = f"there is a spare coordinator, {fingerprint(made.spare)}"
    return Finding("spare", OK, text, "", {"coordinator_number": made.number})


def _model(patient: Patient) -> Iterator[Finding]:
    config = patient.config
    if patient.is_witness:
        yield Finding("model", OK, "this machine is a witness, which needs neither model nor MLX")
        return
    try:
        folder = find_model(config.needed_model, Hub(offline=True))
        info = describe_model(folder, config.adapter)
    except UserError as error:
        fetched = config.fetch == "members"  # which a node does when it begins
        yield Finding("model", NOTE if fetched else WRONG, error.what, error.advice)
        return
    digest = info.digest.hex()[:16]
    yield Finding("model", OK, f"{folder} has the digest {digest}...", "", {"digest": digest})
    try:
        if patient.roster is not None:
            check_model(config, patient.roster.roster, info)
    except UserError as error:
        yield Finding("model", WRONG, error.what, error.advice)


def _collectives(patient: Patient) -> Iterator[Finding]:
    """Which back ends of tensor parallelism MLX has here. Another process imports it."""
    if patient.is_witness:
        return
    command = [sys.executable, "-P", "-c", _BACKENDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        text = f"MLX does not start: {' '.join(last) or 'it says nothing'}"
        yield Finding("collectives", WRONG, text, "Install MLX for this machine again.")
        return
    bits = int(done.stdout)
    names = [backend.name.lower() for backend in Backend if bits >> backend & 1]
    text = f"tensor parallelism by {', '.join(names)}" if names else "no tensor parallelism"
    needed = patient.config.strategy == "tp" and not names
    advice = "This MLX has no collectives: set strategy = 'pp' at the head." if needed else ""
    facts = {"backends": names}
    yield Finding("collectives", WRONG if needed else OK, text, advice, facts)


# ------------------------------------------------------------- the running node


def _ask(config: Config) -> tuple[list[Finding], Mapping[str, Any] | None]:
    """What this machine's node says of itself; or a finding, why it says nothing."""
    try:
        return [], answer_of(config.control_socket, "status", seconds=NODE_SECONDS)
    except NobodyThere:
        text, advice = "no node runs with this config", "Start it: sealring up."
        return [Finding("node", NOTE, text, advice)], None
    except UserError as error:  # it starts, or hangs
        return [Finding("node", UNSEEN, error.what, error.advice)], None


def _node(patient: Patient) -> Iterator[Finding]:
    if (status := patient.status) is None:
        return
    facts = {"rank": status["rank"], "world": status["world"], "state": status["state"]}
    if not status["why"]:
        yield Finding("node", OK, f"the node runs: {status['state']}", "", facts)
    for why in status["why"]:
        about = {**facts, "cause": why["cause"]}
        yield Finding("node", WRONG, why["text"], why["advice"], about)
    own = this_build()
    for peer in status["peers"]:
        version = peer.get("version", "")
        if version not in ("", own.text):
            text = f"{peer['name']} runs sealring {version}, this machine {own.text}"
            yield Finding("versions", NOTE, text, "", {"rank": peer["rank"], "runs": version})
    if status["version"] != own.version:
        text = f"the node still runs sealring {status['version']}, and {own.version} is installed"
        yield Finding("versions", WRONG, text, "Start the node again.")


def _clock(patient: Patient) -> Iterator[Finding]:
    if linked := patient.linked:
        text = f"within two minutes of {', '.join(linked.values())}, or there would be no link"
        yield Finding("clock", OK, text, "", {"compared": len(linked)})
    else:
        text = "compared with nobody: no link is up, and no time server is asked"
        yield Finding("clock", NOTE, text, "Compare 'date' on the machines.", {"compared": 0})


# ------------------------------------------------------------- the other members


def _reach(patient: Patient) -> Iterator[Finding]:
    if patient.roster is None:
        yield Finding("reach", UNSEEN, "without a valid roster nobody's address is known")
        return
    found = found_beside(patient.status)
    for rank, member in enumerate(patient.roster.roster.members):
        if member.id == patient.own:
            continue
        linked = rank in patient.linked
        beside = found.get(member.name, [])
        dials = [_dialed(address) for address in member.addresses]
        for at, (address, dial) in enumerate(zip(member.addresses, dials, strict=True)):
            yield _reached(rank, at, f"{member.name} at {address}", dial, linked)
        if beside and all(dial.why for dial in dials):
            text = f"{member.name} answers at {beside[0]}, which the roster does not have"
            advice = f"Give it that address: sealring machines address {member.name} {beside[0]}"
            yield Finding("reach", NOTE, text, advice, {"rank": rank})
        if not member.addresses:
            text = f"{member.name} has no address in the roster, so that it has to dial"
            yield Finding("reach", OK if linked else NOTE, text, "", {"rank": rank})


@attrs.frozen
class _Dial:
    """A connection that was opened in *ms* through *interface*; or *why* it was not."""

    ms: float = 0.0
    interface: str = ""
    why: str = ""


def _dialed(address: str) -> _Dial:
    try:
        host, port = parse_address(address)
        began = time.monotonic()
        with socket.create_connection((host, port), DIAL_SECONDS) as connection:
            ms = (time.monotonic() - began) * 1000
            return _Dial(ms, _interface(connection.getsockname()[0]))
    except TimeoutError:
        return _Dial(why=f"no answer within {DIAL_SECONDS:.0f} s")
    except (OSError, ValueError) as error:
        return _Dial(why=getattr(error, "strerror", None) or str(error))


def _interface(own: str) -> str:
    """The name of the interface that has the address *own*; empty if the system does not say."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == own for each in addresses):
            return str(name)
    return ""


def _reached(rank: int, at: int, who: str, dial: _Dial, linked: bool) -> Finding:
    facts: dict[str, Any] = {"rank": rank, "address": at, "linked": linked}
    if not dial.why:
        vpn = dial.interface.startswith(_VPN)
        through = f" through {dial.interface}{' (a VPN)' if vpn else ''}" if dial.interface else ""
        text = f"{who} takes connections, in {dial.ms:.1f} ms{through}"
        text += "; a link is up" if linked else ""
        facts |= {"ms": round(dial.ms, 1), "vpn": vpn}
        advice = "A direct network is faster: give that address in the roster, too." if vpn else ""
        return Finding("reach", OK, text, advice, facts)
    if linked:
        text = f"{who} cannot be dialed from here ({dial.why}); a link is up even so"
        return Finding("reach", NOTE, text, "", facts)
    advice = (
        "See that its node runs, that the address is its 'listen', and that no firewall drops it; "
        "run 'sealring doctor' there, too."
    )
    return Finding("reach", WRONG, f"{who} cannot be reached: {dial.why}", advice, facts)


# ------------------------------------------------------------- what is shown


def _print(finding: Finding) -> None:
    print(f"{finding.state:<7} {finding.check:<12} {visible(finding.what)}")
    if finding.advice:
        print(f"{'':<21}{visible(finding.advice)}")


def _write_report(path: Path, findings: list[Finding]) -> None:
    """Write what names nobody of *findings* to the new file *path*. Raises `UserError`."""
    report = {
        "made_ms": wall_ms(),
        "findings": [{"check": each.check, "state": each.state, **each.facts} for each in findings],
    }
    write_new(path, f"{json_text.dumps(report, indent=2)}\n".encode(), 0o600)
