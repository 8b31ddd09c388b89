"""A report as JSON."""

import json

from read_tables import printed


def test_json_holds_numbers_and_null(report):
    text, notes = printed(report, "json")
    (table,) = json.loads(text)["tables"]
    row = table["rows"][1]
    assert row["method"] == "ist"
    assert row["nodes"] == 2
    assert row["train_s_to_0.8"]["median"] is None
    assert row["train_s_to_0.7"]["median"] > 0
    assert table["context"]["data"] == "synthetic"
    assert notes == ""
