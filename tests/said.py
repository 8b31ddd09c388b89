"""What `istbench` says on its standard error."""


def messages(said):
    """Its own lines, whatever else stands between them."""
    return [line for line in said.splitlines() if line.startswith("istbench: ")]


def one_line(said):
    """The one line that it says, without a traceback."""
    assert "Traceback" not in said
    lines = messages(said)
    assert len(lines) == 1, said
    return lines[0]
