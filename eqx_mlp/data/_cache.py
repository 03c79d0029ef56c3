"""Where the system keeps caches."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Where pooch.os_cache points, without importing pooch to read what is there."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification has relative ones ignored
        root = Path(base)
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    elif sys.platform == "darwin":
        root = Path("~/Library/Caches")
    else:
        root = Path("~/.cache")
    return root.expanduser() / "eqx_mlp" / "mnist"
