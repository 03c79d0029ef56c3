"""Draw the diagrams of the pages: boxes and arrows, as SVG.

python docs/figures.py
"""

from pathlib import Path
from xml.sax.saxutils import escape

# Boxes are x, y, width, title, note; arrows x1, y1, x2, y2; remarks x, y, text.
FIGURES = {
    # One parameter on its way through the engine.
    "engine.svg": {
        "size": (750, 350),
        "boxes": [
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
        ],
        "arrows": [
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
        ],
        "remarks": [(610, 185, "backward: one vmap of one VJP")],
    },
    # What jit does at a call.
    "images/jit.svg": {
        "size": (750, 230),
        "boxes": [
            (10, 20, 130, "call", "with arrays"),
            (200, 20, 180, "seen before?", "shapes, dtypes, static values"),
            (590, 20, 150, "compiled program", "runs on the device"),
            (20, 150, 160, "trace", "Python runs, on tracers"),
            (250, 150, 130, "jaxpr", "a list of equations"),
            (450, 150, 130, "XLA", "fuses, plans memory"),
        ],
        "arrows": [
            (140, 45, 200, 45),
            (380, 45, 590, 45),
            (250, 70, 140, 150),
            (180, 175, 250, 175),
            (380, 175, 450, 175),
            (580, 150, 640, 70),
        ],
        "remarks": [
            (485, 37, "yes: no Python at all"),
            (165, 115, "no"),
            (665, 115, "kept"),
        ],
    },
}


def draw(size, boxes, arrows, remarks):
    """The figure as SVG text."""
    width, height = size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker>'
        "</defs>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for x, y, w, title, note in boxes:
        parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="50" rx="6" fill="#eef3fa" '
            f'stroke="#4a6fa5"/><text x="{x + w / 2}" y="{y + 21}" '
            f'font-weight="bold">{escape(title)}</text><text x="{x + w / 2}" '
            f'y="{y + 39}" font-size="11" fill="#444">{escape(note)}</text>'
        )
    parts += [
        f'<line x1="{a}" y1="{b}" x2="{c}" y2="{d}" stroke="#555" '
        'marker-end="url(#tip)"/>'
        for a, b, c, d in arrows
    ]
    parts += [
        f'<text x="{x}" y="{y}" font-size="11" fill="#444">{escape(text)}</text>'
        for x, y, text in remarks
    ]
    return "\n".join(parts) + "</svg>\n"


if __name__ == "__main__":
    for name, figure in FIGURES.items():
        (Path(__file__).parent / name).write_text(draw(**figure), encoding="utf-8")
