"""Stands for `recorded_script` in the process of a recorded script, which has less time to end."""

import sys

from istbench.launch.processes import recorded_script

recorded_script._GRACE_S, recorded_script._CLEANING_S = 2.0, 1.0

if __name__ == "__main__":
    recorded_script._record_here(*sys.argv[1:])
