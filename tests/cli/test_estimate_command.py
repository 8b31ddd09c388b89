"""`istbench estimate` on a command line."""

import json

import pytest

from istbench.cli import main

TWO = ("estimate", "--parameters", "10M", "--step", "100ms", "--nodes", "2", "--bandwidth", "1gbit")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, *capsys.readouterr()


def test_the_first_line_answers_and_no_line_is_wide(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    status, out, _ = run(capsys, *TWO)
    assert status == 0
    assert out.startswith("2 nodes are slower than one. On 2 nodes with links of 1 Gbit/s and 60 µs, ddp takes")
    assert max(map(len, out.splitlines())) <= 100


def test_hosts_of_gpus_are_counted(capsys):
    status, out, _ = run(capsys, *TWO, "--gpus-per-host", "4", "--json", "--method", "ddp,zero")
    found = json.loads(out)
    assert status == 0
    assert found["inputs"]["nodes"] == 8
    assert found["inputs"]["hosts"] == 2
    assert [row["method"] for row in found["rows"]] == ["ddp", "zero"]
    assert set(found["rows"][0]["bandwidth_for"]) == {"0.5", "0.75", "0.9", "0.95"}
    assert found["rows"][0]["low"] <= found["rows"][0]["step_s"] <= found["rows"][0]["high"]


def test_a_line_explains_no_column_that_is_not_there(capsys):
    for nodes, there in (("1", False), ("2", True)):
        _, out, _ = run(capsys, *TWO, "--nodes", nodes, "--method", "ddp")
        assert ("G: Gbit/s of" in " ".join(out.split()), "50%" in out) == (there, there)


def test_a_nominal_rate_names_the_measurement(capsys):
    out = run(capsys, *TWO[:-1], "25gbit", "--method", "ddp")[1]
    assert "istbench doctor --hosts" in out.replace("\n", " ")


def test_plan_and_map_take_the_record(capsys, tmp_path):
    file = str(tmp_path / "my.record.json")
    assert run(capsys, *TWO, "--method", "ddp", "--save", file)[0] == 0
    status, out, _ = run(capsys, "plan", file, "--method", "ddp", "--nodes", "2", "--json")
    assert status == 0
    assert json.loads(out)["model_parameters"] == 10_000_000
    assert run(capsys, "map", file, "--method", "ddp,local_sgd", "--bandwidth", "1gbit", "--nodes", "2")[0] == 0


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (("--parameters", "0"), "--parameters '0' is not a number such as 125M"),
        (("--parameters", "٣M"), "--parameters '٣M' is not a number such as 125M"),
        (("--parameters", "12X"), "--parameters '12X' is not a number"),
        (("--step", "0ms"), "a step takes more than 0 seconds"),
        (("--step", "220"), "has no unit"),
        (("--step", "1us", "--samples", "1000"), "shorter than its arithmetic"),
        (("--nodes", "0"), "--nodes"),
        (("--gpus-per-host", "100"), "no host has more than 72 GPUs"),
        (("--nodes", "4096", "--gpus-per-host", "8"), "--nodes times --gpus-per-host"),
        (("--nodes", "64", "--gpus-per-host", "8"), "name at most 256"),
        (("--bandwidth", "25GB"), "a B means bytes"),
        (("--backward", "1"), "--backward"),
        (("--method", "dpp"), "dpp"),
        (("--method", "ddp accumulate=0"), "accumulate"),
    ],
)
def test_wrong_numbers_get_one_line(capsys, typed, line):
    status, out, err = run(capsys, *TWO, *typed)
    last = [text for text in err.splitlines() if text.startswith("istbench: ")]
    assert status == 2
    assert not out
    assert len(last) == 1
    assert line in last[0]


def test_layers_must_add_up(capsys, tmp_path):
    file = tmp_path / "layers.csv"
    file.write_text("name,parameters\na,9000000\nb,1000x1000\n")
    assert run(capsys, *TWO, "--layers", str(file), "--method", "ddp compress=powersgd")[0] == 0
    file.write_text("a,9000000\nb,1000x1001\n")
    assert "together, but --parameters is 10,000,000" in run(capsys, *TWO, "--layers", str(file))[2]
    for line in ("a", "a,²", "a,٣", "a,0x4", f"a,{'9' * 5000}", f"a,{'9x' * 300_000}9"):
        file.write_text(f"{line}\n")
        assert f"line 1: {line[:9]!r}"[:-1] in run(capsys, *TWO, "--layers", str(file))[2]


def test_a_page_has_the_curves(capsys, tmp_path):
    page = tmp_path / "page.html"
    assert run(capsys, *TWO, "--method", "ddp,local_sgd", "--html", str(page))[0] == 0
    text = page.read_text()
    assert "2 nodes are slower than one" in text
    assert "bandwidth of a node" in text
