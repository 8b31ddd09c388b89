"""The networks that fit, planned beside the papers' failures."""

from istbench.studies.reproduce.memory import PlannedMemory


def test_the_plan_of_adam_fits_where_the_paper_trained():
    found = PlannedMemory(source="IST table 2", cluster="p3.2xlarge", nodes=8, optimizer="adam").compare(())
    rows = {(row.method.split()[0], row.network): row for row in found.rows}
    assert len(rows) == 10
    assert rows["ddp", "hidden=512"].published_text == "trained"
    assert rows["ddp", "hidden=512"].ours_text.startswith("fits, 7.70 GiB")
    assert rows["ddp", "hidden=1024"].published_text == "failed"
    assert rows["ddp", "hidden=1024"].ours_text.startswith("no, 0.5 GiB short")
    assert rows["ist", "hidden=2560"].ours_text == "fits, 9.29 GiB"
    assert not any(row.ours_text.endswith("differs") for row in found.rows)
