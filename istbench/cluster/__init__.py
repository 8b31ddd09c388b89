"""What a recorded run would have cost in seconds and dollars on another cluster. Pure: no torch, no processes."""
