"""What a run is: its options with their bounds and defaults, suites of runs, and what a run records of itself."""
