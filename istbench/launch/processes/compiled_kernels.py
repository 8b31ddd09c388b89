"""The import of the fork server after those of methods: it loads their compiled kernels for all workers."""

from istbench.base.jit import load_compiled

load_compiled()
