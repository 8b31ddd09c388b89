"""The words of Speech Commands and the length of a clip, for every source of clips."""

# fmt: off
WORDS: tuple[str, ...] = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four",
    "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right",
    "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)
"""The words in the order of their labels, 0 to 34."""
# fmt: on

CLIPS = 105_829
"""Number of clips in v0.02."""

FIRST_WORDS = tuple(sorted({*WORDS} - {"backward", "follow", "forward", "learn", "visual"}))
FIRST_CLIPS = 64_721
"""Number of clips in v0.01, which has 30 words."""

MOST_WORDS = 10_000
"""Maximum number of words in a directory of recordings."""

CLIP_RATE = 16_000  # Hz
CLIP_SAMPLES = 16_000
