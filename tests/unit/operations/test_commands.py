"""The commands: their arguments, tables, and help, and those that pages, logs and errors print as data."""

import argparse
import ast
import io
import re
import shlex
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from django.core.management.base import CommandParser, OutputWrapper
from django.test import override_settings
from support.lookinfo import HOLDER

import django_zklock
from django_zklock.core.queue.command_line import command
from django_zklock.core.queue.escaping import printable
from django_zklock.inspection import LockInfo, OperatorHold
from django_zklock.management import output
from django_zklock.management.arguments import add_name, key_of, seconds
from django_zklock.management.commands.zklock import SUBCOMMANDS, Command
from django_zklock.report import formatting
from django_zklock.report.verdict import CAUSES

LOCKS = {"URL": "zk://127.0.0.1:1/x", "LOCKS": {"inventory": {"path": "inventory/{sku}"}}}


@pytest.mark.parametrize(
    ("text", "span"), [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("15m", 900), ("2h", 7200), ("1d", 86400), ("0", 0)]
)
def test_a_span_of_time_is_parsed(text, span):
    assert seconds(text) == span


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1w", "1e400", "400d", "ms"])
def test_a_wrong_span_of_time_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_table_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    out, head, row = Terminal(), ("lock", "runs", "held"), ("x" * 120, "shop.charge" * 9, "4 min 3 s")
    output.write_table(OutputWrapper(out), head, [row], cut=("lock", "runs"))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[1].endswith("4 min 3 s")


def test_a_table_that_is_no_text_for_a_terminal_is_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = io.StringIO()
    output.write_table(OutputWrapper(out), ("lock", "held"), [("x" * 120, "1 s")], cut=("lock",))
    assert "x" * 120 in out.getvalue()


@pytest.mark.parametrize(
    ("name", "fields", "key"),
    [
        ("orders/7", {}, "orders/7"),
        ("orders/a b", {}, "orders/a%20b"),
        ("orders/a%20b", {}, "orders/a%20b"),
        ("100% sure", {}, "100%25%20sure"),
        ("inventory", {"sku": "x/y"}, "inventory/x%2Fy"),
        ("orders/{pk}", {"pk": "7"}, "orders/7"),
        ("a/123456789%30", {}, "a/1234567890"),
        ("a/1234567890", {}, "a/1234567890"),
    ],
)
def test_a_name_or_a_key_names_a_lock(name, fields, key):
    with override_settings(ZKLOCK=LOCKS):
        assert key_of(argparse.Namespace(name=name, fields=fields)) == key


def test_a_field_is_given_once(capsys):
    """The last value would win, and lock another key than the reader of the command expects."""
    parser = argparse.ArgumentParser()
    add_name(parser)
    given = parser.parse_args(["{a}/{b}", "--field=a=1", "--field=b=2"]).fields
    assert given == {"a": "1", "b": "2"}
    assert parser.parse_args(["k"]).fields == {}
    with pytest.raises(SystemExit):
        parser.parse_args(["{a}", "--field=a=1", "--field=a=2"])
    assert "'a' is given twice" in capsys.readouterr().err


