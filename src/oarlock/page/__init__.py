"""Self-contained HTML pages with SVG line charts: one file, no network, light and dark.

    page = Page("Run 12", subtitle="a small model")
    page.facts([("Bits per byte", "1.96", "best 1.95")])
    page.charts([line_chart([Series("loss", steps, losses)], title="Loss", y_label="nats per token")])
    page.write("report.html")

Every text that enters a page is escaped, and the page's own policy forbids it to load anything, and to run anything but
the scripts of its interactive parts.
"""

from oarlock.page.chart import Series, format_tick, line_chart, thin
from oarlock.page.document import Page, escape

__all__ = ["Page", "Series", "escape", "format_tick", "line_chart", "thin"]
