"""Seeds of what a training draws, each from what it is for."""

import hashlib


def seed_of(*parts: object) -> int:
    """32 bits that follow from the parts alone: the setting's seed, then what tells draws apart."""
    return int(hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:8], 16)
