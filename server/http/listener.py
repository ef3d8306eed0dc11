"""Binds the server's address before models are loaded, so that a conflict fails early."""

import errno
import socket
from types import TracebackType

_BACKLOG = 2048


class PortInUse(OSError):
    """Another process uses the address. The message names the setting and an alternative."""


class Listener:
    """A context manager that binds the address; connections are accepted after `listen`.

    Raises PortInUse, or OSError for an address that this machine does not have.
    """

    def __init__(self, *, host: str, port: int, scheme: str = "http") -> None:
        self._host, self._port, self._scheme = host, port, scheme
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio turns Nagle's algorithm off only where the protocol is named; left on, the second
        # part of a response waits for the client's acknowledgement, up to 40 ms.
        self.socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
        except OSError as error:
            self.socket.close()
            raise self._explained(error) from error

    def __enter__(self) -> "Listener":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    @property
    def url(self) -> str:
        """The server's URL for a client on this machine."""
        name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        host = f"[{name}]" if ":" in name else name
        return f"{self._scheme}://{host}:{self._port}"

    def listen(self) -> None:
        """Accept connections. Raises PortInUse if another process has taken the port."""
        try:
            self.socket.listen(_BACKLOG)
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> OSError:
        if error.errno == errno.EADDRINUSE:
            return PortInUse(
                f"server.port: {self._host}:{self._port} is in use; accepted: a free port, "
                f"for example --port {self._port % 65535 + 1}"
            )
        return OSError(
            f"server.host: cannot listen on {self._host}:{self._port}: {error.strerror or error}"
        )
