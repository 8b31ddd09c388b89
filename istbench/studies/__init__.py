"""Questions that many cells answer."""
