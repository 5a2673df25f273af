"""The TOML file of the daemon: a node's, and what the head's API needs; and where it lies by
default, which is where the platform has the configs of a user."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import platformdirs
import pydantic
from sealring_trio.errors import UserError
from sealring_trio.files.config import (
    Address,
    FilePath,
    Listed,
    NodeFile,
    StrategyName,
    load_file,
)
from sealring_trio.files.key_files import decoded, is_there, read_file
from sealring_trio.units import format_address, is_unspecified

from sealring.files.origins import AllowedHosts, AllowedOrigins, check_host, check_origin

SharingName = Literal["connection", "off", "everyone"]
KeysName = Literal["everywhere", "beyond-loopback"]
SamplingName = Literal["model", "api"]

CONFIG_NAME: Final = "node.toml"
NO_API: Final = "off"
DEFAULT_API: Final = "127.0.0.1:7480"
DEFAULT_TIMEOUT: Final = 600.0
DEFAULT_DRAIN: Final = 30.0
REREAD: Final = ("aliases", "allowed_hosts", "allowed_origins", "resume_seconds", "timeout")
"""Keys that a running node reads again at a SIGHUP. All others count from its start on."""

MAX_ALLOWED: Final = 256
"""Names of `allowed_hosts` and `allowed_origins`, which each request is compared with."""


def _none_if_off(value: object) -> object:
    return None if value == NO_API else value


HostName = Annotated[str, pydantic.AfterValidator(check_host)]
OriginName = Annotated[str, pydantic.AfterValidator(check_origin)]


class Config(NodeFile):
    """What `sealring up` runs. *api* and *health* are None where there is none."""

    api: Annotated[Address | None, pydantic.BeforeValidator(_none_if_off)] = pydantic.Field(
        default=DEFAULT_API,
        validate_default=True,
        description="address of this machine's HTTP API and its page, or 'off'; a rank that is not "
        "the head passes requests on to it",
        examples=[f'"{DEFAULT_API}"'],
    )
    coordinator_key: FilePath | None = pydantic.Field(
        default=None,
        description="private key that signs rosters, where it lies on this machine: then this node "
        "renews the roster by itself, and 'sealring machines' signs with it",
        examples=['"coordinator.key"'],
    )
    door: Address | None = pydantic.Field(
        default=None,
        description="address at which machines knock that were invited, open only while an "
        "invitation is; if left out, that of 'listen' with the next port",
        examples=['"0.0.0.0:7471"'],
    )
    discover: bool = pydantic.Field(
        default=True,
        description="if false, this node neither announces itself in its private networks by "
        "multicast DNS nor looks there for other members and for machines that wait to be invited",
        examples=["false"],
    )
    health: Annotated[Address | None, pydantic.BeforeValidator(_none_if_off)] = pydantic.Field(
        default=NO_API,
        validate_default=True,
        description="address at which this rank answers /livez, /readyz and /metrics, to anybody "
        "and naming nobody, or 'off'",
        examples=['"127.0.0.1:9470"'],
    )
    aliases: Listed[Annotated[str, pydantic.Field(min_length=1, max_length=256)]] = pydantic.Field(
        default=(),
        max_length=64,
        description="more names of the model, for clients that ask for one that is not here; "
        "answers have the name that was asked for (head)",
        examples=['["gpt-4o", "gpt-4o-mini"]'],
    )
    api_keys: KeysName = pydantic.Field(
        default="everywhere",
        description="where API keys, once there are any, are asked for: 'everywhere', or "
        "'beyond-loopback' alone (head)",
        examples=['"beyond-loopback"'],
    )
    allowed_hosts: Listed[HostName] = pydantic.Field(
        default=(),
        max_length=MAX_ALLOWED,
        description="names besides loopback by which clients without a key may address the API: "
        "exact, or '*.' and a name for all below it; '*' for any, which lets every web page in",
        examples=['["host.docker.internal", "mymac.local"]'],
    )
    allowed_origins: Listed[OriginName] = pydantic.Field(
        default=(),
        max_length=MAX_ALLOWED,
        description="origins besides its own whose pages may use the API: exact, with '*.' before "
        "the host, or with the host '*' for schemes of programs; '*' for any",
        examples=['["https://chat.example.com", "app://obsidian.md", "vscode-webview://*"]'],
    )
    sampling: SamplingName = pydantic.Field(
        default="model",
        description="how answers are drawn where a request does not say: as the 'model' has it in "
        "its generation_config.json, or as OpenAI's 'api' has it, at temperature 1 and without "
        "cuts (head)",
        examples=['"api"'],
    )
    tls_certificate: FilePath | None = pydantic.Field(
        default=None,
        description="file of the certificate with which the API speaks TLS, in PEM, followed by "
        "those of its issuers; a renewed one is taken up within seconds",
        examples=['"desk.crt"'],
    )
    tls_key: FilePath | None = pydantic.Field(
        default=None,
        description="file of that certificate's private key, in PEM without a password",
        examples=['"desk-tls.key"'],
    )
    timeout: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] = pydantic.Field(
        default=DEFAULT_TIMEOUT,
        description="seconds that a request of the API may take (head)",
        examples=["600"],
    )
    resume_seconds: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = pydantic.Field(
        default=60.0,
        description="seconds for which an answer is made after its client has gone, if its request "
        "asked for that by an Idempotency-Key or 'background'; 0 keeps no answer (head)",
        examples=["300"],
    )
    drain: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = pydantic.Field(
        default=DEFAULT_DRAIN,
        description="seconds that requests under way may take to finish when the node is stopped",
        examples=["30"],
    )
    streams: int = pydantic.Field(
        default=1,
        ge=1,
        le=4096,
        description="how many answers at once the ring is to be fast for: by them the head chooses "
        "whether it is faster alone, and 'sealring plan' what it recommends (head)",
        examples=["8"],
    )
    prefix_sharing: SharingName = pydantic.Field(
        default="connection",
        description="which prompts a caller without a key continues: those of its 'connection', "
        "those of 'everyone' without a key, or none ('off') (head)",
        examples=['"off"'],
    )

    @cached_property
    def hosts(self) -> AllowedHosts:
        """What `allowed_hosts` lets in."""
        return AllowedHosts(self.allowed_hosts)

    @cached_property
    def origins(self) -> AllowedOrigins:
        """What `allowed_origins` lets in."""
        return AllowedOrigins(self.allowed_origins)

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """The files of the API's certificate and of its key; None where it is plain."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return self.tls_certificate, self.tls_key

    def reread(self, now: Config) -> Config:
        """This config with what *now*, its file as it is now, says of `REREAD`."""
        kept = {name: getattr(self, name) for name in Config.model_fields if name not in REREAD}
        return now.model_copy(update=kept)

    def differing(self, now: Config) -> list[str]:
        """The keys that *now*, its file as it is now, has otherwise."""
        return [name for name in Config.model_fields if getattr(self, name) != getattr(now, name)]

    def check(self) -> None:
        """As a node's; and raise `UserError` for a certificate without its key, or a key alone."""
        super().check()
        if self.health is not None:
            for name, other in (("listen", self.listen), ("api", self.api)):
                if other is not None and _meet(self.health, other):
                    raise UserError(
                        f"{self.path}: 'health' and '{name}' are one address, "
                        f"{format_address(*other)}",
                        "Give each a port of its own, as 9470 for 'health'.",
                    )
        if (self.tls_certificate is None) is (self.tls_key is None):
            return
        given, lacks = "tls_key", "tls_certificate"
        if self.tls_key is None:
            given, lacks = lacks, given
        raise UserError(
            f"{self.path}: '{given}' is there, and '{lacks}' is not",
            "TLS needs both: a certificate, and its private key.",
        )


