"""Methods, workloads and sinks by name: entry points of installed packages, plug-in files, and task files.

Listing names and one-line summaries imports none of their code, which would import torch.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import SourceLoader
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from istbench.base.decode import encode_own, missing_file, read_bytes
from istbench.base.error_lines import TASK_FILE, error_line, note_plugin, said_by
from istbench.base.errors import UserError, printable, shown, unknown_name
from istbench.base.files import is_file
from istbench.base.options.options import build_options
from istbench.base.options.run import RunConfig
from istbench.base.options.task_file import CODE_NAME, is_task_file, named_with_file, task_name
from istbench.base.plugin_code import users_code

if TYPE_CHECKING:
    from istbench.methods.base import Method
    from istbench.node.sinks.base import EvaluationSink
    from istbench.workloads.base import Workload

_AGAIN = "run the cell again with --again"
PluginKind = Literal["methods", "workloads", "sinks"]
_InstalledKind = PluginKind | Literal["optimizers"]


@dataclass(frozen=True)
class Registered:
    """A registered name, the first line of its class's docstring, and its package."""

    name: str
    summary: str
    package: str


def registered(kind: PluginKind) -> list[Registered]:
    """All installed methods, workloads or sinks, by name."""
    return [
        Registered(name, _summary(point), point.dist.name if point.dist else "")
        for name, point in sorted(_installed(kind).items())
    ]


def names_of(kind: PluginKind, plugins: Iterable[str] = ()) -> list[str]:
    """The names of all installed methods, workloads or sinks, then those that the files `plugins` define."""
    local = [name for path in plugins for name in plugin_names(Path(path), kind)]
    return list(dict.fromkeys([*sorted(_installed(kind)), *local]))


def load_method(name: str, plugins: Iterable[str] = ()) -> "type[Method]":
    """The method class called `name`.

    Raises:
        UserError: for an unknown name, or a plug-in that does not load.
    """
    return _load("methods", name, plugins)


def load_workload(name: str, plugins: Iterable[str] = ()) -> "type[Workload]":
    """The workload class called `name`, or of the task file at path `name`.

    Raises:
        UserError: for an unknown name, or a plug-in that does not load.
    """
    return _load("workloads", name, plugins)


def own_options(
    method: str, methods: Collection[str], shared: Mapping[str, Any], plugins: Iterable[str]
) -> dict[str, Any]:
    """The `shared` options that `method` has.

    Raises:
        UserError: for an option that none of `methods` has.
    """
    if not shared:
        return {}
    known = {name: option_names(name, plugins) for name in methods}
    for option in shared:
        if not any(option in names for names in known.values()):
            raise unknown_name("option", option, set().union(*known.values()), f"of {', '.join(methods)}")
    return {option: value for option, value in shared.items() if option in known[method]}


def option_names(method: str, plugins: Iterable[str] = ()) -> set[str]:
    return {field.name for field in dataclasses.fields(load_method(method, plugins).Options)}


def load_sink(text: str) -> "type[EvaluationSink]":
    """The class of the sink in the text of `--sink`, NAME or NAME=WHERE.

    Raises:
        UserError: for an unknown name, a class that does not load, an empty place, or a package that is missing.
    """
    name, equals, where = (part.strip() for part in text.partition("="))
    if equals and not where:
        raise UserError(f"--sink {shown(text)} names no place after =; leave out the =, or give a directory")
    kind: type[EvaluationSink] = _load("sinks", name, ())
    missing = [package for package in kind.packages if importlib.util.find_spec(package) is None]
    if missing:
        wanted = kind.requirement or " ".join(missing)
        raise UserError(f"sink {name} needs {', '.join(missing)}, which is not installed: pip install {wanted}")
    return kind


def build_method(
    name: str,
    options: Mapping[str, Any],
    *,
    workload: "Workload | None" = None,
    seed: int = 0,
    plugins: Iterable[str] = (),
) -> "Method":
    """The method called `name` with `options` (values, or texts as typed) over the defaults of `workload`.

    Raises:
        UserError: as `load_method` does, and for an unknown option or a wrong value.
    """
    kind = load_method(name, plugins)
    suited = {} if workload is None else suited_defaults(kind, workload, name, options)
    built = build_options(kind.Options, options, f"method {name!r}", suited)
    return kind(built, seed=seed)


