"""What a node's owner may ask it at its Unix socket: the fields of each request, and what answers
them.

`Requests` answers for a life of the node: `generate` and `verify` are for the head, `status`,
`profile`, `roster` and `take` for every rank, `move` for the head, `end` for a head that people
watch; `verify` is in `verification`. `answer_at_door` answers for the node's door: `invite`, which
then reports what happens until the invitation is over; `waiting`, `accept` and `refuse`; and
`members`: the roster that the next one follows, and the serial that this has to exceed. `use`
outlives the node that it is asked of, so `ModelSwitch` answers that, and `nearby` is for
`Presence`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar

import pydantic
import trio
from sealring_protocol.codec.messages import Row
from sealring_protocol.control.requests import FinishReason, Request, RequestDone
from sealring_protocol.errors import LocalProtocolError
from sealring_protocol.joining.invitation import Invitation
from sealring_protocol.limits import INVITATION_SECONDS
from sealring_trio.errors import OperationError, UserError

from sealring.files.cluster import rights_of
from sealring.generation.generation import Answer, Generator, Job
from sealring.generation.status import describe_election, describe_node, describe_place
from sealring.generation.trace import StepRecorder, Trace, processor_times
from sealring.http.connections import OWNER
from sealring.joining.door import JOINED_SECONDS, Door, DoorNews
from sealring.service.verification import Reply, Verification, VerifyFields, WaitNotes
from sealring.text.frames import Exceeded, Lost, Refused, TextQueueFull, keys_in

Share = Annotated[float, pydantic.Field(ge=0, le=1, allow_inf_nan=False)]
Repetition = Annotated[float, pydantic.Field(gt=0, le=10, allow_inf_nan=False)]
TopShare = Annotated[float, pydantic.Field(gt=0, le=1, allow_inf_nan=False)]
_LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at why an answer does not go on."""
_RECORDS_SECONDS: Final = 0.5
"""Seconds between two lines of records."""

_LONGEST_CAUSE: Final = 1000
"""Characters of a reason to end requests, at most."""

U32: Final = (1 << 32) - 1
_Token = Annotated[int, pydantic.Field(ge=0, le=U32)]
U64: Final = (1 << 64) - 1


class _Fields(pydantic.BaseModel, extra="forbid"):
    """The fields of a request."""


class GenerateFields(_Fields):
    """What `sealring generate` asks; see its help. How it is drawn may be null: then as the model's
    makers say, if they do, or else as where it is left out."""

    prompt: str
    raw: bool = False
    max_tokens: Annotated[int, pydantic.Field(ge=1, le=U32)] = 256
    temperature: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] | None = 0.0
    top_p: TopShare | None = 1.0
    top_k: Annotated[int, pydantic.Field(ge=0, le=U32)] | None = 0
    min_p: Share | None = 0.0
    repetition_penalty: Repetition | None = 1.0
    seed: Annotated[int, pydantic.Field(ge=0, le=U64)] | None = None
    guesses: Annotated[tuple[_Token, ...], pydantic.Field(fail_fast=True)] | None = None

    def drawn(self, own: Mapping[str, float]) -> dict[str, float]:
        """How tokens are drawn; *own* is what the model's makers say."""
        greedy = GenerateFields(prompt=self.prompt)
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        asked = {name: getattr(self, name) for name in names}
        others = {name: own.get(name, getattr(greedy, name)) for name in names}
        return {name: others[name] if asked[name] is None else asked[name] for name in names}


class UseFields(_Fields):
    """The *model* that a node is to have, and the *seconds* within which it is to serve."""

    model: str
    seconds: Annotated[float, pydantic.Field(gt=0)]


class _EndFields(_Fields):
    """Why requests end."""

    why: Annotated[str, pydantic.Field(min_length=1)]

    @property
    def line(self) -> str:
        """The reason as one line, cut off if need be."""
        cut = self.why[:_LONGEST_CAUSE]
        return "".join(char if char.isprintable() else " " for char in cut)


class _MoveFields(_Fields):
    """The name of the member that is to be head; empty for the next that may be."""

    to: str = ""


class _RosterFields(_Fields):
    """A signed roster, in hex."""

    roster: str

    @pydantic.field_validator("roster")
    @classmethod
    def _hex(cls, value: str) -> str:
        bytes.fromhex(value)
        return value


F = TypeVar("F", bound=pydantic.BaseModel)

_MAX_KEYS: Final = 1000
"""Keys in a body, at most; `MAX_ROWS` rows of `VerifyFields` have 600. Pydantic makes an error of
each unknown one, which takes over 1 kB."""


