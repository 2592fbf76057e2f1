"""`reference/log-messages.md` has each message that the package logs, by its first words."""

import ast
import re
from pathlib import Path

from support.docs import text_of

import django_zklock
from django_zklock.core.zk import troubles

PAGE = " ".join(text_of("reference/log-messages.md").split())
LOG = re.compile(r"\w*logger\.(debug|info|warning|error|exception)")
VALUE = re.compile(r"['\"]?%(?:\(\w+\))?[\d.]*[a-z]['\"]?")


def messages():
    for path in Path(django_zklock.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and LOG.fullmatch(ast.unparse(node.func)):
                yield from (text.value for text in node.args[:1] if isinstance(text, ast.Constant))


def test_the_page_has_each_message_that_is_logged():
    beginnings = {VALUE.split(text)[0][:20].strip() for text in messages()}
    assert {text for text in beginnings if text not in PAGE} == set()
    assert len(beginnings) > 60


def test_every_reason_of_a_loss_is_on_the_page():
    reasons = PAGE.partition("### Reasons of a loss")[2].partition(" ## ")[0]
    assert set(troubles.ALL) - set(re.findall(r"`([^`]+)`", reasons)) == set()
