"""Property tests try the same examples every time, however slow the machine is."""

from hypothesis import settings

settings.register_profile("advise", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("advise")
