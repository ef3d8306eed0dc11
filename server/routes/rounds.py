"""Builds the object that describes a round in stream events."""

from engine import Round


def round_object(each: Round) -> dict[str, object]:
    """Return the object, with the fields of docs/http.md."""
    return {
        "source": each.source,
        "drafted": each.num_drafted,
        "accepted": each.num_accepted,
        "position": each.position,
        "tokens": each.num_tokens,
    }