def _meet(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether nobody can listen at both addresses."""
    hosts = {one[0], other[0]}
    return one[1] == other[1] and (len(hosts) == 1 or any(map(is_unspecified, hosts)))


def load_config(path: Path, strategy: StrategyName | None = None) -> Config:
    """The config at *path*; *strategy*, if given, in place of its own.

    Raises `UserError` that names the key and its line.
    """
    return load_file(path, Config, strategy)


def default_folder() -> Path:
    """Where a node's config, keys and roster lie if a person says nothing."""
    return platformdirs.user_config_path("sealring", appauthor=False)


def default_state() -> Path:
    """Where what that node keeps lies."""
    return platformdirs.user_state_path("sealring", appauthor=False)


def config_path(given: Path | None) -> Path:
    """The config that is *given*, or lies in the folder that is *given*; that of the default folder
    if None is."""
    place = given or default_folder()
    return place / CONFIG_NAME if given is None or place.is_dir() else place


def has_own_config() -> bool:
    """Whether this machine is in a cluster: the default folder has a config."""
    return is_there(config_path(None))


def own_config(given: Path | None, strategy: StrategyName | None = None) -> Config:
    """The config at `config_path`; *strategy* as in `load_config`. Raises `UserError`."""
    path = config_path(given)
    if given is None and not has_own_config():
        raise UserError(
            f"this machine is in no cluster: there is no {path}",
            "Make one: sealring start. Or join one: sealring join INVITATION. Or give the config "
            "of this machine's node: --config FILE",
        )
    return load_config(path, strategy)


def with_keys(config: Path, changes: Mapping[str, str | None]) -> str:
    """The text of the file at *config* with the keys of *changes* set to texts, or without those
    that are None; all else stays as a person wrote it. Raises `UserError` where that is not all
    that would change."""
    try:
        text = decoded(read_file(config)[0])
        wanted: dict[str, Any] = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {config}: {error}", "It should be a node's config.") from None
    for name, value in changes.items():
        line = re.compile(rf"^[ \t]*{re.escape(name)}[ \t]*=.*(?:\n|\Z)", re.MULTILINE)
        found = line.search(text)
        own = "" if value is None else f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
        start, end = found.span() if found is not None else (0, 0)  # 0 is before any table
        text = text[:start] + own + text[end:]
        wanted.pop(name, None)
        if value is not None:
            wanted[name] = value
    try:
        done = tomllib.loads(text) == wanted
    except ValueError:
        done = False
    if not done:
        raise UserError(
            f"cannot change {' and '.join(changes)} in {config}, which is written in an unusual "
            "way",
            "Write each key of it on a line of its own, and run this again.",
        )
    return text
