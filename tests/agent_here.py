"""A host whose agent answers in this process, without ssh."""

import io
from concurrent.futures import Future

from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.connection import Refused
from istbench.launch.hosts.remote_actions import ACTIONS


class AgentHere:
    """A connection to such a host; an error of an action is that of a real one."""

    def __init__(self, name="host"):
        self.name, self.agent = name, Agent(io.StringIO(), {})

    def act(self, do, arguments):
        return ACTIONS[do](self.agent, arguments)

    def ask(self, do, **arguments):
        future = Future()
        try:
            future.set_result(self.act(do, arguments))
        except OSError as error:
            future.set_exception(Refused(error.strerror or str(error)))
        return future

    def answer(self, future, _timeout_s=0.0):
        return future.result()

    def do(self, do, _timeout_s=0.0, **arguments):
        return self.answer(self.ask(do, **arguments))

    def hang_up(self):
        """A real one closes its connection."""
