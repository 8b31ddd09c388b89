"""Defaults that several commands share."""

DEFAULT_CLUSTER = "m5.2xlarge"
"""The cluster of the replayed seconds beside train seconds."""

BASELINE = "ddp"
"""The method that speed-ups compare with."""

OF_GROUPS = "group"
"""The option with the nodes of a group. The control of a method on few nodes is without it."""
