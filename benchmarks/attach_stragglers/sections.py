"""The straggler sections of NVIDIA's resiliency package on a machine without CUDA: what they need of it is played.

Sections are timed by the host's clock and compared over the job's process group; only the profiling of kernels, which
stays off here, needs the package's CUPTI extension.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

THRESHOLD = 0.75
"""The package's default."""


class _NoProfiler:
    """In the extension's place: there are no kernels."""

    def __init__(self, **_: Any) -> None:
        pass

    def initialize(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def get_stats(self) -> dict[str, Any]:
        return {}

    def reset(self) -> None:
        pass


def detector(folder: str) -> Any:
    """The package's `Detector`, initialised with its defaults. `folder` holds `nvidia_resiliency_ext`."""
    import torch

    sys.path.insert(0, folder)
    extension = ModuleType("nvrx_cupti_module")
    vars(extension)["CuptiProfiler"] = _NoProfiler
    sys.modules[extension.__name__] = extension
    vars(torch.cuda)["synchronize"] = lambda: None
    from nvidia_resiliency_ext.straggler import Detector

    Detector.initialize()
    return Detector
