"""How long a thread keeps a core from another that wakes up (Linux from 6.12; before, it cannot be asked for)."""

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


def hand_cores_over_soon() -> None:
    """Have this thread, and those that it starts, keep a core from a thread that wakes up for 0.1 ms at most.

    By itself Linux lets a thread go on for some milliseconds, up to its next timer tick. Where it cannot be asked
    for, nothing changes.
    """
    asked = _attributes()
    if asked is not None:
        asked.runtime = _SHORTEST_NS
        ctypes.CDLL(None).syscall(_SET, 0, ctypes.byref(asked), 0)


def time_slice() -> float:
    """Seconds for which this thread asked to keep a core; 0 where that is left to the kernel."""
    found = _attributes()
    return 0.0 if found is None else float(found.runtime) / 1e9


def _attributes() -> _Attributes | None:
    """What the kernel has of this thread; None where it does not say, or where runtime means something else."""
    found = _Attributes()
    size = ctypes.sizeof(found)
    if _GET is None or ctypes.CDLL(None).syscall(_GET, 0, ctypes.byref(found), size, 0) != 0:
        return None
    return found if found.policy in (os.SCHED_OTHER, os.SCHED_BATCH) else None
