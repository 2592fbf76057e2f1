"""
Check the language of the repository. `make lint` runs this script, without arguments.

In all files: turns that are archaic, or sound translated. In all Markdown files, outside of code and tables: how many
words a sentence has, and how many in the mean of a page. In all Python files: names with a word that the
glossary replaces, names that do not say what a value is, names of tests, and docstrings that are no sentences.

With `--names`, check the names and docstrings alone, in all Python files or in those of the folders that follow.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
LONGEST_SENTENCE, LONGEST_MEAN = 30, 13  # words of any sentence, and of those of a longer page in the mean

#: What to write instead of what. A space is any white space, also with the sign of a comment between.
TURNS = {
    r"the own": "its own, or: this process's",
    r"to be had": "free, or: available",
    r"lets? go of|letting go of": "release",
    r"anew": "again",
    r"beside": "next to, apart from, or: with",
    r"stands(?! (?:by|for|in for)\b)": "is",
    r"comes to(?! rest\b)": "becomes, is, or: reaches",
    r"nobody's|whoever(?:'s)?": "a name: the caller, the holder, everybody who",
    r"no more(?=[.,;:)\"']|\n\n)": "no longer, or: nothing else",
    r"thereby|therein|thereof|whence|thence|hitherto|henceforth|whilst|amongst|lest|upon|shall": "a plain word",
    r"bailiffs?|errands?": "a word of the glossary",
}
FORBIDDEN = re.compile(
    r"(?<![\w.`])(?:" + "|".join(f"({turn})" for turn in TURNS).replace(" ", r"[\s#*/]+") + r")(?![\w`])", re.IGNORECASE
)
INSTEAD = [*TURNS.values()]
#: Generated, translated, not ours, or a list of the turns themselves.
SKIPPED = re.compile(r"\.(po|mo|png|ico)$|(^|/)LICENSE$|_pb2|(^|/)(test_)?prose\.py$")
BUILT = re.compile(r"^\.|^(build|dist)/|^docs/_build/|__pycache__|\.egg-info/")

#: No sentences: fenced code, comments, tables, headings, labels, and the addresses of links, also at the end of a page.
NO_PROSE = re.compile(
    r"^ *(```+|~~~+).*?^ *\1$|<!--.*?-->|^ *\|.*?$|^#.*?$|^\([^\n]*\)=$|(?<=\])\([^)]*\)|^\[[^]\n]+\]: .*?$",
    re.MULTILINE | re.DOTALL,
)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[*+-]|\d+\.) )|\n(?=>)")
SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)(?<=[.!?])[*_\")]*\s+(?=[A-Z`*_\"(\[])")


def turns(text: str) -> Iterator[tuple[int, str]]:
    """Yield the place and the complaint for each forbidden turn."""
    for match in FORBIDDEN.finditer(text):
        yield match.start(), f'"{" ".join(match[0].split())}": write {INSTEAD[(match.lastindex or 1) - 1]}'


def sentences(page: str) -> Iterator[tuple[int, int]]:
    """Yield the place and the number of words of each sentence of a Markdown page. Code within a line is one word."""
    prose = NO_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page)
    prose = re.sub(r"`[^`]*`", lambda match: "`" + re.sub(r"[^\n]", "x", match[0])[2:] + "`", prose)
    begin = 0
    for end in [*sorted({match.end() for rule in (PARAGRAPH, SENTENCE) for match in rule.finditer(prose)}), len(prose)]:
        words = re.findall(r"\S*\w\S*", prose[begin:end])
        if len(words) > 1:
            yield begin + len(prose[begin:end]) - len(prose[begin:end].lstrip()), len(words)
        begin = end


def complaints(name: str, text: str) -> list[str]:
    """Return a line for each fault of a file."""
    faults = list(turns(text))
    if name.endswith(".md") and (lengths := list(sentences(text))):
        faults += [(at, f"a sentence of {words} words") for at, words in lengths if words > LONGEST_SENTENCE]
        if len(lengths) > 4 and (average := mean(words for _, words in lengths)) > LONGEST_MEAN:
            faults.append((0, f"sentences of {average:.1f} words in the mean"))
    return [f"{name}:{text.count(chr(10), 0, at) + 1}: {fault}" for at, fault in sorted(faults)]


#: Names that do not say what the value is.
EMPTY_NAMES = {"found", "each", "one", "some", "told", "place"}
LONGEST_TEST_NAME = 80  # characters
UNREADABLE_TEST = re.compile(r"test_(?:who|whose|whoever|what|whatever|those|nobody)_|_in_line\b")
#: Names in which a word of the glossary's "Not" lists has another sense, or that another project has chosen.
OTHER_SENSES = {
    "cluster": r"\w*cluster",  # kazoo's and PostgreSQL's word
    "enter": r"_?entered",  # said of a block
    "expiry": r"\w*expiry\w*",  # of a session or a message
    "free": r"\w+_free|\w*free_\w+",  # the adjective
    "kill": r".*",  # said of processes
    "line": r"_?(?!in_|on_|wait_)(?:\w+_)?lines?(?:_(?:of|around|count|goals|length))?|line_strike",  # of text
    "member": r"members?|autodoc_member_order",  # of an enum
    "mutex": r"\w*_?mutex",  # a lock of the threading module
    "ping": r".*",  # ZooKeeper's request
    "revoke": r"\w*revoked?",  # Celery's word for tasks
    "sign": r"signs|_?sign|signed\w*|signing",  # said of tokens
    "take": r"taken_at|_?take_snapshot",  # said of a snapshot
    "ttl": r".*",  # ZooKeeper's flag of a znode
}
#: Docstrings that begin like this are no sentences; those of the second kind only if they are short and have no verb.
FRAGMENT = re.compile(r"(?:The same|Do the same|As (?:it|they|before)|Who(?:ever)?|What(?:ever)?)\b")
VERBLESS = re.compile(r"(?:Of|By|As|Like|Than|Likewise|Nor|And|Or|Even|Also|So|Neither|Not)\b")
VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|can|cannot|may|must|will|would|does|do|did|[a-z]{2,}s)\b")


def replaced_words(glossary: str) -> dict[str, str]:
    """Return the words that the glossary replaces, with the word to use. A word with an entry of its own is none."""
    entries = re.findall(r"^\* \*\*(.+?)\*\*(.*?)(?=^\* |\Z)", glossary, re.MULTILINE | re.DOTALL)
    defined = {word for word, _ in entries}
    return {
        other: word
        for word, text in entries
        for listed in re.findall(r"\*Not:\s+([^.*]*)", text)
        for other in " ".join(listed.lower().split()).split(", ")
        if other not in defined and not other.startswith("which ")
    }


@functools.cache
def forms(word: str) -> set[str]:
    """Return the regular forms of a word, with underscores for spaces."""
    word = word.replace(" ", "_")
    stem = word.removesuffix("e")
    return {word, f"{word}s", f"{stem}ed", f"{stem}ing", f"{word}n"}


@functools.cache
def replaced_in(name: str, replaced: tuple[str, ...]) -> set[str]:
    """Return which of these words are in a name, in any form."""
    return {word for word in replaced for form in forms(word) if f"_{form}_" in f"_{name}_"}


def names(name: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    """Yield the first line of each name that a module defines, and whether it is that of a value."""
    yield 1, Path(name).stem, False
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name, False
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, True
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr, True
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.lineno, node.name, True


def fragments(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the first sentence of each docstring, of a name or below a value, that is no sentence."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            sentence = re.split(r"(?<=[.:;])\s", node.value.value.strip(), maxsplit=1)[0]
            verbless = VERBLESS.match(sentence) and len(sentence.split()) < 9 and not VERB.search(sentence)
            if FRAGMENT.match(sentence) or verbless:
                yield node.lineno, sentence


def complaints_of_names(name: str, text: str, replaced: dict[str, str]) -> list[str]:
    """Return a line for each name and docstring of a Python file that breaks a rule."""
    nodes = list(ast.walk(ast.parse(text)))
    words, faults = tuple(replaced), dict[str, tuple[int, str]]()
    for at, identifier, is_value in names(name, nodes):
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", identifier).lower()
        if identifier.startswith("__"):
            continue  # Python's
        if identifier.startswith("test_"):
            if UNREADABLE_TEST.search(identifier) or list(turns(identifier.replace("_", " "))):
                faults.setdefault(identifier, (at, f"{identifier}: name the property"))
            if len(identifier) > LONGEST_TEST_NAME:
                faults.setdefault(identifier, (at, f"{identifier}: {len(identifier)} characters"))
        elif is_value and plain.strip("_") in EMPTY_NAMES:
            faults.setdefault(identifier, (at, f"{identifier}: name what it is"))
        else:
            for word in replaced_in(plain, words):
                if not re.fullmatch(OTHER_SENSES.get(word, ""), plain):
                    faults.setdefault(identifier, (at, f"{identifier}: the glossary says {replaced[word]}, not {word}"))
    all_faults = [*faults.values(), *((at, f"no sentence: {sentence}") for at, sentence in fragments(nodes))]
    return [f"{name}:{at}: {fault}" for at, fault in sorted(all_faults)]


def listed() -> list[str]:
    """
    Return the files that git knows or would add.

    Where git is missing, has no checkout here, or mistrusts its owner: all files outside of hidden folders and builds.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.split("\0")[:-1]
    return [name for path in sorted(ROOT.rglob("*")) if not BUILT.search(name := str(path.relative_to(ROOT)))]


def main(arguments: list[str]) -> int:
    """Print the faults of all files of the project; return 1 if there are any."""
    texts = {
        name: (ROOT / name).read_text() for name in listed() if not SKIPPED.search(name) and (ROOT / name).is_file()
    }
    only_names = arguments[:1] == ["--names"]
    folders = tuple(arguments[1:])
    replaced = replaced_words(GLOSSARY.read_text())
    lines = []
    for name, text in texts.items():
        if not only_names:
            lines += complaints(name, text)
        if name.endswith(".py") and name.startswith(folders or ""):
            lines += complaints_of_names(name, text, replaced)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
