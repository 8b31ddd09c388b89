"""Locality-sensitive hashing of very many output rows, and kernels that compute only the rows found.

After SLIDE (arXiv 1903.03129) and Distributed SLIDE (arXiv 2201.12667). Pure: numpy arrays in and out, no
processes.
"""
