"""Imported first by the fork server, and by nothing else: it ends with the process that started it."""

from istbench.processes.orphans import die_with_parent

die_with_parent()
