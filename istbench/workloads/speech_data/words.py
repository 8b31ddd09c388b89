"""What every source of clips shares: the words of Speech Commands and the length of a clip."""

# fmt: off
WORDS: tuple[str, ...] = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four",
    "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right",
    "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)
"""These words, in the order of their labels, 0 to 34."""
# fmt: on

CLIPS = 105_829
"""Clips of all of v0.02."""

FIRST_WORDS = tuple(sorted({*WORDS} - {"backward", "follow", "forward", "learn", "visual"}))
FIRST_CLIPS = 64_721
"""The 30 words of v0.01, and its clips."""

MOST_WORDS = 10_000
"""How many words a directory of recordings may have."""

CLIP_RATE = 16_000  # Hz
CLIP_SAMPLES = 16_000
