"""An HTML page: headings, facts, tables, code and charts in one file that needs nothing else."""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# Control characters and lone surrogates are not allowed in HTML or XML text; they are shown as U+FFFD.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NUMERIC = re.compile(r"^[≈~]?[−+-]?[\d][\d, ]*(\.\d+)?(e[−+-]?\d+)?\s?[%×]?(\s?[A-Za-zµ/²·]{1,12})?$")


def escape(text: object) -> str:
    """`text` as HTML or XML character data, safe in element content and in double-quoted attributes."""
    return html.escape(_FORBIDDEN.sub("�", str(text)), quote=True)


class Page:
    """An HTML page built from top to bottom.

    Args:
        title: the heading, also the window's title.
        subtitle: one line under it.
        kicker: a small line above it.
        refresh_seconds: the browser reloads the page after so many seconds; None for never.
    """

    def __init__(
        self, title: str, *, subtitle: str = "", kicker: str = "Oarlock", refresh_seconds: int | None = None
    ) -> None:
        self._title, self._refresh = title, refresh_seconds
        self._scripts: list[str] = []
        self._more_style = ""
        self._parts = [
            f'<header><p class="kicker">{escape(kicker)}</p><h1>{escape(title)}</h1>'
            + (f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else "")
            + "</header>"
        ]

    def heading(self, text: str) -> None:
        """A section heading."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """A paragraph of plain text."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def facts(self, facts: Iterable[tuple[str, object, str]]) -> None:
        """A row of large figures: (label, value, note under the value)."""
        tiles = (
            f"<div><dt>{escape(label)}</dt><dd>{escape(value)}"
            + (f"<small>{escape(note)}</small>" if note else "")
            + "</dd></div>"
            for label, value, note in facts
        )
        self._parts.append(f'<dl class="facts">{"".join(tiles)}</dl>')

    def table(self, rows: Iterable[Sequence[object]], header: Sequence[str] | None = None) -> None:
        """A table. A column whose cells are all numbers (a short unit may follow) is aligned to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        num_columns = max([len(row) for row in cells] + [len(header or ())])
        right = [_is_numeric([row[i] for row in cells if i < len(row)]) for i in range(num_columns)]

        def line(row: Sequence[str], tag: str) -> str:
            kinds = [' class="number"' if right[i] else "" for i in range(len(row))]
            marked = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))
            return f"<tr>{''.join(marked)}</tr>"

        head = f"<thead>{line(header, 'th')}</thead>" if header else ""
        body = "".join(line(row, "td") for row in cells)
        self._parts.append(f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>')

    def panels(self, panels: Iterable[tuple[str, Iterable[tuple[object, object]]]]) -> None:
        """Small tables of (name, value) under a heading each, side by side where there is room."""
        blocks = []
        for heading, rows in panels:
            lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
            blocks.append(f"<section><h2>{escape(heading)}</h2><table><tbody>{lines}</tbody></table></section>")
        self._parts.append(f'<div class="panels">{"".join(blocks)}</div>')

    def code(self, text: str, *, title: str | None = None, folded: bool = False) -> None:
        """A block of preformatted text; with a `title` it can be folded away."""
        block = f"<pre><code>{escape(text)}</code></pre>"
        if title is not None:
            state = "" if folded else " open"
            block = f"<details{state}><summary>{escape(title)}</summary>{block}</details>"
        self._parts.append(block)

    def quote(self, text: str) -> None:
        """A block of prose whose line breaks are kept."""
        self._parts.append(f"<blockquote>{escape(text)}</blockquote>")

    def charts(self, charts: Iterable[str]) -> None:
        """Charts (`line_chart` results) side by side where there is room."""
        self._parts.append(f'<div class="charts">{"".join(f"<figure>{chart}</figure>" for chart in charts)}</div>')

    def interactive(self, markup: str, script: str, data: object, *, style: str = "") -> None:
        """A part that answers to the reader: its elements, its program and the numbers that it shows.

        Args:
            markup: elements, as they are: texts from elsewhere belong in `data`.
            script: JavaScript; the page's policy lets this one run and no other, and nothing is loaded.
            data: JSON-able; the script finds it in the element with id "data-1", in a second call "data-2", ...
            style: CSS of its own, beside the page's.
        """
        text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self._scripts.append(f"'sha256-{digest}'")
        self._more_style += style
        self._parts.append(
            f'{markup}<script type="application/json" id="data-{len(self._scripts)}">{text}</script>'
            f"<script>{script}</script>"
        )

    def html(self) -> str:
        """The page as one string."""
        refresh = f'<meta http-equiv="refresh" content="{int(self._refresh)}">' if self._refresh else ""
        policy = ["default-src 'none'", "style-src 'unsafe-inline'"]
        policy += [f"script-src {' '.join(self._scripts)}"] if self._scripts else []
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(policy)}">'
            f"{refresh}<title>{escape(self._title)}</title><style>{_STYLE}{self._more_style}</style></head>\n"
            "<body><main>\n" + "\n".join(self._parts) + "\n</main></body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to `path` so that a reader sees the old page or the new one, never a part."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            partial.write_text(self.html(), encoding="utf-8")
            os.replace(partial, target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            error.filename = str(target)
            raise
        return target


def _is_numeric(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell not in ("", "–")]
    return bool(filled) and all(_NUMERIC.match(cell) for cell in filled)


_STYLE = """
:root{color-scheme:light dark;--paper:#fafaf8;--panel:#fff;--ink:#1c2127;--muted:#68707a;--line:#e3e4df;
--s1:#23679c;--s2:#c8692c;--s3:#3f8a57;--s4:#84539f;--s5:#a3832b;--s6:#5d6875}
@media(prefers-color-scheme:dark){:root{--paper:#13161a;--panel:#191d22;--ink:#e4e7ea;--muted:#949da7;--line:#2b3138;
--s1:#6fb1e3;--s2:#ec9a60;--s3:#76c490;--s4:#c196dc;--s5:#d8b964;--s6:#9aa5b1}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:48px 28px 72px}
.kicker{margin:0;color:var(--muted);font-size:13px;letter-spacing:.02em}
h1{margin:2px 0 0;font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.015em;overflow-wrap:anywhere}
.subtitle{margin:6px 0 0;color:var(--muted)}
header{margin-bottom:28px}
h2{margin:44px 0 14px;font-size:18px;font-weight:650;letter-spacing:-.005em}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:1px;margin:28px 0 0;
background:var(--panel);border:1px solid var(--line);border-radius:8px;overflow:hidden}
.facts div{box-shadow:0 0 0 1px var(--line);padding:14px 18px 12px}
dt{color:var(--muted);font-size:13px}
dd{margin:2px 0 0;font-size:23px;line-height:1.3;font-weight:600;letter-spacing:-.01em;
font-variant-numeric:tabular-nums}
small{display:block;color:var(--muted);font-size:12.5px;font-weight:400;letter-spacing:0}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(430px,100%),1fr));gap:18px}
.charts>figure{max-width:640px}
.charts,.scroll{margin:18px 0}
figure{margin:0;padding:16px 16px 10px;background:var(--panel);border:1px solid var(--line);border-radius:8px}
svg{display:block;width:100%;height:auto;font-family:inherit}
svg text{fill:var(--ink);font-size:12px;font-variant-numeric:tabular-nums}
svg .title{font-size:14px;font-weight:600}
svg .unit{font-weight:400;font-size:12px;fill:var(--muted)}
svg .tick,svg .label{fill:var(--muted);font-size:11.5px}
.grid{stroke:var(--line);fill:none}
.axis{stroke:var(--muted);stroke-opacity:.55;fill:none}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.line.faint{stroke-width:1;stroke-opacity:.38}
.line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2)}.line.s3{stroke:var(--s3)}
.line.s4{stroke:var(--s4)}.line.s5{stroke:var(--s5)}.line.s6{stroke:var(--s6)}
.dot.s1{fill:var(--s1)}.dot.s2{fill:var(--s2)}.dot.s3{fill:var(--s3)}
.dot.s4{fill:var(--s4)}.dot.s5{fill:var(--s5)}.dot.s6{fill:var(--s6)}
.band rect{fill:transparent}.band .axis,.band .dot{visibility:hidden}
.band:hover .axis,.band:hover .dot{visibility:visible}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:6px 32px 6px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{color:var(--muted);font-size:13px;font-weight:500;white-space:nowrap}
td:first-child{white-space:nowrap}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr));gap:0 44px}
.panels section{max-width:640px}
.panels table{width:100%}
.panels td+td{text-align:right;overflow-wrap:anywhere}
.number{text-align:right}
th:last-child,td:last-child{padding-right:0}
pre{margin:12px 0;padding:14px 18px;background:var(--panel);border:1px solid var(--line);border-radius:8px;
overflow-x:auto;font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
details{margin:14px 0}
summary{cursor:pointer;color:var(--muted)}
blockquote{margin:12px 0;padding:14px 20px;background:var(--panel);border:1px solid var(--line);
border-left:3px solid var(--s1);border-radius:0 8px 8px 0;white-space:pre-wrap;
font:15px/1.6 Charter,"Iowan Old Style",Georgia,"Liberation Serif",serif}
@media print{body{background:none}main{max-width:none;padding:0}figure{break-inside:avoid}}
"""
