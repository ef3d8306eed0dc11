"""Servers that send a fixed, broken response."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHUNK = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
MODELS = b'{"data":[{"id":"m"}]}'


def answer(body: bytes, *, status: bytes = b"200 OK", promised: int | None = None) -> bytes:
    """A whole HTTP response; `promised` overrides its Content-Length."""
    length = len(body) if promised is None else promised
    return b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        length,
        body,
    )


@contextmanager
def responding(response: bytes) -> Iterator[str]:
    """Serve one model and answer every POST with these bytes; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, response), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=10)


def _serve(listener: socket.socket, response: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener is shut
            return
        with connection:
            head = _read_request(connection)
            connection.sendall(answer(MODELS) if head.startswith(b"GET") else response)


def _read_request(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += connection.recv(65536)
    return head
