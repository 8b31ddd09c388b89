"""Stands for the module `time` in code that waits: only sleeping advances it, and no wait takes time."""


class FakeClock:
    def __init__(self):
        self.seconds = 100.0

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