def suited_defaults(
    kind: "type[Method]", workload: "Workload", name: str, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The defaults of `workload` for method `name` of class `kind`, beside the given `options`.

    Defaults that name no optimizer are rates of the usual one, sgd. A method with another optimizer, by itself or
    by `options`, takes none of them.
    """
    from istbench.methods.optimizer import OF_RULES, OptimizerOptions

    defaults = workload.method_defaults(name)
    usual = OptimizerOptions.optimizer
    own = {field.name: field.default for field in dataclasses.fields(kind.Options)}.get("optimizer", usual)
    suits = defaults.get("optimizer", usual)
    if options.get("optimizer", defaults.get("optimizer", own)) == suits:
        return defaults
    return {option: value for option, value in defaults.items() if option not in OF_RULES}


def build_workload(name: str, options: Mapping[str, Any], plugins: Iterable[str] = ()) -> "Workload":
    """The workload called `name` with `options` (values, or texts as typed), before its data is opened.

    Raises:
        UserError: as `load_workload` does, and for an unknown option or a wrong value.
    """
    kind = load_workload(name, plugins)
    return kind(build_options(kind.Options, options, f"workload {name!r}", {}))


def code_of(kind: PluginKind, name: str, plugins: Iterable[str] = ()) -> str:
    """An identity of the code of `name`: its distribution and version, if any, and a hash of its file.

    Empty for istbench's own code. The hash covers this one file, not the files that it imports.

    Raises:
        UserError: as loading it does.
    """
    if kind == "workloads":
        name, plugins = named_with_file(name, plugins)
    for path in map(Path, reversed(tuple(plugins))):
        if name in plugin_names(path, kind):
            return _digest(path)
    point = _installed(kind).get(name)
    if point is None:
        raise unknown_name(kind[:-1], name, _installed(kind))
    return _code_of_entry(point)


def _code_of_entry(point: EntryPoint) -> str:
    if _is_own(point.module):
        return ""
    spec = importlib.util.find_spec(point.module)
    file = _digest(Path(spec.origin)) if spec and spec.origin else ""
    return " ".join(filter(None, [*((point.dist.name, point.dist.version) if point.dist else ()), file]))


def code_of_rule(options: Mapping[str, Any]) -> str:
    """The identity of the code of the update rule among the options of a method; empty for istbench's own."""
    point = _installed("optimizers").get(str(options.get("optimizer")))
    return "" if point is None else _code_of_entry(point)


def code_of_cell(workload: str, method: str, plugins: Iterable[str] = (), *, options: Mapping[str, Any]) -> str:
    """The identity of all code of a cell that is not istbench's own: of its method, workload and update rule.

    options: of the method.

    Raises:
        UserError: as `code_of` does.
    """
    plugins = tuple(plugins)
    codes = [code_of("methods", method, plugins), code_of("workloads", workload, plugins), code_of_rule(options)]
    return ", ".join(filter(None, dict.fromkeys(codes)))


def plugins_of(config: RunConfig, given: Iterable[str]) -> tuple[str, ...]:
    """Those of the plug-in files `given` that trained a recorded run, by digest, before any of them is imported.

    The record itself names no file to import: its paths and names are another person's, and only words here.

    Raises:
        UserError: if other code than istbench's own trained the run, and neither the files nor an installed package
            have it.
    """
    recorded = config.code.split(", ") if config.code else []
    digests = {_digest(Path(path)): path for path in given}
    chosen = tuple(digests[code] for code in recorded if code in digests)
    names: dict[PluginKind, str] = {"methods": config.method, "workloads": config.workload}
    installed = [code_of(kind, name) for kind, name in names.items() if name in _installed(kind)]
    installed.append(code_of_rule(config.method_options))
    unknown = [name for kind, name in names.items() if name not in _installed(kind)] if not recorded else []
    lacking = [code for code in recorded if code not in digests and code not in installed]
    if lacking or unknown:
        files = [printable(Path(path).name) for path in config.plugins] or ["FILE.py"]
        flags = " ".join(f"--plugin {shlex.quote(file)}" for file in files)
        told = f" (digest {printable(lacking[0])})" if lacking else f": istbench has no {unknown[0]}"
        copy, or_again = "your copy of it", ""
        edited = {name: own for own, path in digests.items() if (name := printable(Path(path).name)) in files}
        if lacking and edited:
            told += "".join(f", and {name} has digest {own}" for name, own in edited.items())
            copy, or_again = "your copy from before the change", f", or {_AGAIN}"
        raise UserError(f"code that is not istbench's own trained it{told}; give {copy} by {flags}{or_again}")
    found = code_of_cell(config.workload, config.method, chosen, options=config.method_options)
    if found != config.code:
        named = f"the code {printable(config.code)}" if config.code else "no code beside istbench"
        raise UserError(
            f"its record names {named}, but {config.method} and {config.workload} here are "
            f"{found or 'those of istbench'}; {_AGAIN}"
        )
    return chosen


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "istbench"


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path, "a Python file")).hexdigest()[:12]


