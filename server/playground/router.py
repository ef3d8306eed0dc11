"""Serves the playground's files: / is the page, /playground/NAME the files that it loads."""

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from server.errors.api_errors import ApiError
from server.routes.openapi_errors import Responses

_FOLDER = Path(__file__).parent / "static"
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # The page loads and calls its own origin alone, and runs no inline script or style.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # an updated server has an updated page
}
_FILES = {
    path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES
}
_DOCUMENTED: Responses = {
    200: {"content": {kind.partition(";")[0]: {} for kind in _TYPES.values()}}
}
# Paths without data, which need no key.
PLAYGROUND_PATHS = frozenset({"/", *(f"/playground/{name}" for name in _FILES)})


def playground_routes() -> APIRouter:
    """Create the routes. Every URL in the files is relative, so that a path prefix is possible."""
    router = APIRouter()

    @router.get("/", response_class=HTMLResponse)
    async def playground(request: Request) -> Response:
        """The playground, a page in the browser."""
        return _file(_PAGE, request)

    @router.get("/playground/{name}", response_class=Response, responses=_DOCUMENTED)
    async def playground_file(name: str, request: Request) -> Response:
        """A script, style or picture of the playground."""
        if name not in _FILES:
            raise ApiError(f"no such file of the playground: {name!r}", status=404)
        return _file(name, request)

    return router


def _file(name: str, request: Request) -> Response:
    """Return a file, or 304 to a browser that has it."""
    content = _FILES[name]
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)
