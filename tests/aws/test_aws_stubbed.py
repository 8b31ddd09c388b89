"""What moto does not do, answered by botocore's stubber, which holds both sides to AWS's own description."""

from datetime import UTC, datetime

import fake_aws
import pytest
from botocore.stub import Stubber
from moto_aws import HERE, answer

from istbench.aws import session
from istbench.aws.stack import as_stack, delete_stack, find_stack, wait_until_complete
from istbench.aws.template import TAG
from istbench.base.errors import RunFailed

NAME = "2xm5-2xlarge"
IDENTITY = f"arn:aws:cloudformation:us-east-1:1:stack/istbench-{NAME}/1"
THEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def stubbed(monkeypatch, tmp_path):
    """A stubber of the client of a service; every answer it was given has to be asked for."""
    fake_aws.nobodys_credentials(monkeypatch, tmp_path)
    session._client.cache_clear()
    stubbers = []

    def stub(service):
        stubber = Stubber(HERE.client(service))
        stubber.activate()
        stubbers.append(stubber)
        return stubber

    yield stub
    session._client.cache_clear()
    for stubber in stubbers:
        stubber.assert_no_pending_responses()


def described(status):
    return {
        "StackId": IDENTITY, "StackName": f"istbench-{NAME}", "CreationTime": THEN, "StackStatus": status,
        "Tags": [{"Key": TAG, "Value": NAME}],
    }  # fmt: skip


def add_statuses(stubber, *statuses):
    for status in statuses:
        stubber.add_response("describe_stacks", {"Stacks": [described(status)]}, {"StackName": IDENTITY})


def add_events(stubber, status, *pages):
    """Pages of what became of resources, the latest first."""
    for number, page in enumerate(pages):
        events = [
            {
                "StackId": IDENTITY, "EventId": name, "StackName": f"istbench-{NAME}", "Timestamp": THEN,
                "LogicalResourceId": name, "ResourceStatus": status, "ResourceStatusReason": why,
            }
            for name, why in page.items()
        ]  # fmt: skip
        more = {"NextToken": str(number + 1)} if number + 1 < len(pages) else {}
        asked = {"StackName": IDENTITY, **({"NextToken": str(number)} if number else {})}
        stubber.add_response("describe_stack_events", {"StackEvents": events, **more}, asked)


def test_a_stack_that_aws_takes_back_says_what_failed_first_and_the_way_out(stubbed):
    stubber, said = stubbed("cloudformation"), []
    add_statuses(stubber, "CREATE_IN_PROGRESS", "CREATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
    cancelled = {"Node1": "Resource creation cancelled", "Machine": "Resource creation cancelled"}
    add_events(stubber, "CREATE_FAILED", cancelled, {"Node0": "We currently do not have sufficient capacity"})
    with pytest.raises(RunFailed, match="was not created.*: Node0: We currently .*; AWS has no such machines free"):
        wait_until_complete(HERE, NAME, IDENTITY, said.append)
    assert said == [f"AWS creates the stack istbench-{NAME}"]


def test_a_stack_that_stays_is_named_with_what_keeps_it(stubbed):
    stubber = stubbed("cloudformation")
    stubber.add_response("delete_stack", {}, {"StackName": IDENTITY})
    add_statuses(stubber, "DELETE_IN_PROGRESS", "DELETE_FAILED")
    add_events(
        stubber, "DELETE_FAILED", {"Network": "has dependencies"}, {"Group": "resource has a dependent object"}
    )
    with pytest.raises(RunFailed, match="was not deleted: Group: resource has a dependent object; run .* again"):
        delete_stack(HERE, as_stack(described("CREATE_COMPLETE")))


def test_a_page_in_the_place_of_aws_is_one_line(stubbed):
    portal = "<!doctype html>\n<title>Sign in to this network</title>\n"
    events = HERE.client("cloudformation").meta.events
    events.register("before-send", lambda request, **_: answer(request, 200, portal))
    with pytest.raises(
        RunFailed, match="for cluster .*, but something else answered .*: check the connection"
    ) as said:
        find_stack(HERE, NAME)
    assert len(str(said.value).splitlines()) == 1
