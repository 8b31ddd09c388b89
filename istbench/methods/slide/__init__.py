"""Locality-sensitive hashing of the rows of a wide output layer, and kernels that compute only the rows it finds.

After SLIDE (arXiv 1903.03129) and Distributed SLIDE (arXiv 2201.12667). Pure: numpy arrays in and out, no
processes.
"""
