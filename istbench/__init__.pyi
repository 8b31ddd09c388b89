"""The types of what `import istbench` offers: istbench/__init__.py imports each when it is used."""

from istbench.api.advice import advise as advise
from istbench.api.cells import compare as compare
from istbench.api.cells import run as run
from istbench.api.estimate import estimate as estimate
from istbench.api.results import Results as Results
from istbench.api.results import load as load
from istbench.api.task import Task as Task
from istbench.base.errors import RunFailed as RunFailed
from istbench.base.errors import UserError as UserError
from istbench.plan.recording.block import record as record
from istbench.results.frame import read_rows as read_rows

__version__: str
