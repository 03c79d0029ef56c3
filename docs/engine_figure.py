"""Draw docs/engine.svg: one parameter on its way through the engine.

python docs/engine_figure.py
"""

from pathlib import Path
from xml.sax.saxutils import escape

BOXES = [
    (20, 90, 120, "W", "a parameter"),
    (190, 90, 120, "prefix", "once, no example"),
    (380, 90, 150, "site: W x + 0", "the zero is a tap"),
    (600, 90, 130, "rest of the loss", "of one example"),
    (380, 10, 150, "x", "touched by the example"),
    (380, 200, 150, "(a, d)", "a = x, d = d loss / d tap"),
    (190, 200, 120, "norm", "|a| |d| per example"),
    (190, 290, 120, "factor c", "min(1, C / norm)"),
    (380, 290, 150, "sum_b c_b d_b a_b^T", "one matrix product"),
    (600, 290, 130, "gradient of W", "prefix taken back once"),
]
ARROWS = [
    (140, 115, 190, 115),
    (310, 115, 380, 115),
    (530, 115, 600, 115),
    (455, 60, 455, 90),
    (455, 140, 455, 200),
    (380, 225, 310, 225),
    (250, 250, 250, 290),
    (310, 315, 380, 315),
    (455, 250, 455, 290),
    (530, 315, 600, 315),
]


def draw():
    """The figure as SVG text."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 750 350" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker>'
        "</defs>",
        '<rect width="750" height="350" fill="#fff"/>',
    ]
    for x, y, width, title, note in BOXES:
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="50" rx="6" fill="#eef3fa" '
            f'stroke="#4a6fa5"/><text x="{x + width / 2}" y="{y + 21}" '
            f'font-weight="bold">{escape(title)}</text><text x="{x + width / 2}" '
            f'y="{y + 39}" font-size="11" fill="#444">{escape(note)}</text>'
        )
    parts += [
        f'<line x1="{a}" y1="{b}" x2="{c}" y2="{d}" stroke="#555" '
        'marker-end="url(#tip)"/>'
        for a, b, c, d in ARROWS
    ]
    parts.append(
        '<text x="610" y="185" font-size="11" fill="#444">backward: one vmap of one VJP'
        "</text></svg>"
    )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("engine.svg").write_text(draw())