def _installed(kind: _InstalledKind) -> Mapping[str, EntryPoint]:
    return _installed_in(tuple(filter(_has_packages, sys.path)))[kind]


@functools.cache
def _has_packages(folder: str) -> bool:
    return any(True for _ in distributions(path=[folder]))


@functools.cache  # this reads a file of every package; a plan needs it a hundred times, and so does each worker
def _installed_in(_folders: tuple[str, ...]) -> Mapping[_InstalledKind, Mapping[str, EntryPoint]]:
    points = entry_points()
    return {
        kind: {point.name: point for point in points.select(group=f"istbench.{kind}")}
        for kind in (*get_args(PluginKind), "optimizers")
    }


def own_modules(kind: PluginKind, names: Iterable[str]) -> list[str]:
    """The modules of those `names` that belong to istbench, sorted. Code of other packages is left out."""
    points = _installed(kind)
    modules = {points[name].module for name in names if name in points}
    return sorted(module for module in modules if _is_own(module))


def check_name(kind: PluginKind, name: str, plugins: Iterable[str] = ()) -> None:
    """Refuse an unknown `name` at once, without importing any installed method or workload.

    With plug-ins given, and for a task file, the check is left to loading, which looks into them.

    Raises:
        UserError: listing the known names.
    """
    known = _installed(kind)
    if name not in known and not tuple(plugins) and not (kind == "workloads" and is_task_file(name)):
        raise unknown_name(kind[:-1], name, known)


def _load(kind: PluginKind, name: str, plugins: Iterable[str]) -> Any:
    if kind == "workloads":
        name, plugins = named_with_file(name, plugins)
    local = {cls.name: cls for path in plugins for cls in _plugin_classes(Path(path), kind)}
    if name in local:
        return local[name]
    if kind == "workloads":
        # A file that lacks functions is a task too: the error names them.
        for path in map(Path, plugins):
            if task_name(path) == name and not plugin_names(path, "methods"):
                return _task(_import_file(path), path)
    points = _installed(kind)
    if name not in points:
        raise unknown_name(kind[:-1], name, {*points, *local})
    if not _is_own(points[name].module):
        note_plugin(points[name].module.partition(".")[0])
    where = f"{kind[:-1]} {printable(name)!r} ({points[name].value})"
    _check_fit(name, where)
    try:
        with users_code(f"importing {where}"):
            loaded = points[name].load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"{where} does not load: {error}") from error
    if kind != "sinks" and not _is_own(points[name].module):
        _check_class(loaded, where)
    return loaded


def plugin_names(path: Path, kind: PluginKind) -> list[str]:
    """Names of the methods or workloads that plug-in or task file `path` defines."""
    return [cls.name for cls in _plugin_classes(path, kind)]


def _plugin_classes(path: Path, kind: PluginKind) -> list[Any]:
    from istbench.methods.base import Method
    from istbench.workloads.base import Workload

    module = _import_file(path)
    own = [cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__]
    plugged = [cls for cls in own if issubclass(cls, Method | Workload)]
    if not plugged:
        task = any(callable(getattr(module, name, None)) for name in ("model", "data"))
        return [_task(module, path)] if kind == "workloads" and task else []
    base = Method if kind == "methods" else Workload
    # A class without a name of its own may be a base of others.
    classes = [
        cls for cls in plugged if issubclass(cls, base) and ("name" in vars(cls) or not inspect.isabstract(cls))
    ]
    for cls in classes:
        _check_class(cls, f"plug-in {path}: {cls.__name__}")
    return classes


