"""Kinds of texts with bounds. A longer text from outside is damage, or an attack on memory."""

from typing import Annotated

from msgspec import Meta

LONGEST_MESSAGE, LONGEST_TEXT = 20_000, 4096

Short = Annotated[str, Meta(max_length=200)]
"""For example a version, a time or a digest."""
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=1000)]
Message = Annotated[str, Meta(max_length=LONGEST_MESSAGE)]
"""Lines for a reader, such as the error of a run. `message_of` cuts them."""


def message_of(text: str) -> str:
    """`text` as a run records it: in UTF-8, and cut to the bound of a `Message`."""
    cut = text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 1]}…"
    return cut.encode("utf-8", "replace").decode()
