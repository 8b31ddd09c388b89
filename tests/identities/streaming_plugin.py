"""`ist` that streams by default, for checks that take no options."""

from dataclasses import dataclass

from istbench.methods.ist import IndependentSubnetTraining


class StreamingByDefault(IndependentSubnetTraining):
    """See istbench/methods/streaming.py."""

    name = "streaming"

    @dataclass(frozen=True, kw_only=True)
    class Options(IndependentSubnetTraining.Options):
        """Options of `ist`."""

        streaming: bool = True
