"""
Draw the diagrams of the documentation. `python scripts/diagrams.py` writes them to `docs/images`.

They are drawn here, and not in the reader's browser, so that GitHub and the site show the same without a download.
Each has light and dark colours; a viewer that knows only one of them gets a background that goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.left { text-anchor: start }
.page { fill: #ffffff }
.box { fill: #eef2f7; stroke: #6e7781 }
.note, .warn { fill: #fff3c4; stroke: #9a6700 }
.stop { fill: #ffdcd7; stroke: #b3261e }
.line { fill: none; stroke: #57606a; stroke-width: 1.3 }
.faint { stroke: #c5ccd3 }
.dashed { stroke-dasharray: 4 4 }
.head, .mark { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .page { fill: #16181d }
  .box { fill: #262c36; stroke: #8b949e }
  .note, .warn { fill: #4a3b0d; stroke: #d4a72c }
  .stop { fill: #5a211d; stroke: #ff8f85 }
  .line { stroke: #adb6c0 }
  .faint { stroke: #3d444d }
  .head, .mark { fill: #adb6c0 }
}
"""
COLUMN, STEP = 200, 36  # pixels between two actors, and between two steps or rows
LEFT, SECOND = 245, 19  # pixels to the left of the first second, and of one second


@dataclass(frozen=True, slots=True)
class Message:
    """An arrow from one actor to another. From an actor to itself, it is a step that the actor takes."""

    sender: str
    receiver: str
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A box across the lines of all actors from the first to the last."""

    first: str
    last: str
    text: str


SEQUENCES: dict[str, list[Message | Note]] = {
    "lock-and-commit": [
        Note("Holder", "ZooKeeper", "the lock is held"),
        Message("Holder", "Database", "BEGIN"),
        Message("Holder", "Database", "work"),
        Note("Holder", "Holder", "check the lock again"),
        Message("Holder", "Database", "COMMIT"),
        Message("Holder", "ZooKeeper", "release"),
        Message("ZooKeeper", "Waiter", "your predecessor is gone"),
        Message("Waiter", "Database", "BEGIN"),
        Message("Waiter", "Database", "read what was committed"),
    ],
    "waiting-task": [
        Message("Broker", "Main process", "message"),
        Message("Main process", "ZooKeeper", "queue for the lock"),
        Note("Main process", "Pool process", "The task waits in the main process. The pool runs other tasks."),
        Message("ZooKeeper", "Main process", "lock granted"),
        Message("Main process", "Pool process", "task"),
        Note("Pool process", "Pool process", "work"),
        Message("Pool process", "Main process", "work has ended"),
        Message("Main process", "ZooKeeper", "release"),
    ],
    "one-lock": [
        Message("Caller", "zklock-loop", "1 start: Acquisition, Contender"),
        Message("zklock-loop", "zklock-connection", "2 create, list: Gateway"),
        Message("zklock-connection", "zklock-loop", "3 replies"),
        Note("zklock-loop", "zklock-loop", "waits: Predecessors"),
        Message("zklock-loop", "Caller", "4 outcome: Grant"),
        Message("Caller", "zklock-loop", "5 watch: Block, Guard"),
        Message("zklock-loop", "Caller", "6 abort, if the lock is lost"),
        Note("Caller", "Caller", "the block ends: COMMIT"),
        Message("Caller", "zklock-loop", "7 release: Hold, Contender"),
        Message("zklock-loop", "zklock-connection", "8 delete: Deletion, Registry"),
        Message("zklock-connection", "zklock-loop", "reply"),
        Message("zklock-loop", "Caller", "9 gone"),
    ],
}
ACTORS = {
    "lock-and-commit": ("Holder", "Database", "ZooKeeper", "Waiter"),
    "waiting-task": ("Broker", "Main process", "ZooKeeper", "Pool process"),
    "one-lock": ("Caller", "zklock-loop", "zklock-connection"),
}

#: The bars of each row: first and last second, text and colour. With one second, it is a mark.
LEASE: dict[str, list[tuple[int, int, str, str]]] = {
    "The hold is": [(0, 2, "held", "box"), (2, 8, "suspect", "warn"), (8, 28, "lost", "stop")],
    "By default": [(8, 8, "aborts", "mark")],
    "grace=3": [(5, 5, "aborts", "mark")],
    "grace=0": [(2, 2, "aborts", "mark")],
    "The session at ZooKeeper": [(0, 20, "lives", "box"), (20, 26, "ends", "warn")],
    "The next holder": [(0, 20, "waits", "box"), (20, 26, "is granted", "stop")],
}


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """Return a text whose middle is at (x, y), or that begins at x if it is of the kind `left`."""
    return f'<text x="{x:g}" y="{y + 4.5:g}"{f" class={kind!r}" if kind else ""}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a rectangle by its upper left corner."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"/>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str = "") -> str:
    """Return a line."""
    return f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" class="line {kind}"/>'


def arrow(x: float, y: float, to_x: float, kind: str = "") -> str:
    """Return a horizontal line with a head."""
    back = -8 if to_x > x else 8
    head = f'<path d="M{to_x:g} {y:g}l{back} -4v8z" class="head"/>'
    return line(x, y, to_x + back / 2, y, kind) + head


def picture(width: float, height: float, title: str, parts: Iterator[str]) -> str:
    """Return the file. Its title is for readers who open the image on its own."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>'
    page = f'<rect width="{width:g}" height="{height:g}" rx="6" class="page"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", page, *parts, "</svg>\n"])


