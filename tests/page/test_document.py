"""Pages: hostile text stays text, numbers line up, nothing is loaded from outside, a write is whole or absent."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarlock.page import Page, Series, escape, line_chart

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</code></pre></style></title><script src=//evil>",
    "&amp; &lt; &#60;",
    "]]> <!-- --> <![CDATA[",
    "نص \u202e 汉字 é",
]


class Reader(HTMLParser):
    """What a browser would see: the tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def full_page(text: str) -> str:
    page = Page(text, subtitle=text, kicker=text)
    page.heading(text)
    page.paragraph(text)
    page.facts([(text, text, text)])
    page.table([(text, 1)], header=(text, text))
    page.panels([(text, [(text, text)])])
    page.code(text, title=text)
    page.quote(text)
    page.charts([line_chart([Series(text, [1, 2], [1, 2])] * 2, title=text, x_label=text, y_label=text)])
    return page.html()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_element_and_reads_back(text: str) -> None:
    harmless, hostile = Reader(full_page("harmless")), Reader(full_page(text))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in harmless.tags]
    assert all(not name.startswith("on") for _, attributes in hostile.tags for name in attributes)
    # title twice (window, heading), subtitle, kicker, h2 x2, p, facts x3, table x3, panel x2, summary, code, quote: 17
    assert sum(part == text for part in hostile.text) >= 17


@given(st.text(alphabet=st.characters(), max_size=40))
def test_escaped_text_is_well_formed_and_encodable(text: str) -> None:
    safe = escape(text)
    assert not set(safe) & set('<>"\x00')
    safe.encode("utf-8")


def test_control_characters_and_lone_surrogates_become_a_visible_mark() -> None:
    assert escape("a\x00b\x1bc\ud800d\te") == "a�b�c�d\te"


def test_nothing_is_loaded_or_run() -> None:
    reader = Reader(full_page("x"))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in reader.tags}
    assert not {"src", "href"} & {name for _, attributes in reader.tags for name in attributes}
    policy = [a["content"] for tag, a in reader.tags if tag == "meta" and a.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "url(" not in full_page("x")
    assert "@import" not in full_page("x")


def test_only_the_script_of_an_interactive_part_may_run() -> None:
    page = Page("x")
    script = "document.title='read'"
    page.interactive("<p>here</p>", script, {"text": "</script><script>alert(1)</script>"}, style="p{margin:0}")
    reader = Reader(page.html())
    assert [attributes.get("type") for tag, attributes in reader.tags if tag == "script"] == ["application/json", None]
    policy = next(a["content"] for tag, a in reader.tags if tag == "meta" and a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    text = re.findall(r'<script type="application/json" id="data-1">(.*?)</script>', page.html())
    assert [json.loads(part) for part in text] == [{"text": "</script><script>alert(1)</script>"}]
    assert "p{margin:0}</style>" in page.html()


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    page = Page("t")
    page.table(
        [("a1", 1, "2.5 GiB", "1e-3", "v2"), ("b", 10_000, "512 MiB", "–", "12 layers of 3")], header=list("vwxyz")
    )
    row = re.findall(r"<td[^>]*>", page.html())[:5]
    assert ["number" in cell for cell in row] == [False, True, True, True, False]


def test_only_a_running_page_reloads_itself() -> None:
    assert 'http-equiv="refresh" content="30"' in Page("t", refresh_seconds=30).html()
    assert 'http-equiv="refresh"' not in Page("t").html()


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Page("old").write(tmp_path / "deep" / "report.html")
    page = Page("new")
    monkeypatch.setattr(page, "html", lambda: "torn \ud800")  # cannot be encoded: fails in the middle of the write
    with pytest.raises(UnicodeEncodeError):
        page.write(target)
    assert "<h1>old</h1>" in target.read_text(encoding="utf-8")
    Page("new").write(target)
    assert "<h1>new</h1>" in target.read_text(encoding="utf-8")


MEASURE = """
const box = e => { const r = e.getBoundingClientRect(); return [r.top, r.bottom, r.width]; };
const parts = ["header", ".charts", "p:not(header p)", ".scroll", "figure"];
document.title = JSON.stringify(Object.fromEntries(parts.map(s => [s, [...document.querySelectorAll(s)].map(box)])));
"""


def measured(tmp_path: Path, width: int, num_charts: int) -> dict[str, list[list[float]]]:
    """Top, bottom and width of a page's parts as a browser lays them out."""
    page = Page("t", subtitle="s")
    page.charts([line_chart([Series("a", [1, 2], [1, 2])], title="t")] * num_charts)
    page.heading("h")
    page.paragraph("text")
    page.table([("a", 1)], header=("b", "c"))
    page.interactive("", MEASURE, None)
    path = page.write(tmp_path / "page.html")
    command = ["chromium", "--headless", "--no-sandbox", f"--window-size={width},900", "--dump-dom", f"file://{path}"]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (title,) = re.findall(r"<title>(.*?)</title>", drawn)
    return json.loads(html.unescape(title))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize(("width", "num_charts"), [(1400, 1), (1400, 3), (900, 1), (700, 2)])
def test_parts_keep_their_distance_and_charts_their_size(tmp_path: Path, width: int, num_charts: int) -> None:
    found = measured(tmp_path, width, num_charts)
    (header,), (charts,), (paragraph,), (table,) = (
        found[s] for s in ("header", ".charts", "p:not(header p)", ".scroll")
    )
    assert charts[0] - header[1] >= 20
    assert table[0] - paragraph[1] >= 14
    assert len(found["figure"]) == num_charts
    assert all(400 < figure[2] <= 640 for figure in found["figure"])  # drawn for 560: letters stay near their size
