"""The first import of the fork server: it ends with its launcher alone, then imports the libraries of every worker.

Without this file, every worker would import them again.
"""

import gc
import signal

from istbench.launch.processes.launcher import ENDING
from istbench.launch.processes.orphans import die_with_parent

# Before the imports below, which take seconds.
die_with_parent()
for number in ENDING:  # `local.preload` blocks them
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

gc.disable()  # until a worker begins: a fifth of the imports would be a search for garbage

import os  # noqa: E402

import numpy.ma  # noqa: E402  (`numpy.unique` imports it)
import numpy.random  # noqa: E402, F401  (numpy imports it late)
import safetensors.torch  # noqa: E402, F401
import torch.nn.parallel  # noqa: E402, F401

import istbench.node.worker  # noqa: E402, F401
from istbench.base.plugin_code import SAFE_PATH, SAFE_PATH_OF_OURS  # noqa: E402
from istbench.node.registry import own_modules  # noqa: E402

own_modules("methods", ())  # reads the entry points of all packages

if os.environ.get(SAFE_PATH) == SAFE_PATH_OF_OURS:  # programs that a plug-in starts do not inherit it
    del os.environ[SAFE_PATH]
