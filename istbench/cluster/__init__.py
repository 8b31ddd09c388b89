"""The seconds and dollars of a recorded run on another cluster. Pure: no torch, no processes."""
