"""Every limit of sealring/1, with the memory that it allows at worst.

A limit is checked against the declared length, before a byte of what it limits is buffered,
and it holds in every state.
"""

from __future__ import annotations

from typing import Final

FRAME_HEADER: Final = 8
"""Bytes of the outer frame header."""

AEAD_TAG: Final = 16
"""Bytes that both suites add to a plaintext."""

MAX_SEALED_BODY: Final = 16 * 1024 * 1024
"""Body of one sealed frame, tag included. Memory: one body and one plaintext per link, 32 MiB."""

MAX_FIN_BODY: Final = 64 * 1024
"""Body of FIN, which may carry a roster. Memory: 64 KiB per link in its handshake."""

MAX_ROSTER: Final = 48 * 1024
"""An encoded, signed roster. Leaves room in FIN for the rest. Memory: 48 KiB per copy."""

MAX_MEMBERS: Final = 64
"""Members of a roster."""

MAX_WORLD: Final = 16
"""Ranks of one ring."""

MAX_ADDRESSES: Final = 8
"""Addresses of one member."""

MAX_NAME: Final = 64
"""Bytes of a member's or cluster's name (UTF-8)."""

MAX_ADDRESS: Final = 255
"""Bytes of one address (UTF-8, ``host:port``)."""

MAX_TOKENS: Final = (1 << 32) - 1
"""Tokens of one row: lengths and positions are u32."""

NO_GROUP: Final = 0xFFFF
"""No group has this number: it stands for a prefill in the inner seal's associated data."""

MAX_REASON: Final = 256
"""Bytes of a reason, in CLOSE and WAITING, and of a failure's message (UTF-8)."""

NO_RANK: Final = 0xFFFF
"""No rank has this number: it stands for none in particular."""

MAX_REASONS: Final = 16
"""Reasons in one WAITING. Memory: 16 texts of 256 bytes, 4 KiB."""

MAX_ROWS: Final = 4096
"""Entries of each list of a STEP. Memory: 4,096 of at most 20 bytes, five lists: 400 KiB."""

MAX_IDS: Final = 1 << 20
"""Token ids in one STEP or STEP_DONE. Memory: 4 MiB."""

MAX_BIAS: Final = 1024
"""Token ids with a bias, of one row."""

MAX_LOGPROBS: Final = 20
"""Alternatives whose log probabilities are told, for one token."""

MAX_SPENT: Final = MAX_WORLD + 1
"""Entries of a step's times: one for each rank, and the head's closing pass."""

MAX_TENSORS: Final = 4
"""Tensors in one STEP or STEP_DONE; together they fit one frame."""

MAX_DIMENSIONS: Final = 4
"""Dimensions of a tensor."""

MAX_WINDOWS: Final = 16
"""Sliding windows in READY's cache cost."""

MAX_LAYERS: Final = 1024
"""Layers of a model."""

MAX_UNSENT: Final = 4 * MAX_SEALED_BODY
"""Bytes that wait for a peer which does not read. Memory: 64 MiB per link."""

MAX_STEPS_WAITING: Final = 128
"""STEPs that wait for the answer of one rank."""

MAX_WEIGHT_WAITING: Final = 4 * MAX_SEALED_BODY
"""What these may weigh together: the bytes of their tensors, and `ENTRY_WEIGHT` for each token id
and each entry of their lists. The ROWs before them count, see `HISTORY_WEIGHT`. Memory: 64 MiB in
a node, and as much in its engine."""

ENTRY_WEIGHT: Final = 128
"""What a token id or an entry of a list weighs, for it takes more memory than its bytes."""

HISTORY_WEIGHT: Final = 4
"""What a token id in a ROW's history weighs, for a node keeps it as bytes. The ROW and each entry
of its bias weigh `ENTRY_WEIGHT`."""

MAX_ROW_WEIGHT: Final = HISTORY_WEIGHT * MAX_IDS + ENTRY_WEIGHT * (1 + MAX_BIAS)
"""What one ROW may weigh."""

ORDERS_PER_SECOND: Final = 32
"""BOOTSTRAPs that a head may send to a rank (token bucket, burst of the same size)."""

PRESENTATIONS_PER_SECOND: Final = 8
"""HELLOs that a rank may send (the same)."""

WAITINGS_PER_SECOND: Final = 4
"""WAITINGs that a head may send to a rank (the same)."""

FIRST_KEY_UPDATE: Final = 64
"""Frames that a direction's first key seals: early, so that every session exercises the update."""

KEY_UPDATE_INTERVAL: Final = 65_536
"""Frames that each later key seals: 2^16 frames of at most 2^24 bytes. At that extreme, 2^36
blocks under one AES key leave a distinguisher an advantage of 2^-57 (RFC 9147 section 4.5.3 has
the bound); decode frames, a few KiB each, stay far below it."""

MAX_INNER_SKIP: Final = 1 << 20
"""Inner-seal counters that a receiver accepts as skipped (steps of an abandoned epoch)."""

PINGS_PER_SECOND: Final = 20
"""PINGs that a peer may send, as a token bucket with a burst of the same size."""

MIN_FRAME_RATE: Final = 1_000_000
"""Bytes a second that a frame under way must keep, for its raw bytes to count as signs of life."""

MAX_UNANSWERED_PINGS: Final = 8
"""PINGs that a peer may leave without a PONG while it sends other things."""

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds from the connection to ESTABLISHED."""

INIT_TIMEOUT: Final = 2.0
"""Seconds from an accepted connection to a whole INIT."""

MAX_CLOCK_SKEW_MS: Final = 120_000
"""Milliseconds of wall-clock difference that an INIT may show, either way."""

REPLAY_CACHE: Final = 65_536
"""Admission tags remembered. Memory: about 100 bytes each, 6.5 MB when full."""

MAX_HANDSHAKES: Final = 64
"""Accepted connections that have not yet proved who they are, in total; a newcomer takes the place
of another. Memory: at most a FIN of 64 KiB each, 4 MiB."""

RESERVED_HANDSHAKES: Final = 16
"""Of these, the ones that only members' addresses may take: those in the roster, and those where a
member has proved itself lately."""

MAX_HANDSHAKES_PER_SOURCE: Final = 8
"""The same, per source address; a newcomer takes the place of another of its source."""

SIGNATURES_PER_SECOND: Final = 50
"""RESP signatures per second for all sources that never proved themselves (token bucket, burst of
the same size): a signature is the dearest thing that a former member can still provoke."""

SIGNATURES_PER_NEW_SOURCE: Final = 10
"""The same, beside these, for sources that had none within `NEW_SOURCE_SECONDS`: a few that ask all
the time cannot take every signature."""

NEW_SOURCE_SECONDS: Final = 10.0
"""Seconds without a signature after which a source is new again."""

SIGNATURES_PER_SOURCE: Final = 10
"""The same, for each source address."""

SOURCES_PER_MEMBER: Final = 8
"""Source addresses where a member has proved itself lately that count as a member's. Each has
signatures of its own beside the strangers', and may take places that are reserved."""

MAX_SOURCES: Final = 1024
"""Source addresses remembered at a time. Memory: about 200 bytes each, 200 KiB."""

PING_INTERVAL: Final = 0.5
"""Seconds without a sign of life from the peer after which a link asks for one."""

PING_TIMEOUT: Final = 1.5
"""Seconds without a byte from the peer after which a link is dead, where nothing longer is
configured, and neither round trips nor pauses seen lately ask for more."""

LONGEST_PATIENCE: Final = 10.0
"""How far round trips and pauses may raise that."""
