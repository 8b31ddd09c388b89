"""Code that all rooms use."""
