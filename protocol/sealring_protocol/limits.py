"""Every limit of sealring/1, with its worst-case memory.

A limit is checked against the declared length, before a byte of what it limits is buffered. It
holds in every state.
"""

from __future__ import annotations

from typing import Final

FRAME_HEADER: Final = 8
"""Bytes of the outer frame header."""

AEAD_TAG: Final = 16
"""Bytes that either suite adds to a plaintext."""

MAX_SEALED_BODY: Final = 16 * 1024 * 1024
"""Bytes of a sealed frame's body, tag included. Memory: one body and one plaintext per link, 32
MiB."""

STEP_ROOM: Final = 256 * 1024
"""Bytes of a frame kept for everything of a step but its hidden states."""

MAX_FIN_BODY: Final = 64 * 1024
"""Bytes of FIN's body, which may carry a roster. Memory: 64 KiB per link in its handshake."""

MAX_ROSTER: Final = 48 * 1024
"""Bytes of an encoded, signed roster. It leaves room in FIN for the rest. Memory: 48 KiB per
copy."""

MAX_MEMBERS: Final = 64
"""Members of a roster."""

MAX_CERTIFICATE: Final = 12 + 66 * MAX_MEMBERS
"""Bytes of an encoded certificate of an election, in which every member has voted. Memory: 5 KiB
per copy of a roster."""

MAX_ELECTED: Final = 1 + MAX_CERTIFICATE + MAX_ROSTER
"""Bytes of a signed roster as it is stored and sent: with a version and a certificate before it,
where the members have elected a head. Memory: 53 KiB per copy."""

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
"""A number that no group has. It stands for a prefill in the inner seal's associated data."""

MAX_REASON: Final = 256
"""Bytes of a reason, in CLOSE and WAITING, and of a failure's message (UTF-8)."""

MAX_VERSION: Final = 64
"""Bytes of a program's version, in HELLO (UTF-8)."""

NO_RANK: Final = 0xFFFF
"""A number that no rank has. It stands for no rank in particular."""

MAX_REASONS: Final = 16
"""Reasons in one WAITING. Memory: 16 texts of 256 bytes, 4 KiB."""

MAX_ROWS: Final = 4096
"""Entries of each list of a STEP. Memory: 4,096 of at most 20 bytes, six lists: 480 KiB."""

MAX_KEPT: Final = 4096
"""Caches that BOOTSTRAP has a rank keep. Memory: 4,096 of 12 bytes: 48 KiB."""

MAX_GUESSED: Final = MAX_WORLD
"""Tokens at the end of a row that are guesses. Memory: as many states of a row's recurrent layers
and sliding windows."""

MAX_IDS: Final = 1 << 20
"""Token ids in one STEP or STEP_DONE. Memory: 4 MiB."""

MAX_BIAS: Final = 1024
"""Token ids with a bias in one row."""

MAX_GRAMMAR: Final = 1 << 17
"""Bytes of the grammar of one row. Memory: 128 KiB; what an engine makes of it has limits there."""

MAX_ENDS: Final = 256
"""Token ids that end one row."""

MAX_BAD: Final = 1024
"""Token ids in the sequences that one row must not have, all together."""

MAX_LOGPROBS: Final = 20
"""Alternatives with log probabilities for one token."""

MAX_SCORES: Final = 256
"""Tokens in one SCORES. Memory: 256 scores with 20 alternatives each, some 500 KiB."""

MAX_SPENT: Final = MAX_WORLD + 1
"""Entries in a step's times: one for each rank, and the head's second pass."""

MAX_TENSORS: Final = 4
"""Tensors in one STEP or STEP_DONE; together they fit one frame."""

MAX_DIMENSIONS: Final = 4
"""Dimensions of a tensor."""

MAX_WINDOWS: Final = 16
"""Sliding windows in READY's cache cost."""

MAX_LAYERS: Final = 1024
"""Layers of a model."""

MAX_FILE_NAME: Final = 255
"""Bytes of a file's name in GET (UTF-8)."""

MAX_PIECE: Final = 1 << 20
"""Bytes of a file that one GET may ask for. Memory: a few of that size per WEIGHTS link, as one is
read only when the one before it has left."""

MAX_GETS: Final = 8
"""GETs on one link that may be unanswered. Memory: at most 300 bytes each."""

