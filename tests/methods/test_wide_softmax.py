"""What methods of a wide softmax refuse, and how they cut a model: without processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istbench.base.errors import UserError
from istbench.methods.cut_model import even_cut
from istbench.node.registry import build_method, build_workload
from istbench.workloads.contract import blank_model

WIDE = ("model_parallel", "sampled_softmax", "dslide")


def check(method, options=None, *, workload="amazon670k", nodes=2, **sizes):
    built = build_workload(workload, sizes)
    model = blank_model(built)
    method = build_method(method, options or {}, workload=built)
    method.check(method.options, model, built, nodes)
    return method.footprint(model, built, nodes, 32)


@given(st.integers(1, 100), st.integers(1, 100))
def test_a_cut_is_even_and_whole(size, parts):
    cut = even_cut(size, parts)
    assert [index for own in cut for index in own] == list(range(size))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1
    assert len(cut) == parts


@pytest.mark.parametrize("method", WIDE)
def test_what_has_no_wide_softmax_or_too_little_of_one_is_refused(method):
    with pytest.raises(UserError, match="wide softmax .* 'toy' has none; amazon670k has one$"):
        check(method, workload="toy")
    with pytest.raises(UserError, match="an output for each node, but 'labels' has 5 for 6 nodes"):
        check(method, labels=5, nodes=6)
    with pytest.raises(UserError, match="a hidden unit for each node, but 'hidden' has 3 for 4 nodes"):
        check(method, hidden=3, nodes=4)


@pytest.mark.parametrize("method", WIDE[1:])
def test_more_active_outputs_than_there_are_are_refused(method):
    with pytest.raises(UserError, match="target_active=101 is more than the 100 outputs"):
        check(method, {"target_active": 101}, labels=100)
    check(method, {"target_active": 100}, labels=100)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adamw"}, "use adam or sgd"),
        ({"optimizer": "sgd", "momentum": 0.9}, "momentum updates every weight"),
        ({"weight_decay": 0.1}, "weight_decay updates every weight"),
        ({"functions": 4}, "functions .K. and tables .L. belong together"),
        ({"functions": 4, "tables": 2, "target_active": 9}, "leave it out, or leave out both"),
        ({"common_share": 0.5, "random_share": 0.5}, "leave no outputs for hashing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        check("dslide", options)


def test_tables_that_cannot_be_are_refused_with_their_size():
    with pytest.raises(UserError, match=r"functions=11 of 3 bits .* 50 tables of 2\^33 buckets .* take 1,718.0 GB"):
        check("dslide", {"family": "dwta", "functions": 11, "tables": 50}, hidden=16)
    small, large = (
        check("dslide", {"family": "simhash", "functions": count, "tables": 50}, hidden=16) for count in (10, 20)
    )
    assert large.buffers - small.buffers == 4 * 50 * (2**20 - 2**10)


def test_a_node_keeps_its_share_with_its_optimizer_state():
    sizes = {"features": 100, "hidden": 8, "labels": 1_000}
    dense = check("model_parallel", {"optimizer": "adam"}, nodes=4, **sizes)
    share = 4 * (100 * 2 + 2 + 250 * 8 + 250)
    assert sum(parameter.nbytes for parameter in dense.model.parameters()) == share
    assert dense.optimizer_state == 2 * share
    few = check("sampled_softmax", {"optimizer": "adam", "target_active": 40}, nodes=4, **sizes)
    used = sum(parameter.nbytes for parameter in few.model.parameters())
    assert used == 4 * (100 * 2 + 2 + 10 * 8 + 10)
    assert (used + few.parameters_beside, few.optimizer_state) == (share, 2 * share)
