"""What every source of clips shares: the 35 words of Speech Commands v0.02 and the length of a clip."""

# fmt: off
WORDS: tuple[str, ...] = (
    "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four",
    "go", "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right",
    "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)
"""These words, in the order of their labels, 0 to 34."""
# fmt: on

MOST_WORDS = 10_000
"""How many words a directory of recordings may have."""

CLIP_RATE = 16_000  # Hz
CLIP_SAMPLES = 16_000
