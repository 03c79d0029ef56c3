"""A Griffe extension that puts the bare `>>>` examples of docstrings into fences.

Markdown takes `>>>` for a quotation three deep. doctest and readers of the source
need no fence, so the page gets it here.
"""

from typing import Any

import griffe


def fenced(text: str) -> str:
    """`text` with a fence around each run of lines that begins with `>>>`.

    A run goes on to the next blank line, as for doctest.
    """
    lines: list[str] = []
    inside = fence = False
    indent = ""
    for line in [*text.split("\n"), ""]:
        stripped = line.strip()
        if stripped.startswith("```"):
            fence = not fence
        if not fence and not inside and stripped.startswith(">>> "):
            inside, indent = True, line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        elif inside and not stripped:
            inside = False
            lines.append(f"{indent}```")
        lines.append(line)
    return "\n".join(lines[:-1])


class FenceExamples(griffe.Extension):
    """Fences the examples in every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the object's docstring, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
