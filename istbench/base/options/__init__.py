"""Configuration of runs: options with bounds and defaults, suites, and the recorded configuration."""
