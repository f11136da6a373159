"""The bundled plays of Shakespeare: one Markdown text, cut into plays and scenes without losing a byte."""

import lzma
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from oarlock.train.data.sources import Document

NAME = "shakespeare"
_FILE = "shakespeare.txt.xz"
HELD_OUT = ("The Comedy of Errors", "Richard III")

# Headings as the edition has them: four levels of `#`, four bare EPILOGUE lines, two scene lines without `###`.
_HEADING = re.compile(r"#{1,4} .*|EPILOGUE\s*|SCENE [IVX]+:.*")
_TITLE = re.compile(r"# (?!EPILOGUE|INTERMISSION)(.*)")
_FIRST_ACT = re.compile(r"## ACT I\s*")
# The one play whose title line is missing shows as a second first act.
_UNTITLED = "Measure for Measure"


def bundled_file() -> Path:
    """Path of the compressed plays, beside this module in an installed package or under data/ in a source tree.

    Raises:
        FileNotFoundError: this installation came without them.
    """
    here = Path(__file__)
    candidates = [here.with_name(_FILE), here.parents[4] / "data" / _FILE]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"the bundled corpus {NAME!r} is not part of this installation: no {' or '.join(map(str, candidates))}; "
        "use a source checkout, or name a file or folder of your own text"
    )


def read_scenes(*, held_out: bool) -> Iterator[Document]:
    """Scenes of the bundled plays: those of the two held-out plays, or those of all others."""
    with lzma.open(bundled_file(), "rt", encoding="utf-8", newline="") as lines:
        for title, scene in split_scenes(lines):
            if (title in HELD_OUT) == held_out:
                yield scene


def split_scenes(lines: Iterable[str]) -> Iterator[tuple[str, Document]]:
    """Cut Markdown plays into (title of the play, scene); joining the texts gives back the input.

    A scene starts at a run of headings (title, act and scene lines belong to the scene they announce), as do
    prologues, inductions and epilogues.

    Args:
        lines: lines with their line ends, the first of them a title.
    """
    title, act, acts_begun = "", "", 0
    text: list[str] = []
    headings: list[str] = []
    in_headings = False
    for line in lines:
        if _HEADING.fullmatch(line.rstrip("\n")):
            if not in_headings and text:
                yield title, Document("".join(text), _name(title, act, headings))
                text, headings = [], []
            in_headings = True
            heading = line.strip("# \n")
            if new_title := _TITLE.match(line):
                title, act, acts_begun = new_title[1].strip(), "", 0
            elif heading.startswith("ACT "):
                act = heading
                acts_begun += bool(_FIRST_ACT.fullmatch(line))
                if acts_begun == 2:
                    title, acts_begun = _UNTITLED, 1
            else:
                headings.append(heading)
        elif line.strip() and (headings or not line.startswith("_")):
            in_headings = False  # a stage direction between an act's heading and its first scene's ends nothing
        text.append(line)
    if text:
        yield title, Document("".join(text), _name(title, act, headings))


def _name(title: str, act: str, headings: list[str]) -> str:
    return " / ".join(part for part in (title, act, *headings) if part)
