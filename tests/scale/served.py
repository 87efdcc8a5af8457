"""The configuration of servers under load, for load.py and measure.py: a prediction is about the same limits."""

from __future__ import annotations

# Calls that run at once.
TURNS = 4


def configuration(http: str = "") -> str:
    """Returns the text of cofferdam.toml; `http` has further lines of its last section."""
    return f"""schema = 1
[server]
concurrency = {TURNS}
[sessions]
most = 64
[http]
sessions = 128
{http}"""
