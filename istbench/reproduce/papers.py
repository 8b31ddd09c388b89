"""The papers by name."""

from istbench.reproduce import dslide, ist, p3
from istbench.reproduce.paper import Paper

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (ist.PAPER, p3.PAPER, dslide.PAPER)}
