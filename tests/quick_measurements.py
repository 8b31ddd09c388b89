"""Workers of tests measure this machine in less time; the fork server imports this file.

Arrays for the speed of memory have a megabyte. Real ones are larger than caches, and take half a second to
fill in each worker. Matrix products and the costs of messages are measured a few times only: at their usual number,
they were a quarter of the CPU time of workers.
"""

from istbench.node.effort import EFFORT, Effort

QUICK = Effort(
    kernel_s=0.0, array=1 << 18, gathered=1 << 10, repeats=1,
    in_a_row=10, after_computing=3, beside_computing=2, rounds=1, width=256,
)  # fmt: skip
vars(EFFORT).update(vars(QUICK))
