"""Seeds for independent random streams, derived from one seed."""

import hashlib


def derived_seed(*parts: object) -> int:
    """A non-negative 63-bit hash of `parts`, the same on every node."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
