"""The TOML file of one node, checked before anything starts, with errors that name the key and its
line.

Paths are relative to the file's own folder, so that a folder with a config, a key and a roster can
be moved as one. What the whole cluster must agree on (the inner seal, who is a member, the order
of the ranks) is in the signed roster and cannot be said here.
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import pydantic
from sealring_protocol.limits import MAX_GUESSED, MAX_WORLD, PING_TIMEOUT
from sealring_protocol.security.keys import Suite

from sealring_trio.errors import UserError
from sealring_trio.files.key_files import decoded, is_there, read_file
from sealring_trio.units import parse_address, parse_size

SUITES: Final = {
    "aes-256-gcm": Suite.AES256GCM,
    "chacha20-poly1305": Suite.CHACHA20POLY1305,
}
SUITE_NAMES: Final = {suite: name for name, suite in SUITES.items()}
"""The names of the suites, as configs and reports write them."""


SuiteName = Literal["aes-256-gcm", "chacha20-poly1305"]
StrategyName = Literal["auto", "tp", "pp", "single"]
CollectivesName = Literal["sealed", "shared-loopback", "trusted-link"]
BackendName = Literal["auto", "ring", "jaccl", "nccl"]
HopDTypeName = Literal["model", "bf16"]
FetchName = Literal["hub", "members"]

DEFAULT_GROUP_TIMEOUT: Final = 20.0

M = TypeVar("M", bound=pydantic.BaseModel)
Key = tuple[str | int, ...]

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]\]?\s*(?:#.*)?")
_ASSIGNMENT: Final = re.compile(r"\s*([\w-]+)\s*=")

_WINDOWS_PATH: Final = re.compile(r'^[ \t]*[\w-]+[ \t]*=[ \t]*("[A-Za-z]:\\(?!\\))', re.MULTILINE)
_CURLY: Final = re.compile("[\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb]")

MAX_PARTS: Final = 64
"""Most parts of a dotted key. The time that `tomllib` takes for a key grows with the square of its
parts."""

_PART: Final = r"(?:(?<![\w-])[\w-]+|\"[^\"\n]*\"|'[^'\n]*')"
_LONG_KEY: Final = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART}){{{MAX_PARTS}}}")


def _folder(info: pydantic.ValidationInfo) -> Path:
    """The folder of the file that is read."""
    return info.context.resolve().parent if isinstance(info.context, Path) else Path()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("Input should be a text, in quotes")  # noqa: TRY004 - for pydantic
    return value


def _in_folder(value: object, info: pydantic.ValidationInfo) -> Path:
    return _folder(info) / _text(value)


def _file_or_value(value: str, info: pydantic.ValidationInfo) -> str:
    path = _folder(info) / value
    return str(path) if is_there(path) else value


def _address(value: object) -> tuple[str, int]:
    return parse_address(_text(value))


def _size(value: object) -> int:
    return parse_size(_text(value))


def _check_draft(value: object) -> object:
    if value == "":
        raise ValueError("it names no draft model: leave the key out to have none")
    return value


def _listed(value: object) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise ValueError("Input should be a list, in brackets")  # noqa: TRY004
    return tuple(value)


_E = TypeVar("_E")
_AS_TEXT: Final = pydantic.WithJsonSchema({"type": "string"})
FilePath = Annotated[Path, pydantic.BeforeValidator(_in_folder), _AS_TEXT]
"""A file's path, absolute or in the folder of the config."""
FileOrValue = Annotated[str, pydantic.AfterValidator(_file_or_value)]
"""The path of a file if there is one, else what was written."""
Address = Annotated[tuple[str, int], pydantic.BeforeValidator(_address), _AS_TEXT]
"""A host and a port, written ``host:port``."""
Size = Annotated[int, pydantic.BeforeValidator(_size), _AS_TEXT]
"""Bytes, written with K, M, G or T."""
Listed = Annotated[tuple[_E, ...], pydantic.BeforeValidator(_listed)]
"""A list of TOML."""


