"""Keeps responses in memory, so that later requests can continue or read them."""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from server.errors.api_errors import ApiError
from server.protocol.responses import Item

MAX_BYTES = 64 << 20  # of one key's responses, as JSON


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response and the items of its conversation, its output included."""

    response: dict[str, Any]
    input_items: list[dict[str, Any]]  # of its own request, with ids
    conversation: tuple[Item, ...]


class ResponseStore:
    """Keeps the latest responses of each API key; a key reads its own alone.

    Raises ApiError (404) for a response that is not kept, and (400) for every read while
    max_responses is 0.
    """

    def __init__(self, *, max_responses: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._shelves: dict[str, _Shelf] = {}  # by owner
        self._running: dict[tuple[str, str], dict[str, Any]] = {}  # (owner, id) -> response

    @property
    def is_on(self) -> bool:
        return self._max_responses > 0

    def check_is_on(self, param: str) -> None:
        if not self.is_on:
            raise ApiError(
                f"'{param}' needs stored responses, and this server stores none; set "
                "server.responses_store to the number of responses to keep, or send the whole "
                "conversation in 'input'",
                param=param,
                code="responses_store_off",
            )

    def begin(self, owner: str, response: dict[str, Any]) -> None:
        """Note a response that is being generated."""
        self._running[owner, response["id"]] = response

    def end(self, owner: str, response_id: str) -> None:
        """Forget that a response is being generated."""
        self._running.pop((owner, response_id), None)

    def running(self, owner: str, response_id: str) -> dict[str, Any] | None:
        return self._running.get((owner, response_id))

    def put(self, owner: str, stored: StoredResponse) -> None:
        """Keep a response; drop the oldest ones of its key beyond the limits."""
        if self.is_on:
            shelf = self._shelves.setdefault(owner, _Shelf())
            shelf.put(stored)
            shelf.shrink(self._max_responses, self._max_bytes)

    def get(self, owner: str, response_id: str, *, param: str) -> StoredResponse:
        self.check_is_on(param)
        shelf = self._shelves.get(owner)
        stored = shelf.get(response_id) if shelf is not None else None
        if stored is None:
            raise _not_found(f"no response {response_id!r}", param)
        return stored

    def item(self, owner: str, item_id: str, *, param: str) -> Item:
        """Return an output item of one of the owner's responses."""
        self.check_is_on(param)
        shelf = self._shelves.get(owner)
        item = shelf.item(item_id) if shelf is not None else None
        if item is None:
            raise _not_found(f"no item {item_id!r}", param)
        return item

    def delete(self, owner: str, response_id: str, *, param: str) -> None:
        self.get(owner, response_id, param=param)
        self._shelves[owner].delete(response_id)


class _Shelf:
    """The responses of one key, oldest first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._items: dict[str, Item] = {}  # output items by id
        self._num_bytes = 0

    def put(self, stored: StoredResponse) -> None:
        size = _size(stored)
        self._entries[stored.response["id"]] = stored, size
        self._num_bytes += size
        output = stored.response["output"]
        items = stored.conversation[len(stored.conversation) - len(output) :]
        self._items |= {item["id"]: parsed for item, parsed in zip(output, items, strict=True)}

    def shrink(self, max_responses: int, max_bytes: int) -> None:
        while len(self._entries) > max_responses or self._num_bytes > max_bytes:
            self.delete(next(iter(self._entries)))

    def get(self, response_id: str) -> StoredResponse | None:
        if response_id not in self._entries:
            return None
        self._entries.move_to_end(response_id)
        return self._entries[response_id][0]

    def item(self, item_id: str) -> Item | None:
        return self._items.get(item_id)

    def delete(self, response_id: str) -> None:
        stored, size = self._entries.pop(response_id)
        self._num_bytes -= size
        for item in stored.response["output"]:
            del self._items[item["id"]]


def _size(stored: StoredResponse) -> int:
    """Return the length as JSON. A conversation counts in full in each of its responses."""
    conversation = sum(len(item.model_dump_json()) for item in stored.conversation)
    return conversation + len(json.dumps([stored.response, stored.input_items]))


def with_ids(items: Iterable[Item], ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return input items as JSON objects with ids."""
    return [
        {"id": item_id, **item.model_dump(exclude_none=True)}
        for item, item_id in zip(items, ids, strict=True)
    ]


def _not_found(what: str, param: str) -> ApiError:
    return ApiError(
        f"{what} is kept for this key: it was deleted, not stored ('store': false), dropped for "
        "later ones (server.responses_store), or made by a server or replica that has ended",
        status=404,
        param=param,
        code="response_not_found",
    )
