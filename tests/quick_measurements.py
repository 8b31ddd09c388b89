"""Workers of tests measure this machine in less time; the fork server imports this file.

Arrays for the speed of memory have a megabyte. Real ones are larger than caches, and take half a second to
fill in each worker. Matrix products and the costs of messages are measured a few times only: at their usual number,
they were a quarter of the CPU time of workers.
"""

from istbench.launch.processes import message_costs
from istbench.node import machine_speed, trace_sample

machine_speed._CALIBRATION_S, trace_sample._MEASUREMENTS = 0.0, 1
machine_speed._ARRAY, machine_speed._GATHERED = 1 << 18, 1 << 10
message_costs._IN_A_ROW, message_costs._AFTER_COMPUTING = 10, 3
message_costs._BESIDE_COMPUTING, message_costs._REPEATS = 2, 1
message_costs._WIDTH = 256
