"""Placeholder while its author waits for the lane; the script itself comes with the next commit."""

from __future__ import annotations

import subprocess

subprocess.run(["bash", "/tmp/s3/engine/slot.sh"], check=False)