def read_fields(kind: type[F], body: bytes, command: str) -> F:
    """The fields of a request in *body*, which is JSON. Raises `UserError` that names the field,
    and the *command* that sends such requests."""
    if (keys := keys_in(body)) > _MAX_KEYS:
        raise UserError(
            f"the request cannot be read: it has {keys:,} fields, and {_MAX_KEYS:,} are the most",
            f"See: sealring {command} --help",
        )
    try:
        return kind.model_validate_json(body)
    except pydantic.ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(map(str, fault["loc"])) or "the request cannot be read"
        raise UserError(f"{name}: {fault['msg']}", f"See: sealring {command} --help") from None


class Requests:
    """Answers what the owner of one node asks, in one life of it."""

    def __init__(self, generator: Generator) -> None:
        self._answers: set[trio.CancelScope] = set()
        self._generator = generator
        self._runtime = generator.runtime

    async def answer(self, name: str, body: bytes, reply: Reply) -> None:
        """Answer the request *name* by calls of *reply*. Raises `UserError` or `OperationError`."""
        with self.living():
            match name:
                case "status":
                    generator = self._generator
                    await reply(
                        describe_node(
                            self._runtime, generator.model, generator.leaving, generator.choice
                        )
                    )
                case "generate":
                    asked = read_fields(GenerateFields, body, "generate")
                    self._check_head()
                    await self.generate(asked, reply)
                case "verify":
                    rows = read_fields(VerifyFields, body, "verify")
                    self._check_head()
                    await Verification(self._generator, rows, reply).run()
                case "profile":
                    await self._profile(reply)
                case "end":
                    self._check_rank()
                    await self._generator.end(read_fields(_EndFields, body, "serve").line)
                case "roster":
                    fields = read_fields(_RosterFields, body, "roster install")
                    await self._install(bytes.fromhex(fields.roster), reply)
                    roster = self._runtime.node.roster.roster
                    await reply({"event": "done", "serial": roster.serial})
                case "take":
                    await self._runtime.take()
                    await reply({"event": "done", **describe_election(self._runtime)})
                case "move":
                    await self._move(read_fields(_MoveFields, body, "head move").to)
                    await reply({"event": "done", **describe_election(self._runtime)})
                case _:
                    raise UserError(
                        f"the node does not know '{name}'",
                        "It knows: accept, end, generate, invite, members, move, nearby, profile, "
                        "refuse, roster, status, take, use, verify, waiting.",
                    )

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """Lasts no longer than this life. Raises `OperationError` if the life ends before."""
        scope = trio.CancelScope()
        self._answers.add(scope)
        try:
            with scope:
                yield
        finally:
            self._answers.discard(scope)
        if scope.cancelled_caught:
            raise OperationError("the node ended this, to stop or to change", "Ask again.")

    def over(self) -> None:
        """The life is over: nobody answers what was asked in it."""
        for scope in self._answers:
            scope.cancel()

    async def _profile(self, reply: Reply) -> None:
        """Report what passes this node, until the client leaves."""
        runtime = self._runtime
        if runtime.recorder is not None:
            raise OperationError("this node is being profiled already", "Wait until that ends.")
        node = runtime.node
        workers = node.roster.roster.workers
        if (without := sorted(set(workers) - set(node.ring))) and node.serving:
            names = ", ".join(node.roster.roster.members[rank].name for rank in without)
            raise OperationError(
                f"the ring goes on without {names}, and a profile is of the whole ring",
                "Start these nodes, and ask again once the ring has taken them in.",
            )
        recorder = runtime.recorder = StepRecorder()
        try:
            while True:
                processors = processor_times(runtime.engine.pids)
                place = describe_place(runtime)
                await reply({"place": place, **recorder.take(), "processors": processors})
                await trio.sleep(_RECORDS_SECONDS)
        finally:
            runtime.recorder = None

    async def _install(self, roster: bytes, reply: Reply) -> None:
        """Install *roster*, and report what that waits for. Raises `UserError`."""
        failed: list[UserError] = []

        async def install(scope: trio.CancelScope) -> None:
            try:
                await self._runtime.install(roster)
            except UserError as error:
                failed.append(error)  # a nursery would wrap it
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(install, nursery.cancel_scope)
            while True:
                await trio.sleep(_LOOK_SECONDS)
                if leaving := self._generator.leaving or self._runtime.head_finishing:
                    await reply({"event": "waiting", "text": leaving})
        if failed:
            raise failed[0]

    async def _move(self, name: str) -> None:
        """Have the member called *name*, or the next that may be, elected head. Raises
        `UserError`."""
        node = self._runtime.node
        members = node.roster.roster.members
        if node.rank:
            raise UserError(
                f"this machine is not the head, {members[0].name} is",
                f"Type it on the machine of {members[0].name}. If that does not answer: sealring "
                "head",
            )
        if not name:
            rank = self._runtime.next_head()
            if rank is None:
                raise UserError(
                    "no other machine that may be the head is there",
                    "sealring head says which ones may be, and which are away.",
                )
        else:
            rank = next((rank for rank, each in enumerate(members) if each.name == name), None)
            if rank is None:
                known = ", ".join(member.name for member in members)
                raise UserError(f"there is no machine called '{name}'", f"There are: {known}.")
        await self._runtime.move(rank)

    def _check_head(self) -> None:
        self._check_rank()
        if self._generator.draining:
            raise OperationError(self._generator.leaving, "Ask once that is over.")

    def _check_rank(self) -> None:
        node = self._runtime.node
        if node.rank:
            head = node.roster.roster.members[0].name
            raise OperationError(
                f"this node is rank {node.rank}, which takes no requests",
                f"Ask on the machine of the head, {head}.",
            )

    async def generate(self, asked: GenerateFields, reply: Reply) -> None:
        """Have the ring answer *asked*. Raises `UserError` or `OperationError`."""
        tracer = self._generator.tracer
        trace = Trace(f"gen-{secrets.token_hex(12)}", "generate", "")
        tracer.begin(trace)
        outcome = "cancelled"
        try:
            summary = await self._answered(asked, trace, reply)
            outcome = summary["reason"]
        except UserError as error:
            outcome = "refused" if not isinstance(error, OperationError) else "failed"
            raise
        finally:
            tracer.end(trace, outcome)
        await reply({"event": "done", **summary})

    async def _answered(self, asked: GenerateFields, trace: Trace, reply: Reply) -> dict[str, Any]:
        """Have the ring answer *asked*, and send the pieces with *reply*. Returns the summary."""
        generator = self._generator
        # At once: a tokenizer and an engine may take long to load.
        waiting = WaitNotes(generator, reply, trace)
        await waiting.report()
        while not self._runtime.informed.is_set():
            with trio.move_on_after(_LOOK_SECONDS):
                await self._runtime.informed.wait()
            await waiting.report()
        words = await generator.vocabulary()
        prompt = await self._parse(asked, trace)
        seed = asked.seed if asked.seed is not None else secrets.randbits(64)
        try:
            drawn = asked.drawn(generator.sampling)
            sampling = Row(
                uid=0,
                seed=seed,
                temperature=drawn["temperature"],
                top_p=drawn["top_p"],
                top_k=int(drawn["top_k"]),
                min_p=drawn["min_p"],
                repetition=drawn["repetition_penalty"],
            )
            request = Request(
                prompt,
                asked.max_tokens,
                sampling=sampling,
                scope=OWNER,
                guesses=asked.guesses,
            )
            job = Job(request, opens=not asked.raw)
            with generator.answering(words, job, trace) as answer:
                done, tokens = await _pass_on(answer, waiting, reply)
        except LocalProtocolError as error:
            waiting.check()
            raise UserError(
                f"the request cannot be done: {error}", "Change it and ask again."
            ) from None
        if done.reason is FinishReason.REFUSED:
            waiting.check()
        if done.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise OperationError(
                f"the ring gave up on this request: {done.message or done.reason.value}",
                "The head's log says more. Ask again once 'sealring status' shows the ring ready.",
            )
        return {
            "prompt_tokens": len(prompt),
            "seed": seed,
            "reason": done.reason.value,
            "tokens": len(tokens),
            "token_ids": tokens,
            "tokens_per_s": round(trace.tokens_per_s, 2),
            "guesses": {"accepted": done.accepted, "rejected": done.rejected},
        }

    async def _parse(self, asked: GenerateFields, trace: Trace) -> tuple[int, ...]:
        """The ids of the prompt. Raises `UserError` or `OperationError`."""
        about = {"raw": asked.raw, "limit": asked.max_tokens}
        try:
            parsed = await self._generator.parse(
                "prompt", about, asked.prompt.encode(), OWNER, trace
            )
        except Refused as error:
            raise UserError(str(error), "Shorten it, or try --raw: no chat template.") from None
        except (Exceeded, Lost, TextQueueFull) as error:
            raise OperationError(
                f"the prompt cannot be read: {error}", "Try --raw, which leaves the template out."
            ) from None
        return parsed.prompts[0]


