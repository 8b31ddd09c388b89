"""The papers' tables again: their cells, our figures beside the published ones, and the differences.

A paper is data (a TOML file in published/): experiments, each with its cells and its measure at every scale. A
measure makes our figures of finished runs: `curves`, `memory`, `gains`.
"""

NAMES = ("ist", "p3", "dslide")
"""The papers by the names of their files."""
