"""Real workers, real deaths: whatever happens, the job ends with the parameters of the undisturbed run."""

from __future__ import annotations
