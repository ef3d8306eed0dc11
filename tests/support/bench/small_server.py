"""A server in a separate process: it always answers the same text and keeps a journal.

python -m tests.support.bench.small_server NAME PORT JOURNAL [TEXT]
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

NAME, PORT, JOURNAL = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
TEXT = " ".join(sys.argv[4:]) or "hello world"


def note(what: str) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(f"{what} {NAME}\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer({"data": [{"id": "small", "pid": os.getpid()}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        note(f"request max_tokens={body['max_tokens']} ignore_eos={body.get('ignore_eos')}")
        usage = {"prompt_tokens": 3, "completion_tokens": body["max_tokens"]}
        events = [
            *({"choices": [{"delta": {"content": word}}]} for word in TEXT.split()),
            {"choices": [{"delta": {}, "finish_reason": "length"}]},
            {"choices": [], "usage": usage},
        ]
        self.send_response(200)
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Discard the access log."""

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def end(number: int, frame: FrameType | None) -> None:
    note("stopped")
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    with ThreadingHTTPServer(("127.0.0.1", PORT), Handler) as server:
        note("started")
        server.serve_forever()
