"""
Check the language of the repository. `make lint` runs this script, without arguments.

In all files: turns that are archaic, or sound translated. In the documentation, outside of code and tables: how many
words a sentence has, and how many in the mean of a page.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parent.parent
LONGEST_SENTENCE, LONGEST_MEAN = 40, 16  # words of any sentence, and of those of a page in the mean

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
FORBIDDEN = {
    re.compile(r"(?<![\w.`])(?:" + turn.replace(" ", r"[\s#*/]+") + r")(?![\w`])", re.IGNORECASE): instead
    for turn, instead in TURNS.items()
}
#: Generated, translated, not ours, or a list of the turns themselves.
SKIPPED = re.compile(r"\.(po|mo|png|ico)$|^LICENSE$|_pb2|(^|/)(test_)?prose\.py$")
DOCUMENTATION = re.compile(r"(docs/.*|README|CONTRIBUTING)\.md$")

#: No sentences: fenced code, comments, tables, headings, labels, and the addresses of links.
NO_PROSE = re.compile(
    r"^ *(```+|~~~+).*?^ *\1$|<!--.*?-->|^ *\|.*?$|^#.*?$|^\([^\n]*\)=$|(?<=\])\([^)]*\)", re.MULTILINE | re.DOTALL
)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*(?:[*+-]|\d+\.) )|\n(?=>)")
SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)(?<=[.!?])[*_\")]*\s+(?=[A-Z`*_\"(\[])")


def turns(text: str) -> Iterator[tuple[int, str]]:
    """Yield the place and the complaint for each forbidden turn."""
    for pattern, instead in FORBIDDEN.items():
        for found in pattern.finditer(text):
            yield found.start(), f'"{" ".join(found[0].split())}": write {instead}'


def sentences(page: str) -> Iterator[tuple[int, int]]:
    """Yield the place and the number of words of each sentence of a Markdown page. Code within a line is one word."""
    prose = NO_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page)
    prose = re.sub(r"`[^`]*`", lambda found: "`" + re.sub(r"[^\n]", "x", found[0])[2:] + "`", prose)
    begin = 0
    for end in [*sorted({found.end() for rule in (PARAGRAPH, SENTENCE) for found in rule.finditer(prose)}), len(prose)]:
        words = re.findall(r"\S*\w\S*", prose[begin:end])
        if len(words) > 1:
            yield begin + len(prose[begin:end]) - len(prose[begin:end].lstrip()), len(words)
        begin = end


def complaints(name: str, text: str) -> list[str]:
    """Return a line for each fault of a file."""
    faults = list(turns(text))
    if DOCUMENTATION.match(name) and (found := list(sentences(text))):
        faults += [(at, f"a sentence of {words} words") for at, words in found if words > LONGEST_SENTENCE]
        if (average := mean(words for _, words in found)) > LONGEST_MEAN:
            faults.append((0, f"sentences of {average:.1f} words in the mean"))
    return [f"{name}:{text.count(chr(10), 0, at) + 1}: {fault}" for at, fault in sorted(faults)]


def main() -> int:
    """Print the faults of all files that git knows or would add; return 1 if there are any."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    files = [name for name in names if not SKIPPED.search(name) and (ROOT / name).is_file()]
    found = [line for name in files for line in complaints(name, (ROOT / name).read_text())]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
