"""The peak memory of training on one rank."""

from pathlib import Path

import torch


class PeakMemory:
    """Peak memory of training on this rank, in bytes: model, optimizer, activations and buffers.

    On a GPU, the peak of the allocator. On Linux, the growth of the process's anonymous memory since this object
    was made, at its peak. That leaves out the interpreter and memory-mapped data, which all ranks of a machine
    share. On other systems `peak` stays None.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = _status("RssAnon")
        self.peak: int | None = None

    def start(self) -> None:
        """Reset the peak: memory of evaluating and assembling does not count as training."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._base is not None:
            Path("/proc/self/clear_refs").write_text("5")

    def stop(self) -> None:
        """Raise `peak` to the peak since `start`."""
        if self._device.type == "cuda":
            now: int | None = torch.cuda.max_memory_allocated(self._device)
        else:
            high, mapped, shared = _status("VmHWM"), _status("RssFile"), _status("RssShmem")
            if self._base is None or high is None or mapped is None or shared is None:
                return
            now = high - mapped - shared - self._base
        if now is not None:
            self.peak = max(self.peak or 0, now)


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
