"""Keep a results directory's tables, curves and pictures under another, as a reference: no run directories.

    python scripts/freeze_results.py RESULTS results/speech-synthetic

Writes README.md (the tables), report.json, evaluations.csv (a row an evaluation) and the pictures.
"""

import argparse
import dataclasses
import json
import re
from pathlib import Path

from istbench.report.output.json_document import table_json
from istbench.report.output.markdown import table_markdown
from istbench.report.output.pictures import draw_plots
from istbench.report.report import build_report
from istbench.results.frame import evaluations_frame

_HASH = re.compile(r"-[0-9a-f]{6}(?=-(over-time|time-to-target))")


def main() -> None:
    """Write the reference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    report = build_report(arguments.results)
    target: Path = arguments.target
    target.mkdir(parents=True, exist_ok=True)
    # Without the hash of the group: one reference is one group.
    plots = [dataclasses.replace(plot, stem=_HASH.sub("", plot.stem)) for plot in report.plots]
    shown = "\n".join(f"![{path.stem}]({path.name})" for path in draw_plots(plots, target) if path.suffix == ".png")
    tables = "\n".join(table_markdown(table) for table in report.tables)
    (target / "README.md").write_text(f"# {target.name}\n\n{tables}\n{shown}\n")
    content = {"tables": [table_json(table) for table in report.tables]}
    (target / "report.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    evaluations_frame(arguments.results).to_csv(target / "evaluations.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
