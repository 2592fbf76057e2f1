"""The log messages of the package on their page, read from its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import django_zklock

PAGE = "reference/log-messages"
MARKER = "<!-- messages: from the code -->\n"
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
    if isinstance(argument, ast.Constant):
        return [PASSED_ON[logger] if argument.value == "%s" else str(argument.value)]
    from django_zklock.operations import audit  # noqa: PLC0415 - after the set-up of Django

    return list(audit._MESSAGES.values())


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


def table() -> str:
    """Return a row for each message. A value in it is an ellipsis."""
    rows = sorted((logger, level or "any", FORMAT.sub("…", text)) for logger, level, text in set(logged()))
    lines = [f"| `{logger}` | {level} | {text.replace('|', '')} |" for logger, level, text in rows]
    return "\n".join(["| Logger | Level | Message |", "|---|---|---|", *lines, ""])


def add_messages(app, page, source):
    if page == PAGE:
        source[0] = source[0].replace(MARKER, table())


def setup(app):
    app.connect("source-read", add_messages)
