"""`reference/log-messages.md` has each message that the package logs, and no other."""

import ast
import functools
import re
from importlib import import_module
from pathlib import Path

from support.docs import text_of

import django_zklock
from django_zklock.core.zk import troubles
from django_zklock.operations import audit

PACKAGE = Path(django_zklock.__file__).parent
METHODS = {level.lower(): level for level in ("DEBUG", "INFO", "WARNING", "ERROR")}
METHODS |= {"exception": "ERROR", "log": "", "report": "WARNING"}
"""The level of each method; empty if the call chooses it. The coordinator's denials have the last one."""
KAZOO = "django_zklock.zk.kazoo"
FORMAT = re.compile(r"%(?:\(\w+\))?[\d.]*[a-z]")
VALUE = re.compile(r"\b[A-Z]{2,}\b|\bN\b")
"""A word of the page that is a value of the message."""

Message = tuple[tuple[str, ...], str, str]
"""The logger, the level, and the text. A row of the page may belong to one of several loggers."""


def loggers(tree, module):
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


PASSED_ON = {
    "django_zklock.zk": "No connection to ZooKeeper at %s: %s.",
    "zklock.audit": "the lock coordinator refused requests of many others",
}
"""The text that a logger gets by a call of `"%s"`."""


def texts(argument, logger):
    if isinstance(argument, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in argument.values)]
    if isinstance(argument, ast.Constant):
        return [PASSED_ON[logger] if argument.value == "%s" else str(argument.value)]
    assert ast.unparse(argument) == "_MESSAGES[what]"
    return list(audit._MESSAGES.values())


def logged():
    """Yield the messages of the package. The requests that kazoo logs at DEBUG are left out."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        module = "django_zklock." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        names = loggers(tree, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                logger, level = names.get(ast.unparse(node.func.value)), METHODS[node.func.attr]
                if logger and (logger, level) != (KAZOO, "DEBUG"):
                    yield from (((logger,), level, text) for text in texts(node.args[0 if level else 1], logger))


def documented():
    """Yield the rows of the page: those below the heading of their loggers, and the defects."""
    sections = re.split(r"^## ", text_of("reference/log-messages.md"), flags=re.MULTILINE)[1:]
    for section in sections:
        heading = section.partition("\n")[0]
        names = tuple(re.sub(r"^\.", "django_zklock.", name) for name in re.findall(r"`([\w.]+)`", heading))
        for level, text in re.findall(r"^\* (DEBUG|INFO|WARNING|ERROR) `([^`]+)`(?::|$)", section, re.MULTILINE):
            yield names, level, text
        if heading == "Defects":
            for logger, messages in re.findall(r"^`([\w.]+)`:\n\n((?:\* `.*\n)+)", section, re.MULTILINE):
                yield from (((logger,), "ERROR", text) for text in re.findall(r"`([^`]+)`", messages))


@functools.cache
def pattern(text, value):
    return re.compile(".*".join(map(re.escape, value.split(text))))


def same(call, row):
    """Return whether a row of the page is about a call. A text of the page may end in an ellipsis."""
    ((logger,), level, text), (names, shown_level, shown) = call, row
    if logger.removesuffix(".kazoo") not in names or level not in ("", shown_level):
        return False
    if shown.endswith("..."):
        return pattern(shown.removesuffix("...").rstrip(), VALUE).match(text) is not None
    return pattern(text, FORMAT).fullmatch(shown) is not None


def test_the_page_has_each_message_that_is_logged_and_no_other():
    calls, rows = sorted(set(logged())), sorted(set(documented()))
    assert [call for call in calls if not any(same(call, row) for row in rows)] == []
    assert [row for row in rows if not any(same(call, row) for call in calls)] == []
    assert min(len(calls), len(rows)) > 75


def test_every_reason_of_a_loss_is_on_the_page():
    reasons = text_of("reference/log-messages.md").partition("### Reasons of a loss")[2].partition("\n## ")[0]
    assert set(troubles.ALL) - set(re.findall(r"`([^`]+)`", reasons)) == set()