class NodeFile(pydantic.BaseModel):
    """What a node runs with: absolute paths, sizes in bytes, times in seconds.

    *layers* is empty, *memory* None and *groups* 0 where the machine decides.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)
    _path: Path = pydantic.PrivateAttr()

    key: FilePath = pydantic.Field(description="private key of this node", examples=['"node.key"'])
    roster: FilePath = pydantic.Field(description="signed roster", examples=['"cluster.roster"'])
    coordinator: FileOrValue = pydantic.Field(
        description="public key that signs rosters: a file, or the key in hex",
        examples=['"coordinator.pub"'],
    )
    listen: Address = pydantic.Field(
        description="address that other nodes dial", examples=['"0.0.0.0:7470"']
    )
    model: FileOrValue = pydantic.Field(
        default="",
        description="folder of the model, 'tiny' for the one that ships with sealring, or hub id; "
        "a witness needs none",
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
    layers: Listed[Annotated[int, pydantic.Field(ge=1)]] = pydantic.Field(
        default=(),
        description="layers of each rank, in rank order; if left out, as memory allows (head)",
        examples=["[20, 12]"],
    )
    adapter: FilePath | None = pydantic.Field(
        default=None,
        description="folder of an adapter of mlx-lm's (LoRA, DoRA) to use with the model; every "
        "rank needs it",
        examples=['"adapters"'],
    )
    draft: Annotated[FileOrValue, pydantic.BeforeValidator(_check_draft)] | None = pydantic.Field(
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
    memory: Size | None = pydantic.Field(
        default=None,
        description="memory for weights and caches, with K, M, G or T; if left out, what is free "
        "on the device",
        examples=['"24G"'],
    )
    strategy: StrategyName = pydantic.Field(
        default="auto",
        description="how the model is split: 'tp' gives each rank a share of every layer, 'pp' "
        "some of the layers, 'single' is for one rank alone, 'auto' chooses, by what it measures, "
        "and may leave ranks out (head)",
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
    min_ranks: int = pydantic.Field(
        default=1,
        ge=0,
        le=MAX_WORLD,
        description="how many ranks make a ring at least, this one counted, while others are away "
        "and these have room for the model, or where fewer are faster; if 0, all of them (head)",
        examples=["2"],
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
    suites: Listed[SuiteName] = pydantic.Field(
        default=("aes-256-gcm", "chacha20-poly1305"),
        min_length=1,
        description="ciphers in order of preference",
        examples=['["chacha20-poly1305"]'],
    )
    keylog: FilePath | None = pydantic.Field(
        default=None,
        description="file for the traffic keys of all links, to read captures with; none if left "
        "out. Whoever has the file reads what was recorded",
        examples=['"desk.keys"'],
    )
    state: FilePath = pydantic.Field(
        default_factory=Path,  # never used: see `_with_state`
        description="folder for what the node keeps; NAME.state, beside NAME.toml, if left out",
        examples=['"desk.state"'],
    )

    @property
    def path(self) -> Path:
        """The file itself."""
        return self._path

    @property
    def needed_model(self) -> str:
        """The model, which every member but a witness needs. Raises `UserError` without one."""
        if not self.model:
            raise UserError(
                f"{self._path}: the key 'model' is missing",
                f"Add it: {_example(type(self), ('model',))}",
            )
        return self.model

    @property
    def control_socket(self) -> Path:
        """Where the local control socket of the running node is."""
        return self.state / "control.sock"

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_state(cls, values: Any, info: pydantic.ValidationInfo) -> Any:
        if isinstance(info.context, Path):
            return {"state": f"{info.context.stem}.state", **values}
        return values

    def model_post_init(self, context: Any) -> None:
        """Keep the path of the file, which messages name."""
        self._path = context if isinstance(context, Path) else Path()

    def check(self) -> None:
        """Raise `UserError` for keys that are right alone and cannot go together."""
        path, collectives = self._path, self.collectives
        if self.backend in ("jaccl", "nccl") and collectives != "trusted-link" and self.tp == 1:
            raise UserError(
                f"{path}: backend = '{self.backend}' cannot be sealed, and collectives = "
                f"'{collectives}'",
                "Use backend = 'ring', or say collectives = 'trusted-link' if the network between "
                "the ranks is yours alone.",
            )
        if self.backend == "jaccl" and self.tp > 1:
            raise UserError(
                f"{path}: backend = 'jaccl' is for several machines, and tp = {self.tp} for one",
                "Use backend = 'auto', 'ring' or 'nccl'.",
            )
        if self.strategy == "tp" and self.layers:
            raise UserError(
                f"{path}: layers = {[*self.layers]} deals layers out, and strategy = 'tp' shares "
                "out all of them",
                "Leave 'layers' out, or use strategy = 'pp'.",
            )
        if self.draft is not None and not self.guesses:
            raise UserError(
                f"{path}: draft = '{self.draft}' names a model that guesses tokens, and guesses = "
                "false has none guessed",
                "Leave out one of the two.",
            )


AnyFile = TypeVar("AnyFile", bound=NodeFile)


def load_file(path: Path, kind: type[AnyFile], strategy: StrategyName | None = None) -> AnyFile:
    """The config at *path*, of a *kind*; *strategy*, if given, in place of its own.

    Raises `UserError` that names the key and its line.
    """
    file = read_toml(path, kind, "config file")
    if strategy is not None:
        file = file.model_copy(update={"strategy": strategy})
    file.check()
    return file


def read_toml(path: Path, model: type[M], kind: str) -> M:
    """The file at *path* as a *model*, whose validators have the path as their context. *kind*
    names the kind of file in messages.

    Raises `UserError` for a file that is missing, unreadable, not TOML, or not a *model*.
    """
    text = _read_text(path, kind)
    if long := _LONG_KEY.search(text):
        raise UserError(
            f"{path}, line {_line(text, long)}: a key of more than {MAX_PARTS} parts",
            "Leave out what is not a setting of this file.",
        )
    if found := _WINDOWS_PATH.search(text):
        raise UserError(
            f"{path}, line {_line(text, found)}: a path of Windows, whose backslashes mean other "
            "characters in double quotes",
            "Write it with /, as this system knows it (in WSL, C:\\models is /mnt/c/models).",
        )
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter where it is nested too deep
        advice = 'Texts need quotes (name = "desk"), numbers and true/false none.'
        if found := _CURLY.search(text):
            advice = (
                f"Line {_line(text, found)} has typographic quotes ({found[0]}), as editors "
                "write them: use straight ones."
            )
        raise UserError(f"{path} is not valid TOML: {error}", advice) from None
    needed = [name for name, field in model.model_fields.items() if field.is_required()]
    if values and not values.keys() & set(needed):
        raise UserError(
            f"{path} is no {kind}: it has none of the keys {', '.join(needed)}",
            "'sealring up --help' shows the config of a node, and 'sealring roster new' makes the "
            "draft of a roster.",
        )
    try:
        return model.model_validate(values, context=path)
    except pydantic.ValidationError as error:
        raise _explain(path, text, model, error) from None


def _line(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start(found.lastindex or 0)) + 1


def _read_text(path: Path, kind: str) -> str:
    """The text of *path*. Raises `UserError` when there is none to read."""
    try:
        return decoded(read_file(path)[0])
    except FileNotFoundError:
        raise UserError(f"there is no {kind} at {path}", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"cannot read {path}: {reason}", f"It should be a {kind}.") from None


def _explain(
    path: Path, text: str, model: type[pydantic.BaseModel], error: pydantic.ValidationError
) -> UserError:
    lines = _lines(text)
    faults = []
    advice = "Put that right and try again."
    for fault in error.errors():
        key: Key = fault["loc"]
        place = _place(path, lines, key)
        name = ".".join(f"{part + 1}" if isinstance(part, int) else part for part in key)
        match fault["type"]:
            case "extra_forbidden":
                keys = _keys(model, key)
                near = get_close_matches(str(key[-1]), keys, n=1)
                meant = f"; did you mean '{near[0]}'?" if near else ""
                faults.append(f"{place}: unknown key '{name}'{meant}")
                advice = f"The keys are: {', '.join(keys)}."
            case "missing":
                faults.append(f"{path}: the key '{name}' is missing")
                advice = f"Add it: {_example(model, key)}"
            case _:
                where = f"{place}: '{name}'" if key else place
                faults.append(f"{where}: {fault['msg'].removeprefix('Value error, ')}")
    return UserError("\n".join(faults), advice)


def _place(path: Path, lines: dict[Key, int], key: Key) -> str:
    while key and key not in lines:
        key = key[:-1]
    return f"{path}, line {lines[key]}" if key else str(path)


def _keys(model: type[pydantic.BaseModel], key: Key) -> list[str]:
    return [field.alias or name for name, field in _model_at(model, key[:-1]).model_fields.items()]


def _example(model: type[pydantic.BaseModel], key: Key) -> str:
    field = _model_at(model, key[:-1]).model_fields[str(key[-1])]
    examples = field.examples or ["..."]
    return f"{key[-1]} = {examples[0]}   # {field.description}"


def _model_at(model: type[pydantic.BaseModel], key: Key) -> type[pydantic.BaseModel]:
    for part in key:
        if isinstance(part, str):
            annotation: Any = model.model_fields[part].annotation
            model = next(iter(get_args(annotation)), annotation)
    return model


def _lines(text: str) -> dict[Key, int]:
    """Where each key stands, by table headers and ``key =`` at the start of lines, which is how
    people write these files: `tomllib` keeps no line numbers."""
    found: dict[Key, int] = {}
    table: Key = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            table = tuple(header[2].split("."))
            if header[1] == "[[":
                counts[header[2]] = counts.get(header[2], -1) + 1
                table = (*table, counts[header[2]])
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault((*table, assignment[1]), number)
    return found
