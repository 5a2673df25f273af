"""Options of the commands that ask a head by its API: how they are let in, and whom they trust."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from cyclopts import Parameter
from sealring_trio.errors import UserError

if TYPE_CHECKING:
    from sealring.local.client import HeadClient


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Access:
    """What a head may want to know of a client, and a client of a head.

    Parameters
    ----------
    api_key
        A key of 'sealring apikey new', where one is needed; SEALRING_API_KEY
        or OPENAI_API_KEY of the environment if left out. On the command line
        every user of this machine can see it.
    api_key_file
        File that holds that key, which nobody else may read.
    certificate
        For https://, the server's certificate or that of its issuer, in PEM;
        those that this machine trusts if left out.
    """

    api_key: str | None = None
    api_key_file: Path | None = None
    certificate: Path | None = None

    def client(self, url: str) -> HeadClient:
        """A client of the head at *url*. Raises `UserError`."""
        # It takes a tenth of a second to import, which a mistake need not wait for.
        from sealring.local import client  # noqa: PLC0415
        from sealring.local.client import HeadClient  # noqa: PLC0415

        trust = None if self.certificate is None else client.trusting(self.certificate)
        return HeadClient(url, client.api_key(self.api_key, self.api_key_file), trust)


def head_at(url: str | None) -> str:
    """The address of the head at *url*; if that is left out the usual one, unless another user of
    this machine listens there. Raises `UserError`."""
    from sealring.local import client  # noqa: PLC0415 - as above
    from sealring.local.client import stranger  # noqa: PLC0415 - as above

    base = client.base_url(url or client.DEFAULT_URL)
    if url is None and (why := stranger(base)):
        raise UserError(
            why, f"Give the address of your head, or this one if you mean it: --url {base}"
        )
    return base


NO_KEY: Final = Access()
"""Of a command that is given none of these options."""
