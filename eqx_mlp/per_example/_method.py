"""The routes to per-example norms and clipped sums."""

METHODS = ("vmap",)


def require_method(method: str) -> None:
    """Raise a ValueError unless `method` is a route that exists."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
