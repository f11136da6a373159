"""Every Python block of the README and of docs/ runs; every page is in the navigation; the two READMEs keep step."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order, as one program, in an empty folder."""
    program = "\n".join(blocks(page, "python"))
    if not program:
        return
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert not broken_promises(program, printed)
    if page.name in TRANSCRIPTS:
        everything = " ".join((done.stdout + done.stderr).split())
        assert not [line for line in transcripts(page) if line not in everything]


def broken_promises(program: str, printed: list[str]) -> list[str]:
    """What comments say that a line prints and it does not, where they give a value: `print(x)  # 8: and why`."""
    comments = re.findall(r"print\(.*\)  # ([\d'\[(].*|True|False)", program)
    kept = {*printed, *(f"{line[:n]}..." for line in printed for n in range(len(line)))}
    return [text for text in comments if not {text, text.split(": ")[0], text.split("; ")[0]} & kept]


TRANSCRIPTS = ["debugging.md", "compile.md", "offload.md", "convert.md"]


def transcripts(page: Path) -> list[str]:
    """The lines of texts that stand directly behind a Python block: what it prints."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    texts = [code for (before, _), (kind, code) in itertools.pairwise(found) if (before, kind) == ("python", "text")]
    return [" ".join(line.split()) for text in texts for line in text.splitlines() if line.strip()]


def test_both_readmes_show_the_same_code_and_commands() -> None:
    english, chinese = (
        BLOCK.findall((ROOT / name).read_text(encoding="utf-8")) for name in ("README.md", "README.zh.md")
    )
    assert english == chinese
    headings = [
        len(re.findall(r"^#+ ", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        for name in ("README.md", "README.zh.md")
    ]
    assert headings[0] == headings[1]


def test_relative_links_of_the_readmes_lead_somewhere() -> None:
    for name in ("README.md", "README.zh.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8")):
            if "://" not in target:
                assert (ROOT / target).exists(), f"{name}: {target}"