async def _pass_on(
    answer: Answer, waiting: WaitNotes, reply: Reply
) -> tuple[RequestDone, list[int]]:
    """Send the text of *answer* as it comes, and why it does not. Returns how it ended, and its
    tokens."""
    tokens: list[int] = []
    unsaid = 0
    while True:
        with trio.move_on_after(_LOOK_SECONDS) as look:
            piece = await answer.next()
        if look.cancelled_caught:
            await waiting.report()
            continue
        if isinstance(piece, RequestDone):
            break
        tokens += [event.token for event in piece.tokens]
        unsaid += len(piece.tokens)
        if piece.text:
            await reply({"event": "text", "text": piece.text, "count": unsaid})
            unsaid = 0
    return piece, tokens


# ---------------------------------------------------------------------- the door


DOOR_REQUESTS: Final = ("accept", "invite", "members", "refuse", "waiting")

_MAX_SECONDS: Final = 7 * 86_400
_OVER_SECONDS: Final = 1.0
"""Seconds between two looks at whether an invitation is over."""


class InviteFields(_Fields):
    """For how many *seconds* an invitation is good, and whether to *watch* what comes of it."""

    seconds: Annotated[float, pydantic.Field(ge=1, le=_MAX_SECONDS)] = INVITATION_SECONDS
    watch: bool = True


