"""One node of a run: training on its clock, measuring, evaluating, checkpointing."""
