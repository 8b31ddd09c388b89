"""Which row of the baseline stands beside which row."""

import pytest
from fake_runs import header, ramp, write_run
from read_tables import column, footer, table_of

from istbench.report.baseline import same_value
from istbench.report.groups import split_label


def tuned(results, **seconds):
    """Runs of `METHOD_lr` in so many seconds: `ddp_0_3=9.0` is ddp with lr=0.3; lr=0.1 is the default."""
    for name, taken in seconds.items():
        method, *rate = name.split("_", 1)
        lr = rate[0].replace("_", ".") if rate else "0.1"
        head = header(method, options="" if lr == "0.1" else f"lr={lr}")
        head["config"]["method_options"] = {"lr": float(lr), **({"local_steps": 8} if method == "ist" else {})}
        write_run(results, head, ramp(taken))


def speed_ups(results, baseline="ddp"):
    return {row: entry.text for (row, _), entry in column(table_of(results, baseline), "speed_up").items()}


def test_rows_of_equal_settings_are_paired(results):
    tuned(results, ddp=18.0, ddp_0_3=11.0, ist=15.0, ist_0_3=10.0)
    assert speed_ups(results) == {
        "ddp": "baseline",
        "ddp lr=0.3": "baseline",
        "ist": "1.20× to 0.8 over ddp",
        "ist lr=0.3": "1.10× to 0.8 over ddp lr=0.3",
    }
    table = table_of(results)
    value = column(table, "speed_up")["ist lr=0.3", 2].value
    assert (value["over"], value["equal_settings"]) == ("ddp lr=0.3", True)
    assert "ddp has several rows. The speed-up names the row that it is over" in footer(table)
    assert "unequal settings" not in footer(table)


def test_compressed_rows_are_compared_with_the_plain_one(results):
    for compress, seconds in (("none", 18.0), ("bf16", 9.0)):
        head = header("ddp", options="" if compress == "none" else f"compress={compress}")
        head["config"]["method_options"] = {"lr": 0.1, "compress": compress}
        write_run(results, {**head, "compresses": compress != "none"}, ramp(seconds))
    assert speed_ups(results) == {"ddp": "baseline", "ddp compress=bf16": "2.00× to 0.8"}
    assert speed_ups(results, "ddp compress=bf16") == {"ddp": "0.500× to 0.8", "ddp compress=bf16": "baseline"}


def test_the_plainest_rows_that_a_name_has_are_the_baseline(results):
    """Options of any name: the header says whether a row accumulates or compresses."""
    for often in (1, 4):
        for few in (False, True):
            options = f"lr=0.3 often={often} few={few}"
            head = header("own", options=options, minibatches_a_step=often, compresses=few)
            write_run(results, head, ramp(9.0))

    def baselines(name):
        return [row for row, text in speed_ups(results, name).items() if text == "baseline"]

    plain, compressing = "own often=1 few=False", "own often=1 few=True"
    assert baselines("own") == [plain]
    assert baselines("own few=True") == [compressing]
    assert baselines("own often=4") == ["own often=4 few=False"]
    assert baselines("own often=4 few=True") == ["own often=4 few=True"]


def test_a_row_without_an_equal_is_compared_with_the_best_one(results):
    tuned(results, ddp=18.0, ddp_0_3=9.0, ist_0_5=6.0)
    assert speed_ups(results)["ist lr=0.5"] == "1.50× to 0.8 over ddp lr=0.3"
    table = table_of(results)
    assert not column(table, "speed_up")["ist lr=0.5", 2].value["equal_settings"]
    assert "Speed-ups between unequal settings: ist lr=0.5 over ddp lr=0.3." in footer(table)


def test_a_tuned_row_beside_an_untuned_baseline_is_said(results):
    tuned(results, ddp=18.0, ist_0_3=6.0)
    assert speed_ups(results)["ist lr=0.3"] == "3.00× to 0.8"
    assert "Speed-ups between unequal settings: ist lr=0.3 over ddp lr=0.1." in footer(table_of(results))


def test_defaults_of_methods_may_differ_without_a_word(results):
    write_run(results, header("ddp"), ramp(18.0))
    head = header("ist")
    head["config"]["method_options"]["lr"] = 0.01
    write_run(results, head, ramp(9.0))
    assert "unequal" not in footer(table_of(results))


@pytest.mark.parametrize("baseline", ["ddp lr=0.3", "ddp lr=.3", "ddp lr=0.30"])
def test_a_baseline_with_options_is_the_only_one(results, baseline):
    tuned(results, ddp=18.0, ddp_0_3=9.0, ist=6.0, ist_0_3=6.0)
    assert speed_ups(results, baseline) == {
        "ddp": "0.500× to 0.8", "ddp lr=0.3": "baseline", "ist": "1.50× to 0.8", "ist lr=0.3": "1.50× to 0.8",
    }  # fmt: skip


def test_a_default_can_be_spelled_out(results):
    tuned(results, ddp=18.0, ddp_0_3=9.0, ist_0_3=6.0)
    assert speed_ups(results, "ddp lr=0.1")["ist lr=0.3"] == "3.00× to 0.8"


def test_the_soonest_baseline_at_the_target_is_taken_and_a_miss_is_the_latest(results):
    tuned(results, ddp=18.0, ist_0_5=6.0)
    write_run(results, header("ddp", options="lr=0.3"), ramp(2.0, 0.75))
    table = table_of(results)
    value = column(table, "speed_up")["ist lr=0.5", 2].value
    assert (value["to"], value["over"]) == (0.8, "ddp")


def test_a_row_that_no_baseline_followed_is_beyond_the_budget(results):
    tuned(results, ist_0_5=6.0)
    for options in ("", "lr=0.3"):
        write_run(results, header("ddp", options=options), ramp(9.0, 0.5))
    assert speed_ups(results)["ist lr=0.5"] == "> budget to 0.8 over ddp"


def test_labels_come_apart_into_method_and_options():
    assert split_label("ist") == ("ist", {})
    assert split_label("ist lr=0.3 lab=links shaped to 100 Mbit/s amp=bf16") == (
        "ist",
        {"lr": "0.3", "lab": "links shaped to 100 Mbit/s", "amp": "bf16"},
    )


def test_texts_stand_for_values():
    assert same_value(0.3, ".30")
    assert same_value(True, "yes")
    assert same_value((0.5, 0.75), "0.5,0.75")
    assert same_value("cosine", "cosine")
    assert not same_value(True, "no")
    assert not same_value("cosine", "step")
    assert not same_value(None, "3")
