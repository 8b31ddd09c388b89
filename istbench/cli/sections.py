"""Help of commands with many options: in sections, in the order in which a user meets them."""

import click

SECTIONS = {
    "What to train": (
        "method", "methods", "workload", "nodes", "seed", "seeds", "controls", "method_options", "workload_options",
        "batch_size", "plugins", "trials", "ranges",
    ),
    "How long, and judged by what": (
        "steps", "epochs", "max_seconds", "target", "eval_every", "held_out", "tuned",
    ),
    "Data and computing": (
        "data", "device", "threads", "amp", "channels_last", "compile", "timeout_s", "checkpoint_every_s",
        "restarts", "anyway",
    ),
    "Other machines": (
        "hosts", "hosts_python", "ssh_config", "install", "spare", "detach", "stop", "slurm",
    ),
}  # fmt: skip
"""Options by name. All others belong to the results."""
_REST = "Results"


class SectionedCommand(click.Command):
    """A command whose help has its options in `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list for each section that has options of this command."""
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in (*SECTIONS, _REST)}
        place = {option: name for name, options in SECTIONS.items() for option in options}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is not None:
                found[place.get(option.name or "", _REST)].append(record)
        for name, records in found.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
