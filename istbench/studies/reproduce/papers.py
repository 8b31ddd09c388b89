"""The papers by name."""

from istbench.studies.reproduce import dslide, ist, p3
from istbench.studies.reproduce.paper import Paper

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (ist.PAPER, p3.PAPER, dslide.PAPER)}
