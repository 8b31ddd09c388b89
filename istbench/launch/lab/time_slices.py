"""The time slice of a thread: how long it keeps a core from a thread that wakes up (Linux 6.12 or later)."""

import ctypes
import os
import platform

_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (None, None))
_SHORTEST_NS = 100_000


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of sched_setattr(2)."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
        ("least_utilisation", ctypes.c_uint32),
        ("most_utilisation", ctypes.c_uint32),
    )


def use_short_time_slices() -> None:
    """Set time slices of 0.1 ms for this thread and the threads that it starts.

    By default Linux lets a thread keep its core for some milliseconds, up to its next timer tick. Older kernels
    ignore this call.
    """
    attributes = _attributes()
    if attributes is not None:
        attributes.runtime = _SHORTEST_NS
        ctypes.CDLL(None).syscall(_SET, 0, ctypes.byref(attributes), 0)


def _attributes() -> _Attributes | None:
    """The scheduling attributes of this thread; None if unknown, or if `runtime` is not a time slice."""
    found = _Attributes()
    size = ctypes.sizeof(found)
    if _GET is None or ctypes.CDLL(None).syscall(_GET, 0, ctypes.byref(found), size, 0) != 0:
        return None
    return found if found.policy in (os.SCHED_OTHER, os.SCHED_BATCH) else None
