"""Files for engines that start machines: each installs istbench, runs torchrun on every node, and ends by itself.

istbench itself starts no machine and calls no cloud. An engine is a function from a job to the text of a file.
"""
