"""The papers' tables again: their cells, our figures beside the published ones, and the differences.

A paper is data (`ist`, `p3`, `dslide`): experiments, each with its cells and its measure at every scale. A measure
makes our figures of finished runs: `curves`, `finals`, `memory`, `replayed_gains`, `measured_gains`.
"""