class WhoFields(_Fields):
    """*who* is meant of those that wait, as in `Door.waiting`; empty for all."""

    who: str = ""


class MembersFields(_Fields):
    """Whether to wait until no newcomer is being admitted, as whoever signs a roster must."""

    settled: bool = True


class AcceptFields(WhoFields):
    """The same, and a signed *roster* that holds it, in hex; null if the node is to sign, with the
    rights to see *text* and to be a *witness*."""

    roster: Annotated[str, pydantic.Field(pattern=r"^([0-9a-f]{2})+$")] | None = None
    text: bool = True
    witness: bool = False


async def answer_at_door(door: Door, name: str, body: bytes, reply: Reply) -> None:
    """Answer the request *name*, one of `DOOR_REQUESTS`. Raises `UserError`."""
    match name:
        case "invite":
            await _invite(door, read_fields(InviteFields, body, "machines invite"), reply)
        case "accept":
            asked = read_fields(AcceptFields, body, "machines accept")
            roster = None if asked.roster is None else bytes.fromhex(asked.roster)
            knock = door.find(asked.who)
            rights = rights_of(text=asked.text, witness=asked.witness)
            await door.accept(knock, roster, rights=rights)
            done = {"serial": door.roster.roster.serial, "installed": knock.installed}
            await reply({"event": "done", **knock.facts(), **done})
        case "refuse":
            knock = door.find(read_fields(WhoFields, body, "machines refuse").who)
            door.refuse(knock)
            await reply({"event": "done", **knock.facts()})
        case "members":  # of which a roster is signed
            if read_fields(MembersFields, body, "machines list").settled:
                if newcomer := door.admitting:
                    limit = f"{JOINED_SECONDS:.0f} s"
                    text = f"{newcomer.name} is being let in: this waits for it, at most {limit}"
                    await reply({"event": "waiting", "text": text})
                await door.settled()
            await reply({"roster": door.roster.encode().hex(), "spent": door.spent})
        case _:
            who = read_fields(WhoFields, body, "machines list").who
            await reply({"waiting": [knock.facts() for knock in door.waiting(who)]})


async def _invite(door: Door, asked: InviteFields, reply: Reply) -> None:
    with door.news() as news:
        invitation = await door.invite(asked.seconds)
        await reply(
            {
                "event": "invitation",
                "invitation": invitation.encode(),
                "addresses": list(invitation.addresses),
                "expires_s": invitation.expires_s,
                "cluster": door.roster.roster.name,
            }
        )
        if not asked.watch:
            return
        while not (why := door.fault(invitation)):
            each = await _next_of(news, trio.current_time() + _OVER_SECONDS)
            if each is not None:
                await _report(each, invitation, reply)
        # What has just happened is why it is over.
        end = trio.current_time() + _OVER_SECONDS
        while (each := await _next_of(news, end)) is not None:
            await _report(each, invitation, reply)
        await reply({"event": "over", "why": why})


async def _next_of(news: AsyncIterator[DoorNews], deadline: float) -> DoorNews | None:
    """The next of *news*; None if there is none before *deadline*. A slow reader, to whom it is
    reported then, has no such limit: what was taken would be lost."""
    with trio.move_on_at(deadline):
        return await anext(news)
    return None


async def _report(news: DoorNews, invitation: Invitation, reply: Reply) -> None:
    """Report *news* of whoever brings *invitation*, or of a stranger."""
    knock = news.knock
    if knock is None or knock.invitation is invitation:
        line: dict[str, Any] = {"event": news.kind, "text": news.text}
        await reply(line if knock is None else {**line, **knock.facts()})
