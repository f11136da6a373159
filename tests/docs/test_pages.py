"""Every Python block of the README and of docs/ runs; every page is in the navigation; the two READMEs keep step."""

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
