"""How to read each table, in a few sentences: on a page, a path such as docs/results.md leads nowhere."""

_GUIDES = {
    "the-main-table": (
        "The seconds are those of the slowest node, for computing, exchanging and waiting, without evaluation. The "
        "time to a target is that of the first evaluation at it or better, interpolated linearly from the one "
        "before. A speed-up is the median over seeds of a seed's ratio to the baseline on as many nodes."
    ),
    "crossings": (
        "Times are medians over seeds, interpolated linearly in logarithms between the replayed bandwidths. "
        "“Throughout” means at all of these bandwidths."
    ),
    "computing-and-waiting-by-node": (
        "Waiting is the time inside operations with other nodes: for the nodes or for the network. Computing is "
        "the rest: batches, training and updates, and on a shared core the turns of other nodes."
    ),
    "where-the-time-goes": (
        "Shares are means over nodes. Communication is waiting for an operation that all its nodes have started; "
        "idle is waiting until another node starts its part. What a node sends while it computes counts as compute."
    ),
    "maps": (
        "Each cell has the method that reaches the target first, and the seconds of the next one over its own. Too "
        "close: the ranges over seeds overlap, each first widened by the largest error of that method's replays in "
        "a lab. Others missed: no other method reached the target."
    ),
}
_BEFORE = "How to read this table: docs/results.md#"


def read_here(line: str) -> str:
    """`line` of a footer, with the words themselves where it leads to a file of the documentation."""
    return _GUIDES.get(line.removeprefix(_BEFORE), line) if line.startswith(_BEFORE) else line