def sequence(actors: tuple[str, ...], steps: list[Message | Note]) -> Iterator[str]:
    """Draw who sends what to whom, from the top to the bottom."""
    x = {actor: COLUMN * (index + 0.5) for index, actor in enumerate(actors)}
    for actor in actors:
        yield line(x[actor], 46, x[actor], 74 + STEP * len(steps), "faint")
        yield box(x[actor] - 80, 14, 160, 32) + label(x[actor], 30, actor)
    for index, step in enumerate(steps):
        y = 78 + STEP * index
        if isinstance(step, Note):
            left, right = x[step.first] - 84, x[step.last] + 84
            yield box(left, y - 16, right - left, 26, "note") + label((left + right) / 2, y - 3, step.text)
        else:
            begin, end = x[step.sender], x[step.receiver]
            yield arrow(begin, y, end) + label((begin + end) / 2, y - 10, step.text)


def lease() -> Iterator[str]:
    """Draw the time line of a hold whose connection breaks."""
    left, bottom = LEFT, 20 + STEP * len(LEASE)
    for second in range(0, 29, 2):
        x = left + SECOND * second
        yield line(x, 14, x, bottom, "faint") + label(x, bottom + 14, f"{second}" + " s" * (second == 28))
    for index, (row, bars) in enumerate(LEASE.items()):
        y = 32 + STEP * index
        yield label(14, y, row, "left")
        for begin, end, text, kind in bars:
            x, width = left + SECOND * begin, SECOND * (end - begin)
            if kind == "mark":
                yield f'<circle cx="{x}" cy="{y}" r="6" class="mark"/>' + label(x + 14, y, text, "left")
            else:
                yield box(x, y - 12, width, 24, kind) + label(x + width / 2, y, text)


def queue() -> Iterator[str]:
    """Draw the directory of a lock with its contenders."""
    yield box(14, 14, 622, 130) + label(325, 36, "/myproject/zklock/inventory/4711")
    for index, (number, state) in enumerate([(3, "holder"), (4, "waiter"), (7, "waiter")]):
        x = 28 + 222 * index
        yield box(x, 62, 150, 64, "page" if index else "note") + box(x, 62, 150, 64, "line")
        yield label(x + 75, 84, f"…lock-{number:010}") + label(x + 75, 106, state)
        if index:
            yield arrow(x, 94, x - 72) + label(x - 34, 80, "watches")
    yield box(676, 62, 146, 64) + label(749, 84, "a new contender") + label(749, 106, "gets …0000000008")
    yield arrow(676, 94, 636, "dashed")


def diagrams() -> dict[str, str]:
    """Return the contents of all files, by name."""
    pictures = {
        f"{name}.svg": picture(COLUMN * len(ACTORS[name]), 84 + STEP * len(steps), name, sequence(ACTORS[name], steps))
        for name, steps in SEQUENCES.items()
    }
    pictures["lease.svg"] = picture(LEFT + SECOND * 28 + 30, 50 + STEP * len(LEASE), "lease", lease())
    pictures["queue.svg"] = picture(836, 158, "queue", queue())
    return pictures


if __name__ == "__main__":
    for file, svg in diagrams().items():
        (IMAGES / file).write_text(svg)
