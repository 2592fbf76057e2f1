"""The German and French catalogues are complete, current and compiled."""

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

import django_zklock

ROOT = Path(django_zklock.__file__).parent
LANGUAGES = ["de", "fr"]
NUMBER_OF_TEXTS = {
    **dict.fromkeys(("_", "gettext", "gettext_lazy", "gettext_noop"), 1),
    **dict.fromkeys(("ngettext", "ngettext_lazy"), 2),
}
"""Of the calls that mark texts for translation."""
FIELD = re.compile(r"%\(\w+\)[.\d]*[sdf]|\{\w+\}")


def called(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            many = NUMBER_OF_TEXTS.get(node.func.id, 0)
            constants = tuple(arg.value for arg in node.args[:many] if isinstance(arg, ast.Constant))
            if many and len(constants) == many:
                yield tuple(str(constant) for constant in constants)


def marked(source):
    for call in re.findall(r"n?gettext\(.*?\)\s", templatize(source) + " ", flags=re.DOTALL):
        yield from called(call.replace(", count)", ")").strip())


def wanted():
    texts = set()
    for path in ROOT.rglob("*.py"):
        source = path.read_text()
        if "gettext" in source:
            texts.update(called(source))
    for path in ROOT.rglob("*.html"):
        texts.update(marked(path.read_text()))
    return texts


def written(language):
    text = (ROOT / "locale" / language / "LC_MESSAGES" / "django.po").read_text()
    translations = {}
    for entry in text.split("\n\n")[1:]:
        lines = [line for line in entry.splitlines() if not line.startswith("#")]
        texts = [ast.literal_eval(line[line.index('"') :]) for line in lines]
        ids = [value for line, value in zip(lines, texts, strict=True) if line.startswith("msgid")]
        translations[tuple(ids)] = [
            value for line, value in zip(lines, texts, strict=True) if line.startswith("msgstr")
        ]
    return translations


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated_and_no_other(language):
    there = {key for key, values in written(language).items() if all(values)}
    assert there == wanted()


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_have_the_fields_of_their_texts_and_are_compiled(language):
    with (ROOT / "locale" / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        catalogue = gettext.GNUTranslations(file)
    for ids, values in written(language).items():
        if len(ids) == 1:
            assert catalogue.gettext(ids[0]) == values[0]
        else:
            assert [catalogue.ngettext(ids[0], ids[1], count) for count in (1, 2)] == values
        for text, value in zip(ids, values, strict=True):
            assert sorted(FIELD.findall(value)) == sorted(FIELD.findall(text)), ids
