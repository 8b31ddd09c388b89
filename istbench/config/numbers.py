"""Kinds of numbers, with the bounds beyond which they are a slip of the pen. None may be NaN or infinite."""

from typing import Annotated

from msgspec import Meta

MOST_NODES = 4096
MOST_LAYERS = 1000

Nodes = Annotated[int, Meta(ge=1, le=MOST_NODES)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**40)]
CountOrNone = Annotated[int, Meta(ge=0, le=2**40)]
Natural = Annotated[int, Meta(ge=0, le=2**62)]
Units = Annotated[int, Meta(ge=1, le=2**24)]
"""Width of a layer, number of words and the like."""
Classes = Annotated[int, Meta(ge=2, le=2**24)]
"""To tell apart, so at least two."""
Resolution = Annotated[int, Meta(ge=0, le=1024)]
"""Height and width of an image; 0 leaves it to the model."""
Layers = Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
"""Depth of a network, which every process builds anew: a thousand layers take it a second."""
Clips = Annotated[int, Meta(ge=2, le=2**20)]
"""Clips of a word: some to train on, some to test on."""
Threads = Annotated[int, Meta(ge=1, le=4096)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Duration = Annotated[float, Meta(ge=0, le=1e12)]
"""Seconds that may be none at all."""
Amount = Annotated[float, Meta(ge=0, le=1e24)]
"""Bytes or samples, when summed up or averaged."""
Epochs = Annotated[float, Meta(gt=0, le=1e9)]
Level = Annotated[float, Meta(gt=0, le=1)]
"""Value of a metric."""
Levels = Annotated[tuple[Level, ...], Meta(max_length=100)]
Rate = Annotated[float, Meta(ge=0, le=1e6)]
"""A learning rate or weight decay."""
Share = Annotated[float, Meta(ge=0, lt=1)]
Part = Annotated[float, Meta(gt=0, lt=1)]
"""A share that is neither nothing nor all."""
Mebibytes = Annotated[float, Meta(gt=0, le=2**20)]
