"""Derives the seeds of a training."""

import hashlib


def seed_of(*parts: object) -> int:
    """Hash the parts, the seed setting first, to 32 bits."""
    return int(hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:8], 16)
