"""Python reads this file when it starts on a host of `ssh_hosts`: its programs are forks of the warm server.

The process itself stays. It hands signals on, and ends as the fork does; the fork ends with it.
"""

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path


def module():
    """The words behind `-m` if this is to be a program that needs torch, and the paths that Python would add."""
    words = sys.orig_argv[1:]
    paths = [] if "-P" in words[:2] else [str(Path.cwd())]
    while words[:1] in (["-P"], ["-u"]):
        del words[0]
    needs_torch = words[:1] == ["-m"] and words[1].startswith(("istbench", "torch.distributed.run"))
    return (words[1:], paths) if needs_torch else None


def stand_for_fork(words, paths):
    """Have the server fork the program; ends as it does."""
    os.umask(mask := os.umask(0))
    leads = os.getsid(0) == os.getpid()
    request = (os.getpid(), str(Path.cwd()), words, paths, dict(os.environ), leads, mask, True, ())
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ["ISTBENCH_TESTS_WARM"])
        socket.send_fds(server, [repr(request).encode()], [0, 1, 2])
        answers = server.makefile()
        process = int(answers.readline())

        def hand_on(number, _):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, hand_on)
        status = int(answers.readline() or 1)
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if os.environ.get("ISTBENCH_TESTS_PYTHON") in (sys.executable, "any") and (found := module()):
    stand_for_fork(*found)
