"""Bytes that a collective puts on the network: what a run counts and a plan foresees."""


def bytes_on_wire(kind: str, size: int, world_size: int, place: int = 0) -> tuple[int, int]:
    """Bytes that one of `world_size` nodes sends and receives in a collective of `size` bytes.

    All but a broadcast go round a ring. That goes down a binomial tree, as torch's gloo sends it.

    Args:
        kind, size: as `TraceBuilder.post` takes them; parts of an all-gather are of one size.
        place: of a broadcast, how many ranks after its root the node is.
    """
    others = world_size - 1
    if kind == "broadcast":
        steps = range(place.bit_length(), others.bit_length())
        return size * sum(place + (1 << step) < world_size for step in steps), size if place else 0
    each = {
        "all_reduce": 2 * size * others // world_size,
        "all_gather": size * others,
        "reduce_scatter": size * others // world_size,
    }[kind]
    return each, each
