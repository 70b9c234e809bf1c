"""`lade serve`: start and stop the server."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..decoder.backends.quiet import LOG
from ..errors import UsageError
from ..options.commands import ServeRequest
from ..session import opening
from ..view.terminal import Terminal, ctrl_c, heeded

if TYPE_CHECKING:
    import uvicorn

    from ..session.session import Session

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
"""The packages of the extra `serve`."""
BACKLOG = 1024
"""The length of the system's queue of connections."""


def run(request: ServeRequest) -> int:
    """Serve until Ctrl-C, SIGTERM or SIGHUP; returns the exit code 0.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UsageError(f"lade serve needs {missing[0]}: pip install 'ladecli[serve]'")
    texts, terminal = request.draft_texts(), Terminal(request.color, request.quiet)
    with (
        _listen(request.host, request.port) as listener,
        opening.open_with_ranks(request, terminal) as session,
    ):
        for text in texts:
            session.add_draft_text(text)
        _serve(request, session, listener, terminal)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; connections wait in its queue while the model loads.

    Raises:
        UsageError: there is no such address, or another program uses it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}, port {port}: {error.strerror}; give another --host or --port"
        ) from error


def _serve(
    request: ServeRequest, session: Session, listener: socket.socket, terminal: Terminal
) -> None:
    """Answer requests until a signal arrives; errors as for `run`."""
    import uvicorn

    from .app import is_loopback, make_app
    from .connection import TimedProtocol
    from .worker import GRACE, Worker

    worker = Worker(session, request)
    if not LOG.isEnabledFor(logging.INFO):  # without --debug no traceback is shown
        for name in ("asyncio", "uvicorn"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        make_app(worker, request),
        http=functools.partial(TimedProtocol, request.client_timeout),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=int(GRACE),
    )
    server = uvicorn.Server(config)
    address, port = listener.getsockname()[:2]
    host = f"[{address}]" if ":" in address else address
    if not is_loopback(address) and request.api_key is None:
        terminal.say(f"everyone who reaches {host} may use the model; --api-key asks for a key")
    with ctrl_c(*heeded("SIGTERM", "SIGHUP")) as pressed, _in_background(server, listener):
        terminal.say(f"{worker.name} answers at http://{host}:{port}/v1; Ctrl-C ends it")
        worker.run(pressed)


@contextlib.contextmanager
def _in_background(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """Run a web server on a socket in its own thread, and end it with the block."""
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        yield
    except KeyboardInterrupt:  # the second Ctrl-C does not wait for clients
        server.force_exit = True
        raise
    finally:
        server.should_exit = True
        # From Python 3.12 on uvicorn waits for clients even so; the process ends without it.
        thread.join(0.2 if server.force_exit else None)
