"""The tables of fake runs, what stands in them, and how they are printed."""

import io

from istbench.report.groups import group_runs
from istbench.report.output.formats import print_report
from istbench.report.tables.comparison import comparison
from istbench.results.load import load_runs


def tables_of(results, baseline="ddp"):
    return [comparison(group, baseline) for group in group_runs(load_runs(results)[0], baseline)]


def table_of(results, baseline="ddp"):
    (table,) = tables_of(results, baseline)
    return table


def column(table, key):
    place = [column.key for column in table.columns].index(key)
    return {(row[0].text, row[1].value): row[place] for row in table.rows}


def footer(table):
    return "\n".join(table.footer)


def group_of(results):
    (group,) = group_runs(load_runs(results)[0])
    return group


def printed(report, output_format, pictures=()):
    out, notes = io.StringIO(), io.StringIO()
    print_report(report, out, output_format=output_format, pictures=pictures, notes=notes)
    return out.getvalue(), notes.getvalue()
