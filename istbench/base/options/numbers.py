"""Kinds of numbers with bounds. A number out of bounds is a typing mistake. None may be NaN or infinite."""

import sys
from typing import Annotated

from msgspec import Meta

MOST_NODES = 16384
MOST_LAYERS = 1000
LARGEST_CHUNK = 2**15
"""Entries of a chunk of `sparseloco`. The place of the last one just fits in an int16."""

Nodes = Annotated[int, Meta(ge=1, le=MOST_NODES)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**40)]
CountOrNone = Annotated[int, Meta(ge=0, le=2**40)]
Natural = Annotated[int, Meta(ge=0, le=2**62)]
Units = Annotated[int, Meta(ge=1, le=2**24)]
"""For example the width of a layer, or a number of words."""
Classes = Annotated[int, Meta(ge=2, le=2**24)]
"""Number of classes, at least two."""
Resolution = Annotated[int, Meta(ge=0, le=1024)]
"""Height and width of an image; 0 selects the model's own."""
Layers = Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
"""Depth of a network. Every process builds the network, which takes a second for a thousand layers."""
Clips = Annotated[int, Meta(ge=2, le=2**20)]
"""Clips of a word, for training and testing together."""
Percent = Annotated[int, Meta(ge=1, le=50)]
"""A part of the whole, at most half of it."""
Restarts = Annotated[int, Meta(ge=0, le=100)]
MostSeeds = Annotated[int, Meta(ge=1, le=100)]
"""Seeds of a method in advice, at most."""
Minutes = Annotated[float, Meta(ge=0.05, le=10_000)]
"""Of an advice, all included."""
Threads = Annotated[int, Meta(ge=1, le=4096)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Duration = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds; may be 0."""
Amount = Annotated[float, Meta(ge=0, le=1e24)]
"""A sum or an average of bytes or samples."""
Epochs = Annotated[float, Meta(gt=0, le=1e9)]
Level = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Value of a metric: any finite number."""
Levels = Annotated[tuple[Level, ...], Meta(max_length=100)]
Rate = Annotated[float, Meta(ge=0, le=1e6)]
"""A learning rate or weight decay."""
Share = Annotated[float, Meta(ge=0, lt=1)]
Part = Annotated[float, Meta(gt=0, lt=1)]
"""A share above 0 and below 1."""
Fraction = Annotated[float, Meta(ge=0, le=1)]
"""A share from 0 to 1, both included."""
Mebibytes = Annotated[float, Meta(gt=0, le=2**20)]