MAX_STREAMS: Final = 256
"""Streams of one API link at a time, given-up ones included. Memory: with the limits of bodies and
of header fields below, some 60 MiB in either direction."""

STREAM_WINDOW: Final = 128 * 1024
"""Bytes of a body that either end of a stream may send before it is given more credit. Memory: as
many per stream and direction, 32 MiB per link."""

MAX_BODY: Final = 64 * 1024
"""Bytes of data in one BODY."""

MAX_HEADERS: Final = 64 * 1024
"""Bytes of all header fields of one ASK or REPLY, with the two lengths of each. Memory: 64 KiB per
stream, 16 MiB per link."""

MAX_FIELDS: Final = 128
"""Header fields of one ASK or REPLY. Memory: some 200 bytes each besides those above, 6 MiB per
link."""

MAX_METHOD: Final = 16
"""Bytes of a request's method."""

MAX_TARGET: Final = 8192
"""Bytes of a request's target: its path and query."""

MAX_CLIENT: Final = 64
"""Bytes of a client's address in ASK (UTF-8)."""

MAX_UNSENT: Final = 4 * MAX_SEALED_BODY
"""Bytes that may wait for a peer which does not read. Memory: 64 MiB per link."""

MAX_STEPS_WAITING: Final = 128
"""STEPs that may wait for one rank's answer."""

MAX_WEIGHT_WAITING: Final = 4 * MAX_SEALED_BODY
"""The weight, in bytes, that waiting STEPs may have together. It counts the bytes of tensors, and
`ENTRY_WEIGHT` for each token id and each entry of a list. The ROWs before a STEP count as well, see
`HISTORY_WEIGHT`. Memory: 64 MiB in a node, and as much in its engine."""

ENTRY_WEIGHT: Final = 128
"""The weight of a token id or of a list's entry, which takes more memory than its encoding."""

HISTORY_WEIGHT: Final = 4
"""The weight of a token id in a ROW's history, which a node keeps as bytes. The ROW itself, each
entry of its bias, each of its ends and each token of its bad sequences weigh `ENTRY_WEIGHT`, each
byte of its grammar 1."""

MAX_ROW_WEIGHT: Final = (
    HISTORY_WEIGHT * MAX_IDS + ENTRY_WEIGHT * (1 + MAX_BIAS + MAX_ENDS + MAX_BAD) + MAX_GRAMMAR
)
"""The greatest weight of one ROW."""

ORDERS_PER_SECOND: Final = 32
"""BOOTSTRAPs that a head may send to a rank per second (token bucket, burst of the same size)."""

PRESENTATIONS_PER_SECOND: Final = 8
"""HELLOs that a rank may send per second (token bucket, burst of the same size)."""

WAITINGS_PER_SECOND: Final = 4
"""WAITINGs that a head may send to a rank per second (token bucket, burst of the same size)."""

MAX_LEARNT_ADDRESSES: Final = 4
"""Addresses in one ADDRESSES. A node keeps as many of each member, and as many more that its owner
heard of elsewhere. Memory: about 500 bytes each."""

ADDRESSES_PER_SECOND: Final = 128
"""ADDRESSES that a peer may send per second (token bucket, burst of the same size). A head
introduces all other members at once, and perhaps twice."""

ELECTION_MESSAGES_PER_SECOND: Final = 64
"""CANDIDACY, VOTE, NO_VOTE, RENEW and RENEWED that a peer may send per second, together (token
bucket, burst of the same size). Each end has four a second to send, and a member that stood still
for a while has what waited for it at once. A VOTE costs its receiver a signature's check."""

FIRST_KEY_UPDATE: Final = 64
"""Frames sealed under a direction's first key. It is small, so that every session exercises the
update."""

KEY_UPDATE_INTERVAL: Final = 65_536
"""Frames sealed under each later key: 2^16 frames of at most 2^24 bytes. At that extreme, 2^36
blocks under one AES key leave a distinguisher an advantage of 2^-57 (RFC 9147 section 4.5.3 has the
bound). Decode frames, a few KiB each, stay far below it."""

MAX_INNER_SKIP: Final = 1 << 20
"""Inner-seal counters that a receiver accepts as skipped (steps of an abandoned epoch)."""

PINGS_PER_SECOND: Final = 20
"""PINGs that a peer may send per second (token bucket, burst of the same size)."""

