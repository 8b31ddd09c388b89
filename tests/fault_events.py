"""Events of runs that lose workers at known seconds."""

from fake_runs import resume, start

from istbench.results.events import Evaluation, Loss, Ready

BEGAN = 1_000_000.0


def evaluation(step, train_s, wall_s):
    return Evaluation(
        step=step, samples=step, train_s=train_s, wall_s=wall_s, assemble_s=0.25 if step else 0.0,
        evaluate_s=0.25 if step else 0.1, bytes_sent_per_node=0, bytes_received_per_node=0, train_loss=None,
        metrics={"accuracy": 0.5},
    )  # fmt: skip


def loss(step, noticed, noticing_s):
    lost = Loss(cause="killed", noticed=BEGAN + noticed, noticing_s=noticing_s, redone_steps=1, redone_s=1.0)
    return resume(step, loss=lost)


def ready(step, starting_s, loading_s=0.5):
    return Ready(step=step, starting_s=starting_s, loading_s=loading_s)


FAULT_FREE = [start(), evaluation(0, 0, 0.1), evaluation(10, 4.0, 4.9), evaluation(20, 8.0, 9.8)]
