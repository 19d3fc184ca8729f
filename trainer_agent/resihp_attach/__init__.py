"""Client for training jobs that somebody else starts: hooks, a few lines for loops, adapters for frameworks.

Standard library only until torch is there anyway; no message bus; nothing raises into the job. `install()` puts the
hooks in place, which `resihp run` does without a change of the script; docs/attach.md says what each of them sees.
"""

from __future__ import annotations

from typing import Any

from resihp_attach.guard import guard
from resihp_attach.watch import Watch, watch

__all__ = ["Watch", "attach", "install", "watch"]


@guard("install")
def install() -> None:
    """Put the generic hooks in place, now or as soon as torch is imported. Idempotent."""
    from resihp_attach.installer import install as put

    put()


@guard("attach")
def attach(model: Any = None) -> Any:
    """Hooks in place, and `model` known as the one whose calls are micro-batches. Returns the model."""
    install()
    watch.start()
    if model is not None:
        from resihp_attach.hooks.forward import observe

        observe(model)
    return model
