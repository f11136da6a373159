"""The pictures of docs/masks.md are those of its code.

To draw them anew: PYTHONPATH=src python tests/attention/test_mask_pictures.py
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]+\.svg)\)\n\n```python\n(.*?)```", re.DOTALL)


def drawings() -> dict[Path, str]:
    """Each picture of the page and what the code below it draws."""
    page = (DOCS / "masks.md").read_text(encoding="utf-8")
    found = {}
    for path, code in PICTURE.findall(page):
        names: dict = {}
        exec("import torch\nfrom oarlock.attention import ColumnMask\n" + code, names)
        found[DOCS / path] = str(names["mask"].plot())
    return found


def test_the_pictures_show_the_masks_of_the_page():
    found = drawings()
    assert len(found) > 20
    for path, drawn in found.items():
        assert path.read_text(encoding="utf-8") == drawn, f"{path.name}: draw the pictures anew"


if __name__ == "__main__":
    for picture, svg in drawings().items():
        picture.write_text(svg, encoding="utf-8")
