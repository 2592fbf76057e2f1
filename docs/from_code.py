"""
Show parts of the code on pages: causes of incidents, log messages, options, metrics, JSON and events.

A line `<!-- from the code: PART NAMES -->` of a page is replaced when the site is built.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import django_zklock

MARKER = re.compile(r"^<!-- from the code: (\w+)((?: \w+)*) -->$", re.MULTILINE)
PACKAGE = Path(django_zklock.__file__).parent
METHODS = {level.lower(): level for level in ("DEBUG", "INFO", "WARNING", "ERROR")}
METHODS |= {"exception": "ERROR", "log": "", "report": "WARNING"}
"""The level of each method; empty if the call chooses it. The coordinator's denials have the last one."""
KAZOO = "django_zklock.zk.kazoo"
FORMAT = re.compile(r"%(?:\(\w+\))?[\d.]*[a-z]")
PASSED_ON = {
    "django_zklock.zk": "No connection to ZooKeeper at %s: %s.",
    "zklock.audit": "the lock coordinator refused requests of many others",
}
"""The text that a logger gets by a call of `"%s"`."""


def loggers(tree: ast.Module, module: str) -> dict[str, str]:
    """Return the loggers of a module, by the name that they have there."""
    names = {"self._denials": "zklock.audit"}
    if module != "django_zklock.core.log":  # whose messages are those of the other modules
        names["self.logger"] = KAZOO
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func).endswith("Logger")
        ):
            (argument,) = node.value.args
            name = module if ast.unparse(argument) == "__name__" else ast.literal_eval(argument)
            names[ast.unparse(node.targets[0])] = name
        elif isinstance(node, ast.ImportFrom) and "logger" in [alias.name for alias in node.names]:
            names["logger"] = import_module(str(node.module)).logger.name
    return names


def texts(argument: ast.expr, logger: str) -> list[str]:
    """Return the messages that an argument can be."""
    if isinstance(argument, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in argument.values)]
    text = str(ast.literal_eval(argument))
    return [PASSED_ON[logger] if text == "%s" else text]


def logged() -> Iterator[tuple[str, str, str]]:
    """Yield logger, level and text of each message. The requests that kazoo logs at DEBUG are left out."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        module = "django_zklock." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        names = loggers(tree, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                logger, level = names.get(ast.unparse(node.func.value)), METHODS[node.func.attr]
                if logger and (logger, level) != (KAZOO, "DEBUG"):
                    yield from ((logger, level, text) for text in texts(node.args[0 if level else 1], logger))


def rows(head: str, cells: Iterable[tuple[str, ...]]) -> str:
    """Return a table."""
    columns = head.split(", ")
    lines = (" | ".join(line) for line in [tuple(columns), ("---",) * len(columns), *cells])
    return "\n".join(f"| {line} |" for line in lines)


def messages() -> str:
    """Return a row for each message. A value in it is an ellipsis."""
    cells = sorted((f"`{logger}`", level or "any", FORMAT.sub("…", text)) for logger, level, text in set(logged()))
    return rows("Logger, Level, Message", cells)


def causes() -> str:
    """Return a section for each cause, the worst first: its card, when that is shown, how it ends."""
    from django_zklock.report.verdict import CAUSES  # noqa: PLC0415

    parts = []
    for name, cause in CAUSES.items():
        title = re.sub(r"%\(\w+\)[ds]", "…", str(cause.title)).removesuffix(": …")
        text = " ".join(str(cause.__doc__).replace("](", "](../how-to/").split())
        parts.append(f"## {name}\n**{title}**\n\n{text}\n\n*Ends:* {cause.ends}\n")
    return "\n".join(parts)


def documented(module: str) -> dict[str, str]:
    """Return the attributes of the classes of a module, and the strings that follow them."""
    texts = {}
    for kind in ast.parse(inspect.getsource(import_module(module))).body:
        body = kind.body if isinstance(kind, ast.ClassDef) else []
        for node, following in pairwise(body):
            text = isinstance(following, ast.Expr) and ast.literal_eval(following.value)
            if isinstance(node, ast.AnnAssign) and text:
                texts[ast.unparse(node.target)] = " ".join(inspect.cleandoc(str(text)).split())
    return texts


def options(*names: str) -> str:
    """Return what these options mean."""
    texts = documented("django_zklock.conf.arguments")
    return "\n".join(f"* **`{name}`**: {texts[name]}" for name in names)


def metrics() -> str:
    """Return a row for each metric that needs no look at all locks."""
    from prometheus_client import CollectorRegistry  # noqa: PLC0415

    from django_zklock.contrib.metrics import connect, disconnect  # noqa: PLC0415

    registry = CollectorRegistry()
    connect(registry, incidents=False)
    collected = [(metric.type, metric.name, metric.documentation) for metric in registry.collect()]
    disconnect(registry)
    ends = {"counter": "_total"}
    cells = ((f"`{name}{ends.get(kind, '')}`", kind, text) for kind, name, text in sorted(collected))
    return rows("Metric, Type, Meaning", cells)


def json() -> str:
    """Return a row for each value of inspection."""
    from django_zklock.inspection.info import NAMES  # noqa: PLC0415

    return rows("Value, Fields", ((f"`{kind.__name__}`", f"`{'`, `'.join(names)}`") for kind, names in NAMES.items()))


def events() -> str:
    """Return a row for each field of an event, and for each outcome."""
    from django_zklock.contrib.events.models import Event  # noqa: PLC0415

    texts = documented("django_zklock.contrib.events.models")
    names = [field.name for field in Event._meta.get_fields() if not field.primary_key]
    fields = ((f"`{name}`", texts.get(name, "")) for name in names)
    outcomes = ((f"`{name}`", str(label)) for name, label in Event.OUTCOMES.items())
    return f"{rows('Field, Meaning', fields)}\n\n{rows('Outcome, Meaning', outcomes)}"


def replaced(text: str) -> str:
    """Return a page with what its markers name."""
    makers = {maker.__name__: maker for maker in (causes, events, json, messages, metrics, options)}
    return MARKER.sub(lambda match: makers[match[1]](*match[2].split()), text)


def replace(app, page, source):
    source[0] = replaced(source[0])


def setup(app):
    app.connect("source-read", replace)
