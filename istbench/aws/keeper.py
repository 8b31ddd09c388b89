"""On a machine of a cluster: keeps one command going, and what it writes safe in the bucket.

`python -m istbench.aws.keeper --bucket B --region R --run ID --rank K -- COMMAND...`
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from istbench.aws.commands import DATA, FILES, secret_key
from istbench.aws.commands import RESULTS as RESULTS_FOLDER
from istbench.aws.transfer import RESULTS, Pushed, pull
from istbench.torchrun.secret import SECRET

_EVERY_S = 15.0


def keep(
    s3: Any,
    bucket: str,
    run: str,
    rank: int,
    words: Sequence[str],
    *,
    results: Path,
    files: Path,
    data: Path,
    logs: Path,
) -> int:
    """Run `words` to their end, as one machine of run `run`; returns their exit status.

    First come the results so far, and the files and data that the command needs; then, again and again, what is new
    goes to the bucket: results, what the command prints, and at last its exit status.
    """
    pull(s3, bucket, RESULTS, _made(results), {})
    pull(s3, bucket, f"runs/{run}/files/", _made(files), {})
    _pull_data(s3, bucket, _made(data))
    secret = s3.get_object(Bucket=bucket, Key=secret_key(run))["Body"].read().decode()
    pushed = Pushed(s3, bucket, RESULTS, results)
    printed = Pushed(s3, bucket, f"runs/{run}/", _made(logs))
    status = _run(words, secret, [logs / f"{rank}.out", logs / f"{rank}.err"], [printed, pushed])
    _tell_end(s3, bucket, run, rank, status)
    return status


def _tell_end(s3: Any, bucket: str, run: str, rank: int, status: int) -> None:
    ended = json.dumps({"status": status}).encode()
    s3.put_object(Bucket=bucket, Key=f"runs/{run}/{rank}.ended", Body=ended)


def _pull_data(s3: Any, bucket: str, data: Path) -> None:
    """Data that went along, once: a note beside it says which versions are here."""
    note = data.with_suffix(".json")
    have = json.loads(note.read_bytes()) if note.is_file() else {}
    note.write_text(json.dumps(pull(s3, bucket, "data/", data, have)))


def _run(words: Sequence[str], secret: str, logs: Sequence[Path], pushing: Sequence[Pushed]) -> int:
    environment = {**os.environ, SECRET: secret}
    with logs[0].open("wb") as out, logs[1].open("wb") as err:
        process = subprocess.Popen(words, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment)

        def interrupt(_number: int, _frame: FrameType | None) -> None:
            process.send_signal(signal.SIGINT)

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(_EVERY_S)
                    break
                for part in pushing:
                    _push(part)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    for part in reversed(pushing):  # results first: whoever reads the last line finds them
        part.push()
    return status if status >= 0 else 128 - status


def _push(part: Pushed) -> None:
    """A push that fails is tried again with the next: the network comes back, and training goes on."""
    try:
        part.push()
    except Exception as error:
        print(f"not pushed this time: {error}", file=sys.stderr, flush=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep the command of a command line."""
    parser = argparse.ArgumentParser()
    for name in ("bucket", "region", "run"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("words", nargs="+")
    given = parser.parse_args(arguments)
    from istbench.aws.session import Aws

    s3 = Aws(given.region).client("s3")
    folders = {"results": Path(RESULTS_FOLDER), "files": Path(FILES), "data": Path(DATA)}
    try:
        return keep(s3, given.bucket, given.run, given.rank, given.words, **folders, logs=Path("logs") / given.run)
    except Exception as error:  # whatever it is, somebody waits for word of it
        said = f"istbench: machine {given.rank}: {error}\n".encode()
        s3.put_object(Bucket=given.bucket, Key=f"runs/{given.run}/{given.rank}.err", Body=said)
        _tell_end(s3, given.bucket, given.run, given.rank, 1)
        return 1


if __name__ == "__main__":
    sys.exit(main())