@functools.cache
def _task(module: ModuleType, path: Path) -> Any:
    """The workload of task file `path`, whose code is `module`."""
    from istbench.workloads.task import task_workload

    note_plugin(module.__name__, TASK_FILE)
    name = task_name(path)
    if name in _installed("workloads"):
        raise UserError(f"task file {path}: istbench has a workload {name!r} of its own; rename the file")
    sys.path.append(str(path.resolve().parent))  # its functions may import files beside it
    return task_workload(module, path)


def _check_fit(name: str, where: str) -> None:
    """Check that `name` can be part of a directory's name: run directories contain it."""
    if not re.match(CODE_NAME, name):
        raise UserError(f"{where} needs a name of letters, digits, _, - and . only, which does not end in .py")


def _check_class(cls: Any, where: str) -> None:
    """Check that `cls` has all that its base asks for."""
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        raise UserError(f"{where} lacks {', '.join(lacking)} (docs/plugins.md)")
    _check_fit(str(getattr(cls, "name", "")), where)
    _check_options(getattr(cls, "Options", None), f"{where}.Options")


def _check_options(options: Any, where: str) -> None:
    """Check that `options` is a dataclass with a default for every field."""
    if not (inspect.isclass(options) and dataclasses.is_dataclass(options)):
        raise UserError(f"{where} must be a frozen dataclass (docs/plugins.md, Bounds of options)")
    for field in dataclasses.fields(options):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{where}: option {field.name} needs a default")
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        plain = not isinstance(default, set | frozenset)  # whose order differs between processes
        try:
            msgspec.to_builtins(default, enc_hook=encode_own)
        except (NotImplementedError, TypeError):
            plain = False
        if not plain:
            kinds = "a number, a text, True, None, an enum or a tuple of these"
            raise UserError(f"{where}: the default of option {field.name} must be {kinds}")


def _import_file(path: Path) -> ModuleType:
    if not is_file(path):
        raise missing_file(path, "a Python file")
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not isinstance(spec.loader, SourceLoader):
        raise UserError(f"plug-in {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    note_plugin(name)
    try:
        with users_code(f"importing plug-in {printable(str(path))}"), _beside(path), _same_numbers():
            # From the text: Python's cache takes a file that was edited within the second for the one before.
            exec(spec.loader.source_to_code(spec.loader.get_data(str(path)), str(path)), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        where = (error_line(error) or "").partition(", in ")[0].partition(", ")[2]
        reason = printable(said_by(error))
        raise UserError(f"{printable(str(path))} does not load: {f'{where}: ' if where else ''}{reason}") from error
    return module


def _module_name(path: Path) -> str:
    """A name from the whole path, with hashes of it and of the text.

    `a/b_c.py` and `a_b/c.py` are the same with _ in place of /. A file that is edited in a notebook's session is
    another module.
    """
    whole = path.resolve()
    short = hashlib.sha256(os.fsencode(whole)).hexdigest()[:12]
    return f"istbench_plugin_{whole.as_posix().replace('/', '_').removesuffix('.py')}_{short}_{_digest(path)}"


@contextmanager
def _same_numbers() -> Iterator[None]:
    """Inside, code draws the same random numbers in every process and run: a file may split its data there."""
    from istbench.node.checkpoint import random_state_kept

    with random_state_kept(0):
        yield


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    """Inside, code may import the files beside `path`, as a script may."""
    folder = str(path.resolve().parent)
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _summary(point: EntryPoint) -> str:
    """First line of the class's docstring, read from the source."""
    try:
        spec = importlib.util.find_spec(point.module)
        tree = ast.parse(Path(spec.origin or "").read_text(encoding="utf-8")) if spec else ast.Module([], [])
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == point.attr:
            return (ast.get_docstring(node) or "").split("\n")[0]
    return ""
