"""Memory, messages and time of a cell before it runs, from the meta device. Nothing is allocated."""
