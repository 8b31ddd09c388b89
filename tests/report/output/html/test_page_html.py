"""The page as a file, without a browser."""

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import msgspec
import pytest
from conftest import page_of
from fake_runs import evaluation, header, ramp, write_plausible, write_run

from istbench.base.decode import decode_own
from istbench.base.errors import UserError
from istbench.report import page as page_module
from istbench.report.groups import group_runs
from istbench.report.output.html.write import page_html, write_page
from istbench.report.page import Section, build_page
from istbench.report.report import Report, build_report
from istbench.report.tables.table import Column, Entry, Table
from istbench.results.curves import Curve
from istbench.results.header import Header
from istbench.results.load import Run
from istbench.results.store import RunDirectory

VOID = {"meta", "input", "br", "path", "link"}


class Reader(HTMLParser):
    """Elements, texts, attributes and scripts of a page. Every element must be closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.found, self.texts, self.scripts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag, **wanted):
        names = {name.replace("_", "-"): value for name, value in wanted.items()}
        return [one for kind, one in self.found if kind == tag and names.items() <= one.items()]


@pytest.fixture
def read(page_file):
    return Reader(page_file.read_text())


def specs(reader):
    return [
        spec
        for attributes, text in reader.scripts
        if attributes.get("type") == "application/json" and "$schema" in (spec := json.loads(text))
    ]


def test_the_page_loads_nothing_and_runs_only_the_scripts_that_its_policy_names(page_file, read):
    (policy,) = [one["content"] for one in read.all("meta", http_equiv="Content-Security-Policy")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    ran = [text for attributes, text in read.scripts if "type" not in attributes]
    assert len(ran) == 4
    for text in ran:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not [one for kind, one in read.found if kind == "link" or "src" in one]
    assert not [one for _, one in read.found if any(name.startswith("on") for name in one)]
    assert page_file.read_text().count("<!doctype html>") == 1


def test_the_answer_comes_first_and_every_clock_and_target_has_one(read):
    title = "speech and toy: ddp, ist and local_sgd on 2 and 4 nodes"
    first = "local_sgd on 2 nodes is the first of .* to reach accuracy 0.8"
    assert re.search(rf"{title} .*{first}.*Measured on laptop", read.text)
    assert "Replayed on m5.2xlarge, not measured there" in read.text
    assert "Nobody reached" not in read.text
    assert all(f"first to accuracy {level}" in read.text for level in (0.7, 0.8))  # the maps
    assert read.text.count("Notes on this map") == 2
    options = [one["value"] for one in read.all("option") if "data-study" in one]
    assert options == ["0", "1", "2", "0", "1"]  # train, wall, cluster; the other study has no trace
    assert "wall seconds on laptop" in read.text


def test_warnings_are_open_and_other_notes_are_closed(page_file):
    text = page_file.read_text()
    warnings = re.findall(r'<p class="careful">(.*?)</p>', text)
    assert any(line.startswith("Not counted: 1 of ") for line in warnings)
    assert any(line.startswith("Seeds: one of local_sgd") for line in warnings)
    assert not any(line.startswith("Clock: ") for line in warnings)


def test_tables_have_everything_that_a_reader_compares(read):
    for title in (
        "seeds that reach it",
        "seconds to 0.8",
        "speed-up over ddp",
        "$ to target",
        "total MB sent per node",
        "peak MB",
    ):
        assert title in read.text
    assert len(read.all("button", **{"class": "sort"})) > 20
    assert "2/2" in read.text
    assert "left out" not in read.text.lower() or "not JSON" in read.text


def test_every_chart_has_a_text_and_a_specification_that_takes_the_width_of_the_page(read):
    charts, found = read.all("div", role="img"), specs(read)
    assert len(charts) == len(found) == len(read.all("figure")) > 10
    assert all(len(one["aria-label"]) > 20 for one in charts)
    assert {spec["width"] for spec in found} == {"container"}


def test_each_cell_has_its_command_and_links_to_its_raw_files(page_file, read):
    assert "istbench run --workload=speech --method=ddp" in read.text
    assert "--epochs=30.0" in read.text
    links = [page_file.parent / unquote(one["href"]) for one in read.all("a") if one["href"] != "#answer"]
    assert len(links) >= 2 * 11
    assert all(path.is_file() for path in links)
    assert all(not one["href"].startswith("/") for one in read.all("a"))


def test_an_advice_is_the_answer_of_its_page(trial):
    reasons = Table(
        title="Candidates",
        columns=(Column(key="candidate", title="candidate"), Column(key="why", title="no odds because")),
        rows=(
            (Entry(text="ist", value="ist"), Entry(text="it needs 9 GiB of memory, which a node has not", value=1)),
        ),
    )
    asked = Section(
        title="Which method is first?", outcome="unsure", target=0.7, cluster="m5.2xlarge", command="istbench run",
        paragraphs=(("", ("ist takes 3 s.", "ddp takes 9 s.")), ("Why", ("It sends less.",))), table=reasons,
    )  # fmt: skip
    page = page_of(trial, asked)
    study, clock = page.opens_on
    assert page.studies[study].clocks[clock].cluster == "m5.2xlarge"
    assert (
        page.studies[study].clocks[clock].by_target[page.studies[study].clocks[clock].opens_on].target.level == 0.7
    )
    read = Reader(page_html(page))
    assert len(read.all("p", **{"class": "verdict unsure"})) == 1  # the boxes of the probes look neutral
    assert not read.all("p", **{"class": "verdict first"})
    assert len(read.all("td", **{"class": "right long"})) == 1
    assert len([one for one in read.all("option") if "selected" in one]) == 2
    assert "The advice rests on these runs." in read.text


def test_no_line_leads_to_a_file_of_the_documentation(read):
    assert "docs/" not in read.text
    assert read.text.count("Among ddp, ist and local_sgd; untuned; 30 epochs. 30 epochs, batch size") == 2  # maps
    assert "Each cell has the method that reaches the target first" in read.text


def test_the_soonest_row_is_on_top(page):
    for at in page.studies[0].clocks[0].by_target:
        place = next(n for n, column in enumerate(at.table.columns) if column.key.startswith("train_s_to"))
        medians = [row[place].value["median"] for row in at.table.rows]
        reached = [one for one in medians if one is not None]
        assert medians == sorted(reached) + [None] * (len(medians) - len(reached))


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\" ' {{ 7*7 }} \ud800 \x1b[31m"


def test_a_hostile_header_does_nothing(results):
    huge = "A" * 4_000
    events = [evaluation(0, 0.0, 0.0), evaluation(100, 9.0, 0.9)]
    told = {
        "budget": huge,
        "host": {"name": HOSTILE[:-8], "cores": None, "machine": ""},
        "versions": {"torch": huge[:200]},
        "error": HOSTILE[:-8] + "\x1b[31m",
    }
    write_run(results, header("ist", method_label=HOSTILE[:-8], cell="one", **told), events)
    write_run(results, header("ddp", workload_label=HOSTILE[:-8], cell="two"), events)
    write_run(results, header("ist", method_label=HOSTILE[:-8], cell="three"), events)
    report = build_report(results)
    text = page_html(build_page(report, results / "page.html"))
    assert len(text) < 2_000_000
    read = Reader(text)
    assert len([one for one, _ in read.scripts if "type" not in one]) == 4
    assert not read.all("img")
    assert "alert(1)" in read.text
    assert read.text.count("{{ 7*7 }}") > 2, "no field is a template"
    assert "\x1b" not in text
    told = [spec["description"] for spec in specs(read)]
    assert any("</script><script>alert(1)" in one for one in told)  # inert inside its JSON
    assert "</script><script>" not in text


def many_runs(directory, methods=8, seeds=5, nodes=(2, 4, 8, 16, 32), evaluations=50):
    """Runs that are on no disk."""
    for method in range(methods):
        for count in nodes:
            for seed in range(seeds):
                head = msgspec.convert(
                    header(f"method{method}", nodes=count, seed=seed), Header, dec_hook=decode_own
                )
                pace = 1.37 + method / 3 + seed / 7
                events = [
                    evaluation(step, step * pace, 0.9 * step / evaluations + seed / 997, sent=step * 123_457)
                    for step in range(evaluations)
                ]
                curve = Curve.from_events(events, head.own_metric)
                yield Run(header=head, curve=curve, directory=RunDirectory(directory / head.cell))


def test_two_hundred_runs_fit_into_a_mail(results):
    runs = list(many_runs(results))
    assert len(runs) == 200
    report = Report(tables=(), plots=(), problems=(), groups=tuple(group_runs(runs)))
    path = results / "page.html"
    write_page(build_page(report, path), path)
    assert 500_000 < path.stat().st_size < 3_000_000


def test_results_without_a_finished_run_or_a_target_have_a_page(results):
    write_run(results, header(status="failed", error="died"), [])
    assert "No finished runs." in page_html(build_page(build_report(results), results / "p"))
    write_run(results, header("ist", cell="done", targets=[], workload="toy"), ramp(9.0))
    text = page_html(build_page(build_report(results), results / "p"))
    assert "These runs have no target to reach." in text


def test_a_file_that_cannot_be_written_is_named(page, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the page .*file.page.html: .*name another file"):
        write_page(page, tmp_path / "file" / "page.html")


def test_a_page_of_very_many_runs_says_what_it_leaves_out_and_keeps_every_figure(monkeypatch, tmp_path):
    for seed in range(3):
        for method in ("ddp", "ist"):
            write_plausible(tmp_path, method, seed=seed)
    report = build_report(tmp_path)
    whole = build_page(report, tmp_path / "page.html")
    monkeypatch.setattr(page_module, "_MOST_SETTINGS", 4)
    monkeypatch.setattr(page_module, "_MOST_SEED_LINES", 5)
    short = build_page(report, tmp_path / "page.html")
    (one,), (other,) = whole.studies, short.studies
    assert whole.problems == ()
    assert short.problems == (
        "from the page of speech: the 6 curves of single seeds; the medians and ranges of all rows are there",
        "from the page of speech: settings of 2 of 6 runs; each run.json has them",
    )
    assert (len(one.cells), other.cells) == (6, one.cells[:4])
    for (_, all_lines), (_, few) in zip(one.elsewhere, other.elsewhere, strict=True):
        for full, bare in zip(all_lines.panels[0].series, few.panels[0].series, strict=True):
            assert len(full.each) == 3
            assert bare == dataclasses.replace(full, each=())
    for first, second in zip(one.clocks, other.clocks, strict=True):
        assert (first.by_target, first.by_nodes, first.notes) == (second.by_target, second.by_nodes, second.notes)
    assert "settings of 2 of 6 runs" in page_html(short)
