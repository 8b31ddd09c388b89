"""Property tests try the same examples every time, however slow the machine is."""

from hypothesis import settings

settings.register_profile("cluster", derandomize=True, deadline=None)
settings.load_profile("cluster")
