"""Stands for `recorded_script` in the process of a recorded script, which has less time to end."""

import sys

from istbench.launch.processes.recorded_script import record_here

if __name__ == "__main__":
    record_here(*sys.argv[1:], grace_s=2.0, cleaning_s=1.0)
