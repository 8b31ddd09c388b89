"""Defaults that several commands share."""

DEFAULT_CLUSTER = "m5.2xlarge"
"""The cluster whose seconds are said beside train seconds."""

BASELINE = "ddp"
"""The method that speed-ups are against."""