MIN_FRAME_RATE: Final = 1_000_000
"""The rate, in bytes per second, that a frame under way must keep for its bytes to count as signs
of life."""

MAX_UNANSWERED_PINGS: Final = 8
"""PINGs that a peer may leave without a PONG while it sends other data."""

HANDSHAKE_TIMEOUT: Final = 5.0
"""Seconds from the connection to ESTABLISHED."""

INIT_TIMEOUT: Final = 2.0
"""Seconds from an accepted connection to a whole INIT."""

MAX_CLOCK_SKEW_MS: Final = 120_000
"""Milliseconds by which INIT's time of day may differ from the receiver's, either way."""

CLOCK_STEP_MS: Final = 10_000
"""INIT's time of day is rounded down to a multiple of this many milliseconds. It goes in the clear,
and how far a clock is off would distinguish dialers."""

INVITATION_SECONDS: Final = 600
"""Seconds for which an invitation is good, unless whoever makes it says otherwise."""

MAX_INVITATIONS: Final = 16
"""Invitations that an inviter keeps, used and expired ones included. Memory: 16 of some 1.5 KiB."""

MAX_TRIES: Final = 3
"""Machines that may introduce themselves with one invitation, one after the other."""

MAX_JOINS: Final = 8
"""Connections of newcomers at a time. One beyond that takes the place of the oldest that has not
introduced itself. Memory: at most a JOIN_FIN each, 16 KiB in all."""

JOIN_SIGNATURES_PER_SECOND: Final = 5
"""JOIN_RESP signatures per second, for all newcomers together (token bucket, burst of the same
size)."""

JOIN_PATIENCE: Final = 10.0
"""Seconds without a byte after which either end of a join gives up."""

MAX_INVITATION: Final = 2048
"""Characters of an invitation."""

MAX_INVITATION_ADDRESSES: Final = 4
"""Addresses in one invitation."""

MAX_SYSTEM: Final = 128
"""Bytes of what a newcomer says of its system (UTF-8)."""

MAX_SETTINGS: Final = 4096
"""Bytes of the settings in ADMIT (UTF-8)."""

MAX_ANNOUNCEMENT: Final = 256
"""Bytes of a TXT record of multicast DNS that is read. Announcements have at most 42."""

REPLAY_CACHE: Final = 65_536
"""INIT tags remembered. Memory: about 100 bytes each, 6.5 MB when full."""

MAX_HANDSHAKES: Final = 64
"""Accepted connections that are not authenticated yet, in total. A newcomer beyond that takes the
place of another. Memory: at most a FIN of 64 KiB each, 4 MiB."""

RESERVED_HANDSHAKES: Final = 16
"""Places of `MAX_HANDSHAKES` that only members' addresses may take: those in the roster, and those
from which a member was authenticated lately."""

MAX_HANDSHAKES_PER_SOURCE: Final = 8
"""Accepted connections that are not authenticated yet, per source address. A newcomer beyond that
takes the place of another of its source."""

SIGNATURES_PER_SECOND: Final = 50
"""RESP signatures per second for all sources together that are not known to have members (token
bucket, burst of the same size). A signature is the most expensive operation that a former member
can still cause."""

SIGNATURES_PER_NEW_SOURCE: Final = 10
"""RESP signatures per second in addition, for all such sources together that had none within
`NEW_SOURCE_SECONDS`. So a few sources that ask all the time cannot take every signature."""

NEW_SOURCE_SECONDS: Final = 10.0
"""Seconds without a signature after which a source counts as new again."""

SIGNATURES_PER_SOURCE: Final = 10
"""RESP signatures per second for each source address."""

SOURCES_PER_MEMBER: Final = 8
"""Source addresses per member that count as the member's, the latest from which it was
authenticated. They do not share the strangers' signatures, and may take reserved places."""

MAX_SOURCES: Final = 1024
"""Source addresses remembered at a time. Memory: about 200 bytes each, 200 KiB."""

PING_INTERVAL: Final = 0.5
"""Seconds without a byte from the peer after which a link sends a PING."""

PING_TIMEOUT: Final = 1.5
"""Default seconds without a byte from the peer after which a link is dead. A longer configured
value, round trips, or recent pauses raise it."""

LONGEST_PATIENCE: Final = 10.0
"""Cap, in seconds, to which round trips and pauses may raise `PING_TIMEOUT`."""