def parsers():
    parser = Command().create_parser("manage.py", "zklock")
    (action,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_help_has_the_exit_codes_and_examples(name):
    help_text = parsers()[name].format_help()
    assert f"\n  python manage.py zklock {name}" in help_text
    assert "exit codes:\n  0 done; 1 refused" in help_text
    for code in ("2", "3", "4", "20", "31", "69", "75", "76", "126, 127"):
        assert re.search(rf"\b{code} \w", help_text)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_example_can_be_parsed(name):
    parser = Command().create_parser("manage.py", "zklock")
    assert isinstance(parser, CommandParser)
    for example in SUBCOMMANDS[name][1]:
        options = parser.parse_args([name, *shlex.split(example.partition(">")[0])])
        assert options.subcommand == name


# --- commands that are printed, to be pasted into a shell -------------------------------------------------------------


NOW = datetime(2026, 11, 20, tzinfo=UTC)
PACKAGE = Path(django_zklock.__file__).parent
PARSER = Command().create_parser("manage.py", "zklock")
HOSTILE = (
    *("--settings=evil", "--pythonpath=/srv/uploads", "--pythonpath", "-h", "--help", "-v", "-", "--reason=x", "=ls"),
    *("", "a b", "it's", '"', "a\\", "!!", "~root", "*", "#", "{a,b}", "a;id", "$(id)", "`id`", "&&", "a\nid\n", "\r"),
    *("\x1b[2K\x1b]0;x\x07", "\u202egro.live", "\u200b", "\u00a0", "Jürgen 倉庫", "\t", "\x7f", "'\n'", "\udc80\\\n"),
)
"""Texts that a host, a key or an id may be. ZooKeeper and argparse refuse some of them as a key, but we do not."""


def printed(value):
    """Yield each command that is made without ZooKeeper, for a lock, a host and a task whose names are this value."""
    operator = OperatorHold(key=value, path="", by=value, reason=value, since=NOW, seconds=60, token=5)
    holder = replace(HOLDER, host=value, path=f"/zklock/{value}")
    for contender in (holder, replace(holder, session_id=0), replace(holder, operator=operator)):
        lock = LockInfo(key=value, path=f"/zklock/{value}", holders=(contender,), waiting=1)
        yield from formatting.hold_commands(lock.key, lock.holders[0])
        for cause in CAUSES.values():
            yield from cause(host=value, keys=(value,), holders=((value, contender),)).commands()


def split_by_shell(lines):
    script = "".join(f"printf '%s\\0' {line}; printf '\\1\\0'\n" for line in lines)
    done = subprocess.run(["bash", "-eu"], input=script.encode(), capture_output=True, check=True)
    texts = done.stdout.decode(errors="surrogateescape").removesuffix("\1\0").split("\1\0")
    return [text.removesuffix("\0").split("\0") for text in texts]


def settings_of(arguments):
    """Return the settings and the path of imports, as `ManagementUtility.execute` finds them in `sys.argv[2:]`."""
    parser = CommandParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    parser.add_argument("args", nargs="*")
    options, _rest = parser.parse_known_args(arguments)
    return [options.settings, options.pythonpath]


@pytest.mark.parametrize("value", HOSTILE)
def test_each_value_in_a_printed_command_is_data(value):
    lines = sorted(set(printed(value)))
    passed = printable(value)
    assert all(line.isprintable() for line in lines)
    commands = split_by_shell(lines)
    for words in commands:
        assert_is_data(passed, words)
    assert {words[3] for words in commands} == {*("doctor", "show", "list", "request-release", "break", "end-hold")}


def assert_is_data(passed, words):
    """Fail unless the value is nothing but a name, a host, or an id of a command of ours."""
    assert words[:3] == ["python", "manage.py", "zklock"]
    assert settings_of(words[3:]) == [None, None]
    filled = [text if text != "--reason=" else "--reason=it hangs" for text in words[3:]]
    options = vars(PARSER.parse_args(filled))
    given = [options.get(of) for of in ("name", "host", "task_id", "words") if of in options]
    assert given in ([], [passed], [passed, [passed]], [""], ["", [passed]], [None]), words
    assert options.get("settings") is options.get("pythonpath") is None
    assert options.get("reason") in (None, "it hangs")


def test_no_value_of_an_option_is_split_from_it():
    line = command("show", "-h", host="--settings=x", what=None, reply_timeout=2.5, reason="")
    assert line == "python manage.py zklock show --host=--settings=x --reply-timeout=2.5 --reason='' -- -h"
    assert command("devserver") == "python manage.py zklock devserver"


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("show --json", "name"),
        ("list --sort=key", "pattern"),
        ("break --token=5 --reason=x", "name"),
        ("request-release --token=5 --reason=x", "name"),
        ("hold --for=5m --reason=x", "name"),
        ("end-hold --token=5 --reason=x", "name"),
        ("hold --for=5m --wait=1m --reason=x", "name"),
    ],
)
def test_each_key_may_come_after_the_options(before, name):
    """Some releases of argparse do not find them all by themselves."""
    for key in ("--settings=x", "-h", "--", "a b"):
        words = [*before.split(), "--", key]
        assert settings_of(words) == [None, None]
        assert vars(PARSER.parse_args(words))[name] in (key, [key])


_COMMAND = re.compile(rf"manage\.py zklock|zkCli\.sh -|zklock ({'|'.join(SUBCOMMANDS)})\b")


@cache
def nodes():
    """Return each text in the modules of the package but for its docstrings, and each into which values are put."""
    texts = []
    docstrings = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                texts.append((path, node))
            elif isinstance(node, ast.Expr):
                docstrings.add(node.value)
    return [(path, node) for path, node in texts if node not in docstrings]


def test_no_other_module_makes_a_command():
    """A text may name a sub-command, if no value is put into that text."""
    formatted = {id(part) for _, node in nodes() if isinstance(node, ast.JoinedStr) for part in node.values}
    for path, node in nodes():
        if path.name != "command_line.py" and isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not makes_a_command(node.value, is_formatted=id(node) in formatted), path
    assert [path.name for path in PACKAGE.rglob("*.py") if "shlex" in path.read_text()] == ["command_line.py"]


def makes_a_command(text, *, is_formatted):
    if "manage.py zklock" in text or "zkCli.sh -" in text:
        return True
    has_values = is_formatted or bool(re.search(r"%[(sdr]|\{\w*\}", text))
    return has_values and bool(_COMMAND.search(text))


def test_no_template_and_no_translation_has_a_command():
    for pattern in ("*.html", "*.js", "*.po", "*.txt"):
        for path in PACKAGE.rglob(pattern):
            assert not _COMMAND.search(path.read_text()), path


def test_no_value_is_appended_to_a_command():
    for path, node in nodes():
        for part, after in pairwise(node.values if isinstance(node, ast.JoinedStr) else []):
            if isinstance(part, ast.FormattedValue) and "command(" in ast.unparse(part):
                assert not isinstance(after, ast.FormattedValue), path
                assert not str(getattr(after, "value", "")).startswith(" "), path
