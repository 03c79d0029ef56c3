"""Draw the pictures of the pages with the code that the pages show.

python docs/pictures.py

Runs each page that saves a figure and shows it, and keeps the figure in docs/images.
"""

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

import matplotlib

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# The same picture gives the same file.
os.environ["SOURCE_DATE_EPOCH"] = "0"
matplotlib.rcParams["svg.hashsalt"] = "eqx_mlp"

for page in sorted(DOCS.glob("*.md")):
    text = page.read_text(encoding="utf-8")
    saved = re.findall(r'savefig\("(.+?)"', text)
    shown = [name for name in saved if f"(images/{name})" in text]
    if not shown:
        continue
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        namespace = {"__name__": "__main__"}
        for block in BLOCK.findall(text):
            exec(compile(block, str(page), "exec"), namespace)
        for name in shown:
            shutil.copy(name, DOCS / "images" / name)
            print(page.name, name)
