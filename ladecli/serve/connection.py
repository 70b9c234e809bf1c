"""HTTP connections with timeouts for slow clients."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with timeouts: uvicorn itself waits for heads, bodies and readers without
    a limit.

    Args:
        patience: seconds to wait for a head, for the rest of a body that was answered early, and
            for a client that stops reading.
    """

    _timer: asyncio.TimerHandle | None = None

    def __init__(self, patience: float, **options: Any) -> None:
        super().__init__(**options)
        self._patience = patience

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a head."""
        super().connection_made(transport)
        self._restart_timer()

    def on_response_complete(self) -> None:
        """Start to wait for the next head, or for the rest of a body."""
        self._restart_timer()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start to wait for a client that stopped reading."""
        self._restart_timer()
        super().pause_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._cancel_timer()
        super().connection_lost(exc)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _restart_timer(self) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(self._patience, self._give_up)

    def _give_up(self) -> None:
        """Close the connection if only the client is late."""
        unread = self.flow.write_paused or self.transport.is_closing()
        answering = self.cycle is not None and not self.cycle.response_complete
        unfinished = not answering and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if unread or unfinished:
            self.transport.abort()
