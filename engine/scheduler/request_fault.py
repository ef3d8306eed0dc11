"""Attributes what a request's stop scanner or token mask raises to that request."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.api import Request, StopScanner, TokenMask


class RequestFault(Exception):
    """Ends one request and no other; __cause__ is the exception of its own code."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"internal error; the server's log has the details of request {request_id}"
        )
        self.request_id = request_id


def attribute_faults(request: Request) -> Request:
    """Return the request with a scanner and a mask that raise RequestFault for any exception."""
    scanner, mask = request.stop_scanner, request.token_mask
    return replace(
        request,
        stop_scanner=_Scanner(request.request_id, scanner) if scanner is not None else None,
        token_mask=_Mask(request.request_id, mask) if mask is not None else None,
    )


@dataclass(frozen=True, slots=True)
class _Scanner:
    request_id: str
    scanner: StopScanner

    def feed(self, token_id: int) -> str | None:
        with _faults_of(self.request_id):
            return self.scanner.feed(token_id)


@dataclass(frozen=True, slots=True)
class _Mask:
    request_id: str
    mask: TokenMask

    def fill(self, draft_ids: Sequence[int], words: npt.NDArray[np.uint32]) -> None:
        with _faults_of(self.request_id):
            self.mask.fill(draft_ids, words)

    def commit(self, token_id: int) -> bool:
        with _faults_of(self.request_id):
            return self.mask.commit(token_id)


@contextmanager
def _faults_of(request_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RequestFault(request_id) from error
