"""A store between ranks with signed values, since any process that reaches torch's stores can write to them.

torch's TCPStore has no password. Each signed value has an HMAC-SHA-256 of its name and content, under a key that
only the ranks of the run have. A value without a valid HMAC counts as absent.
"""

import hashlib
import hmac
import time
from datetime import timedelta
from typing import Any

_MAC_CHARACTERS = 64
_POLL_S = 0.05


class NotSigned(RuntimeError):  # noqa: N818  (the name says what is wrong with a value)
    """The store holds an awaited value without a valid signature."""


class SignedStore:
    """Signed values in `store`, one of torch.distributed's; `key` is secret and the same on every rank."""

    def __init__(self, store: Any, key: bytes) -> None:
        self._store, self._key = store, key

    def set(self, name: str, value: str) -> None:
        self._store.set(name, self._mac(name, value) + value)

    def find(self, name: str) -> str | None:
        """The signed value at `name`; None if there is no value.

        Raises:
            NotSigned: if the signature of the value is not valid.
        """
        if not self._store.check([name]):
            return None
        content = bytes(self._store.get(name)).decode(errors="replace")
        mac, value = content[:_MAC_CHARACTERS], content[_MAC_CHARACTERS:]
        if not hmac.compare_digest(mac.encode(), self._mac(name, value).encode()):
            raise NotSigned(f"{name} in the store is not signed with this run's key: another process wrote it")
        return value

    def read(self, name: str) -> str | None:
        """The signed value at `name`; None if there is none."""
        try:
            return self.find(name)
        except NotSigned:
            return None

    def wait(self, name: str, timeout: timedelta) -> str:
        """Wait for a signed value at `name`, and return it.

        Raises:
            NotSigned: after the time-out, if the value has no valid signature.
            RuntimeError: after the time-out otherwise, or if the store is lost; as torch's own stores do.
        """
        until = time.monotonic() + timeout.total_seconds()
        while True:
            left = max(0.001, until - time.monotonic())
            self._store.wait([name], timedelta(seconds=left))
            try:
                if (value := self.find(name)) is not None:
                    return value
            except NotSigned:
                if time.monotonic() >= until:
                    raise
            time.sleep(_POLL_S)

    def derived(self, purpose: str) -> bytes:
        """A key for `purpose`. It does not reveal the store's own key."""
        return derived_key(self._key, purpose)

    def _mac(self, name: str, value: str) -> str:
        signed = f"{len(name)}:{name}:{value}".encode()
        return hmac.new(self._key, signed, hashlib.sha256).hexdigest()


def derived_key(key: bytes, purpose: str) -> bytes:
    """A key of 32 bytes for `purpose`. It does not reveal `key`."""
    return hmac.new(key, f"istbench {purpose}".encode(), hashlib.sha256).digest()
