"""Commands of istbench under torchrun, as real processes."""

from free_port import free_port
from warm import Python

STARTED = []
"""The torchruns that a test started."""


def start(words, *options, cwd=None):
    """Start `istbench` with `words` under torchrun with `options`."""
    process = Python(["torch.distributed.run", *options, "-m", "istbench", *words], cwd)
    STARTED.append(process)
    return process


def run_on_one(words, *options, nodes=2, timeout_s=240):
    """Run `words` on `nodes` processes of a torchrun with `options`; returns exit status, output and errors."""
    process = start(words, "--standalone", "--nproc-per-node", nodes, *options)
    out, error = process.communicate(timeout=timeout_s)
    return process.returncode, out, error


def start_on_two(words, tmp_path, folders=(None, None), each=((), ())):
    """Start `words` and those of `each` on two hosts, with an --out each, in these working directories."""
    endpoint = f"127.0.0.1:{free_port()}"
    return [
        start(
            [*words, *each[host], "--out", tmp_path / f"host{host}"],
            *("--nnodes", 2, "--node-rank", host, "--nproc-per-node", 1, "--rdzv-endpoint", endpoint),
            cwd=folder,
        )
        for host, folder in enumerate(folders)
    ]
