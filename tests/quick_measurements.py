"""Workers of tests measure this machine in less time; the fork server imports this file.

Arrays for the speed of memory have a megabyte. Real ones are larger than caches, and take half a second to
fill in each worker. Costs of messages are measured a few times only.
"""

from istbench.launch.processes import carrying
from istbench.node import measure

measure._ARRAY, measure._GATHERED = 1 << 18, 1 << 10
carrying._IN_A_ROW, carrying._AFTER_COMPUTING, carrying._BESIDE_COMPUTING, carrying._REPEATS = 10, 3, 2, 1
carrying._WIDTH = 256
