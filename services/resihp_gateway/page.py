"""The dashboard's files: plain HTML, CSS and JavaScript modules, served as they are (no build step)."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
