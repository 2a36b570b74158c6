"""Connections that end: who asks nothing, or reads nothing of an answer, is let go."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

IDLE = 60.0  # seconds


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Close a connection without a whole request, or with an answer that nobody reads, within IDLE seconds.

    uvicorn closes those that are idle after an answer. Those that never sent a request, or all of its headers, would
    stay for as long as they like, and each takes one of the files that a process may have open.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._seen: Any = None
        self._look()

    def connection_lost(self, problem: Exception | None) -> None:
        self._again.cancel()
        super().connection_lost(problem)

    def _look(self) -> None:
        """Twice in IDLE seconds: what waits for the client, and is the same as before, has waited for half of them."""
        unsent = self.transport.get_write_buffer_size()
        waits = self.cycle is None or self.cycle.response_complete or unsent > 0
        seen = (self.cycle, unsent) if waits else None
        if seen is not None and seen == self._seen:
            self.transport.abort() if unsent else self.transport.close()
            return
        self._seen = seen
        self._again = asyncio.get_running_loop().call_later(IDLE / 2, self._look)
