"""The TOML file of one node, checked before anything starts.

Paths are relative to the file's own folder, so that a folder with a config, a key and a roster can
be moved as one. What the whole cluster must agree on (the inner seal, who is a member, the order
of the ranks) is in the signed roster and cannot be said here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
import pydantic
from sealring_protocol.limits import MAX_GUESSED, MAX_WORLD, PING_TIMEOUT

from sealring_trio.files.consistency import check_collectives, check_guesses, tls_files
from sealring_trio.files.origins import AllowedHosts, AllowedOrigins, check_host, check_origin
from sealring_trio.files.private_files import is_there
from sealring_trio.files.toml_file import read_toml
from sealring_trio.files.units import parse_address, parse_size

SuiteName = Literal["aes-256-gcm", "chacha20-poly1305"]
StrategyName = Literal["auto", "tp", "pp", "single"]
CollectivesName = Literal["sealed", "shared-loopback", "trusted-link"]
BackendName = Literal["auto", "ring", "jaccl", "nccl"]
HopDTypeName = Literal["model", "bf16"]
SharingName = Literal["connection", "off", "everyone"]
KeysName = Literal["everywhere", "beyond-loopback"]
SamplingName = Literal["model", "api"]
FetchName = Literal["hub", "members"]

NO_API: Final = "off"
DEFAULT_API: Final = "127.0.0.1:7480"
DEFAULT_TIMEOUT: Final = 600.0
DEFAULT_DRAIN: Final = 30.0
DEFAULT_GROUP_TIMEOUT: Final = 20.0
MAX_ALLOWED: Final = 256
"""Names of `allowed_hosts` and `allowed_origins`, which each request is compared with."""


def _check_address(value: str) -> str:
    parse_address(value)
    return value


def _check_api(value: str) -> str:
    return value if value == NO_API else _check_address(value)


def _check_memory(value: str) -> str:
    parse_size(value)
    return value


def _check_draft(value: str) -> str:
    if not value:
        raise ValueError("it names no draft model: leave the key out to have none")
    return value


HostName = Annotated[str, pydantic.AfterValidator(check_host)]
OriginName = Annotated[str, pydantic.AfterValidator(check_origin)]


class NodeFile(pydantic.BaseModel, extra="forbid", frozen=True, strict=True):
    """The keys of the file, as they are written."""

    key: str = pydantic.Field(description="private key of this node", examples=['"node.key"'])
    roster: str = pydantic.Field(description="signed roster", examples=['"cluster.roster"'])
    coordinator: str = pydantic.Field(
        description="public key that signs rosters: a file, or the key in hex",
        examples=['"coordinator.pub"'],
    )
    listen: Annotated[str, pydantic.AfterValidator(_check_address)] = pydantic.Field(
        description="address that other nodes dial", examples=['"0.0.0.0:7470"']
    )
    model: str = pydantic.Field(
        description="folder of the model, 'tiny' for the one that ships with sealring, or hub id",
        examples=['"models/llama-8b"'],
    )
    offline: bool = pydantic.Field(
        default=False,
        description="if true, the model hub is never asked: what is missing is an error",
        examples=["true"],
    )
    fetch: FetchName = pydantic.Field(
        default="hub",
        description="where what is missing of a model with a hub id comes from: the 'hub', or the "
        "other 'members' of the roster, the head first",
        examples=['"members"'],
    )
    layers: list[Annotated[int, pydantic.Field(ge=1)]] = pydantic.Field(
        default=[],
        description="layers of each rank, in rank order; if left out, as memory allows (head)",
        examples=["[20, 12]"],
    )
    adapter: str | None = pydantic.Field(
        default=None,
        description="folder of an adapter of mlx-lm's (LoRA, DoRA) to use with the model; every "
        "rank needs it",
        examples=['"adapters"'],
    )
    draft: Annotated[str, pydantic.AfterValidator(_check_draft)] | None = pydantic.Field(
        default=None,
        description="folder or hub id of a small model with the same vocabulary, which guesses "
        "tokens beside the engine; they may come sooner, and are the same (head)",
        examples=['"models/llama-1b"'],
    )
    guesses: bool = pydantic.Field(
        default=True,
        description="if false, no token is guessed: none is looked up, and a request's "
        "'prediction' is of no use (head)",
        examples=["false"],
    )
    trust_weights: bool = pydantic.Field(
        default=False,
        description="take weights that are not what the hub's hashes tell, and (head) ranks whose "
        "weights differ from this node's, or cannot be compared with them",
        examples=["true"],
    )
    memory: Annotated[str, pydantic.AfterValidator(_check_memory)] | None = pydantic.Field(
        default=None,
        description="memory for weights and caches, with K, M, G or T; if left out, what is free "
        "on the device",
        examples=['"24G"'],
    )
    api: Annotated[str, pydantic.AfterValidator(_check_api)] = pydantic.Field(
        default=DEFAULT_API,
        description="address of the head's HTTP API and its page, or 'off' (head)",
        examples=[f'"{DEFAULT_API}"'],
    )
    aliases: list[Annotated[str, pydantic.Field(min_length=1, max_length=256)]] = pydantic.Field(
        default=[],
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
    allowed_hosts: list[HostName] = pydantic.Field(
        default=[],
        max_length=MAX_ALLOWED,
        description="names besides loopback by which clients without a key may address the API: "
        "exact, or '*.' and a name for all below it; '*' for any, which lets every web page in "
        "(head)",
        examples=['["host.docker.internal", "mymac.local"]'],
    )
    allowed_origins: list[OriginName] = pydantic.Field(
        default=[],
        max_length=MAX_ALLOWED,
        description="origins besides its own whose pages may use the API: exact, with '*.' before "
        "the host, or with the host '*' for schemes of programs; '*' for any (head)",
        examples=['["https://chat.example.com", "app://obsidian.md", "vscode-webview://*"]'],
    )
    sampling: SamplingName = pydantic.Field(
        default="model",
        description="how answers are drawn where a request does not say: as the 'model' has it in "
        "its generation_config.json, or as OpenAI's 'api' has it, at temperature 1 and without "
        "cuts (head)",
        examples=['"api"'],
    )
    tls_certificate: str | None = pydantic.Field(
        default=None,
        description="file of the certificate with which the API speaks TLS, in PEM, followed by "
        "those of its issuers; a renewed one is taken up within seconds (head)",
        examples=['"desk.crt"'],
    )
    tls_key: str | None = pydantic.Field(
        default=None,
        description="file of that certificate's private key, in PEM without a password (head)",
        examples=['"desk-tls.key"'],
    )
    timeout: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] = pydantic.Field(
        default=DEFAULT_TIMEOUT,
        description="seconds that a request of the API may take (head)",
        examples=["600"],
    )
    drain: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = pydantic.Field(
        default=DEFAULT_DRAIN,
        description="seconds that requests under way may take to finish when the node is stopped",
        examples=["30"],
    )
    strategy: StrategyName = pydantic.Field(
        default="auto",
        description="how the model is split: 'tp' gives each rank a share of every layer, 'pp' "
        "some of the layers, 'single' is for one rank alone, 'auto' chooses (head)",
        examples=['"pp"'],
    )
    collectives: CollectivesName = pydantic.Field(
        default="sealed",
        description="'trusted-link' if what the ranks sum may go unsealed between them, "
        "'shared-loopback' if every local user of this machine may interfere with its end",
        examples=['"shared-loopback"'],
    )
    backend: BackendName = pydantic.Field(
        default="auto",
        description="what carries the sums of tensor parallelism: 'ring' can be sealed, 'jaccl' "
        "(several machines) and 'nccl' cannot, 'auto' chooses",
        examples=['"nccl"'],
    )
    tp: int = pydantic.Field(
        default=1,
        ge=1,
        le=MAX_WORLD,
        description="processes of this node that share its layers",
        examples=["2"],
    )
    group_timeout: Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)] = pydantic.Field(
        default=DEFAULT_GROUP_TIMEOUT,
        description="seconds that the ranks of a collective may take to find each other",
        examples=["60"],
    )
    patience: Annotated[float, pydantic.Field(ge=PING_TIMEOUT, le=60)] = pydantic.Field(
        default=PING_TIMEOUT,
        description="seconds that a peer may be silent before it is lost; longer pauses that were "
        "seen raise it. What it exceeds 1.5 by, an engine may be late, too",
        examples=["5"],
    )
    groups: int = pydantic.Field(
        default=0,
        ge=0,
        le=64,
        description="groups of rows in flight at once; if 0, as many as are measured to be worth "
        "it (head)",
        examples=["4"],
    )
    rows: int = pydantic.Field(
        default=8,
        ge=1,
        le=256,
        description="rows of one group at most; each choice of a request is a row (head)",
        examples=["32"],
    )
    queue: int = pydantic.Field(
        default=256,
        ge=1,
        description="rows that may wait. Once that many do, a caller with less than an equal "
        "share may still queue, until twice as many wait; others are refused with 429 (head)",
        examples=["64"],
    )
    prefixes: int = pydantic.Field(
        default=16,
        ge=0,
        le=1024,
        description="snapshots of prompts and answers kept, to be continued without being read in "
        "again; none if 0 (head)",
        examples=["64"],
    )
    ahead: Annotated[int, pydantic.Field(ge=0, le=MAX_GUESSED)] | None = pydantic.Field(
        default=None,
        description="guesses that a row alone reads after the first token of a step at most, where "
        "that pays; if left out, 4 where MLX computes on a CPU, and none on a GPU. With 0 idle "
        "stages go on guessing: see 'guesses' (head)",
        examples=["8"],
    )
    hop_dtype: HopDTypeName = pydantic.Field(
        default="model",
        description="how hidden states pass between ranks: as the 'model' has them, or those in "
        "F32 as 'bf16', which halves the bytes of a slow link and rounds, so that answers may "
        "differ; all ranks need the same",
        examples=['"bf16"'],
    )
    prefix_sharing: SharingName = pydantic.Field(
        default="connection",
        description="which prompts a caller without a key continues: those of its 'connection', "
        "those of 'everyone' without a key, or none ('off') (head)",
        examples=['"off"'],
    )
    suites: list[SuiteName] = pydantic.Field(
        default=["aes-256-gcm", "chacha20-poly1305"],
        min_length=1,
        description="ciphers in order of preference",
        examples=['["chacha20-poly1305"]'],
    )
    keylog: str | None = pydantic.Field(
        default=None,
        description="file for the traffic keys of all links, to read captures with; none if left "
        "out. Whoever has the file reads what was recorded",
        examples=['"desk.keys"'],
    )
    state: str | None = pydantic.Field(
        default=None,
        description="folder for what the node keeps; NAME.state, beside NAME.toml, if left out",
        examples=['"desk.state"'],
    )


@attrs.frozen
class Config:
    """What `sealring up` runs: absolute paths, sizes in bytes, times in seconds.

    *layers* is empty, *memory* and *groups* are 0 where the machine decides; *api* is None where
    there is none, and *tls*, which is the files of a certificate and its key, where that is plain.
    """

    path: Path
    key: Path
    roster: Path
    coordinator: str
    listen: tuple[str, int]
    model: str
    offline: bool
    fetch: FetchName
    layers: tuple[int, ...]
    adapter: Path | None
    draft: str | None
    guesses: bool
    trust_weights: bool
    memory: int
    api: tuple[str, int] | None
    aliases: tuple[str, ...]
    api_keys: KeysName
    allowed_hosts: AllowedHosts
    allowed_origins: AllowedOrigins
    sampling: SamplingName
    tls: tuple[Path, Path] | None
    timeout: float
    drain: float
    strategy: StrategyName
    collectives: CollectivesName
    backend: BackendName
    tp: int
    group_timeout: float
    patience: float
    groups: int
    rows: int
    queue: int
    prefixes: int
    ahead: int | None
    hop_dtype: HopDTypeName
    prefix_sharing: SharingName
    suites: tuple[SuiteName, ...]
    state: Path
    keylog: Path | None

    @property
    def control_socket(self) -> Path:
        """Where the local control socket of the running node is."""
        return self.state / "control.sock"


def load_config(path: Path, strategy: StrategyName | None = None) -> Config:
    """The config at *path*; *strategy*, if given, in place of its own.

    Raises `UserError` that names the key and its line.
    """
    file = read_toml(path, NodeFile, "config file")
    if strategy is not None:
        file = file.model_copy(update={"strategy": strategy})
    base = path.resolve().parent
    check_collectives(path, file)
    check_guesses(path, file)
    state = file.state if file.state is not None else f"{path.stem}.state"
    return Config(
        path=path,
        key=base / file.key,
        roster=base / file.roster,
        coordinator=_file_or_value(base, file.coordinator),
        listen=parse_address(file.listen),
        model=_file_or_value(base, file.model),
        offline=file.offline,
        fetch=file.fetch,
        layers=tuple(file.layers),
        adapter=None if file.adapter is None else base / file.adapter,
        draft=None if file.draft is None else _file_or_value(base, file.draft),
        guesses=file.guesses,
        trust_weights=file.trust_weights,
        memory=parse_size(file.memory) if file.memory else 0,
        api=None if file.api == NO_API else parse_address(file.api),
        aliases=tuple(file.aliases),
        api_keys=file.api_keys,
        allowed_hosts=AllowedHosts(tuple(file.allowed_hosts)),
        allowed_origins=AllowedOrigins(tuple(file.allowed_origins)),
        sampling=file.sampling,
        tls=tls_files(path, file),
        timeout=file.timeout,
        drain=file.drain,
        strategy=file.strategy,
        collectives=file.collectives,
        backend=file.backend,
        tp=file.tp,
        group_timeout=file.group_timeout,
        patience=file.patience,
        groups=file.groups,
        rows=file.rows,
        queue=file.queue,
        prefixes=file.prefixes,
        ahead=file.ahead,
        hop_dtype=file.hop_dtype,
        prefix_sharing=file.prefix_sharing,
        suites=tuple(file.suites),
        state=base / state,
        keylog=None if file.keylog is None else base / file.keylog,
    )


def _file_or_value(base: Path, value: str) -> str:
    path = base / value
    return str(path) if is_there(path) else value
