"""Joins the answers of all replicas to one request into one answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspark.deploy.route import replica_of
from server.errors.api_errors import ApiError

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A replica's whole response."""

    replica: str
    process_id: int
    status: int
    headers: Headers
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Joined:
    """The response for the client."""

    status: int
    headers: Headers
    body: bytes


def join(path: str, answers: Sequence[Answer]) -> Joined:
    """Join the answers, at least one, of the route.

    /health and /ready succeed if one replica does. Other routes return the first failure, if any.
    """
    failed = [answer for answer in answers if answer.status >= 400]
    if path in _PROBES and len(failed) < len(answers):
        states = {a.replica: "ok" if a.status < 400 else _message(a) for a in answers}
        good = _first_good(answers)
        return _as_json({**good.json, "replicas": states}, good)
    if failed:
        return Joined(failed[0].status, failed[0].headers, failed[0].body)
    if path == "/metrics":
        return Joined(200, answers[0].headers, join_metrics([answer.body for answer in answers]))
    bodies = {answer.replica: answer.json for answer in answers}
    return _as_json(_JOINED[path](answers, bodies), answers[0])


def is_joined(method: str, path: str) -> bool:
    """Return whether a request goes to every replica; a preflight does not."""
    return method != "OPTIONS" and (path in _JOINED or path in _PROBES or path == "/metrics")


def check_replica_of_abort(body: bytes, answers: Sequence[Answer]) -> None:
    """Raise ApiError (404) for an id of a replica that has ended, if nothing was aborted."""
    if any(answer.json["aborted"] for answer in answers):
        return  # a client's own id may look like one with a replica
    rid = json.loads(body or b"{}").get("rid")
    replica = replica_of(rid) if isinstance(rid, str) else None
    if replica is not None and all(replica != answer.replica for answer in answers):
        raise ApiError(
            f"no request {rid!r}: its replica {replica} has ended, and its requests with it",
            status=404,
            param="rid",
            code="request_not_found",
        )


def join_metrics(texts: Sequence[bytes]) -> bytes:
    """Join expositions whose samples differ in a label: each family has its head once."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for text in texts:
        family = b""
        for line in text.splitlines():
            if line.startswith(b"# "):
                family = line.split(b" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(family, []).append(line)
    lines = [line for family in heads for line in (*heads[family], *samples.get(family, ()))]
    return b"\n".join(lines) + b"\n"


def add(values: Sequence[Any]) -> Any:
    """Add counts, also in maps and lists; truth values are joined by `or`."""
    first = next((value for value in values if value is not None), None)
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, int | float):
        return sum(value for value in values if value is not None)
    if isinstance(first, Mapping):
        maps = [value for value in values if value is not None]
        names = dict.fromkeys(name for value in maps for name in value)
        return {name: add([value.get(name) for value in maps]) for name in names}
    if isinstance(first, list):
        rows = [value for value in values if value is not None]
        longest = max(map(len, rows))
        return [add([row[i] for row in rows if i < len(row)]) for i in range(longest)]
    return first


def live_total(lives: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join `live` of /server_info: counts are sums, rates follow from them."""
    total: dict[str, Any] = add(list(lives))
    rounds, drafted = total["num_rounds"], total["num_draft_tokens"]
    accepted = total["num_accepted_tokens"]
    return total | {
        "accept_length": 1 + accepted / rounds if rounds else 0.0,
        "accept_rate": accepted / drafted if drafted else 0.0,
        "is_parked": all(live["is_parked"] for live in lives),
        "seconds_since_progress": max(live["seconds_since_progress"] for live in lives),
    }


def _server_info(answers: Sequence[Answer], bodies: Mapping[str, Any]) -> dict[str, Any]:
    infos = list(bodies.values())
    lives = [info["live"] for info in infos if info["live"] is not None]
    total = live_total(lives) if lives else None
    return {
        **infos[0],
        "uptime_s": max(info["uptime_s"] for info in infos),
        "live": total,
        "internal_states": (
            [] if total is None else [{"avg_spec_accept_length": total["accept_length"]}]
        ),
        "replicas": [
            {"replica": answer.replica, "process_id": answer.process_id}
            | {name: bodies[answer.replica][name] for name in _OF_A_REPLICA}
            for answer in answers
        ],
    }


_OF_A_REPLICA = ("uptime_s", "engine", "context_kv", "live")


def _total(answers: Sequence[Answer], bodies: Mapping[str, Any]) -> dict[str, Any]:
    total: dict[str, Any] = add(list(bodies.values()))
    return total


def _with_replicas(answers: Sequence[Answer], bodies: Mapping[str, Any]) -> dict[str, Any]:
    return {**answers[0].json, "replicas": dict(bodies)}


def _loads(answers: Sequence[Answer], bodies: Mapping[str, Any]) -> dict[str, Any]:
    loads = [load for body in bodies.values() for load in body["loads"]]
    numbered = [{**load, "dp_rank": rank} for rank, load in enumerate(loads)]
    return {**answers[0].json, "dp_rank_count": len(loads), "loads": numbered}


_PROBES = frozenset({"/health", "/ping", "/ready", "/health_generate"})
_JOINED = {
    "/server_info": _server_info,
    "/get_server_info": _server_info,
    "/load": _total,
    "/v1/loads": _loads,
    "/abort_request": _total,
    "/flush_cache": _total,
    "/set_context_kv": _with_replicas,
    "/start_profile": _with_replicas,
    "/stop_profile": _with_replicas,
}


def _first_good(answers: Sequence[Answer]) -> Answer:
    return next(answer for answer in answers if answer.status < 400)


def _message(answer: Answer) -> str:
    message: str = answer.json["error"]["message"]
    return message


def _as_json(value: object, answer: Answer) -> Joined:
    """Return a value with the headers of a replica's answer, those for browsers included."""
    return Joined(200, answer.headers, json.dumps(value).encode())
