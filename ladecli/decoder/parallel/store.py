"""The stores in which ranks meet: the leader's own, a visited one, or what torchrun offers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

# They are public, and torch's own annotations do not say so.
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from ..errors import RankError
from .meeting import PATIENCE, Meeting

_CONNECT = timedelta(minutes=5)


def hosted(
    listener: socket.socket, size: int, watch: Callable[[], str | None], patience: float = PATIENCE
) -> Meeting:
    """The meeting of ranks on this machine that the leader hosts.

    Args:
        listener: where the others will come; it is taken over.
        size: how many ranks there are.
        watch: says how another rank ended.
        patience: seconds to wait for them.
    """
    host, port = listener.getsockname()[:2]
    server = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_CONNECT,
        master_listen_fd=listener.detach(),
    )

    def connect() -> Store:
        # The server lives as long as this function does.
        return PrefixStore("lade", _connected(host, server.port))

    return Meeting(connect, 0, size, watch=watch, patience=patience)


def visited(
    host: str, port: int, rank: int, size: int, orphaned: Callable[[], None] = lambda: None
) -> Meeting:
    """The meeting of a follower with the leader that hosts it there.

    Args:
        host, port: where.
        rank, size: this follower's number, and how many ranks there are.
        orphaned: what it still does when the leader is gone without a word.

    Raises:
        RankError: the leader is gone.
    """
    # The leader listens before it starts anybody, and torch would go on trying for long.
    try:
        socket.create_connection((host, port), timeout=10.0).close()
    except OSError as error:
        orphaned()
        raise RankError("rank 0 ended") from error
    return Meeting(
        lambda: PrefixStore("lade", _connected(host, port)), rank, size, orphaned=orphaned
    )


def by_environment(patience: float = PATIENCE) -> Meeting:
    """The meeting of ranks that torchrun has started: its environment says where."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Usually the launcher hosts the store, which outlives its ranks' restarts.
    launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    hosting = rank == 0 and not launchers
    name = f"lade/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    server = _connected(address, port, hosting=True) if hosting else None

    def connect() -> Store:
        return PrefixStore(name, _connected(address, server.port if server else port))

    host = "torchrun" if launchers else "rank 0"
    return Meeting(connect, rank, size, patience=patience, host=host)


def _connected(host: str, port: int, *, hosting: bool = False) -> TCPStore:
    try:
        return TCPStore(host, port, is_master=hosting, wait_for_workers=False, timeout=_CONNECT)
    except RuntimeError as error:
        raise RankError(f"rank 0 cannot be reached at {host}:{port}") from error
