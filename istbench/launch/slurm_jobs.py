"""Which jobs of Slurm's the cells of a results directory are, so that a later call finds them."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istbench.door import decode_json, read_bytes
from istbench.errors import UserError
from istbench.files import writing_whole
from istbench.launch.slurm_queue import queued_jobs


@dataclass
class Noted:
    """The jobs that were submitted, by cell, in a file beside the results."""

    path: Path

    def find(self, name: str, executor: str) -> Any:
        """The job of a cell that Slurm still has; None where there is none."""
        identity = self._read().get(name)
        if identity is None or executor != "slurm":
            return None
        import submitit

        job: Any = submitit.SlurmJob(folder=self.path.parent / "%j", job_id=identity)
        queued = queued_jobs()
        with contextlib.suppress(OSError):
            if not job.done(force_check=True) and (queued is None or identity in queued):
                return job
        return None

    def add(self, name: str, identity: str) -> None:
        """Note the job of a cell."""
        text = json.dumps({**self._read(), name: identity}, indent=1)
        try:
            with writing_whole(self.path) as file:
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; choose another --out") from None

    def _read(self) -> dict[str, str]:
        if not self.path.exists():
            return {}
        content = read_bytes(self.path, "the jobs of a results directory")
        return decode_json(content, dict[str, str], str(self.path), "delete it, once none of its jobs is left")
