"""The papers' tables again: their cells, our figures beside the published ones, and the differences.

A paper is data (`ist.toml`, `p3.toml` and `dslide.toml` in published/): experiments, each with its cells and its
measure at every scale. A measure makes our figures of finished runs: `curves`, `memory`, `gains`.
"""
