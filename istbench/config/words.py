"""A request as it is typed."""

from istbench.config.options import option_text
from istbench.config.run import RUN_OPTIONS, RunRequest


def words_of(request: RunRequest) -> tuple[str, ...]:
    """The words after `istbench` that ask for `request`, outside a lab."""
    words = ["run", f"--workload={request.workload}", f"--method={request.method}"]
    for flag, options in (("--workload-set", request.workload_options), ("--set", request.method_options)):
        words += [f"{flag}={name}={option_text(value)}" for name, value in options.items()]
    for option in RUN_OPTIONS:
        value = getattr(request, option.name)
        if value != option.default:
            words.append(option.flag if value is True else f"{option.flag}={value}")
    return (*words, *(f"--plugin={path}" for path in request.plugins))
