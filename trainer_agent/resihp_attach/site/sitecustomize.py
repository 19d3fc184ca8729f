"""Loaded by every Python below `resihp run`, before the script: puts the hooks in place. Touches nothing else."""

import importlib.machinery
import importlib.util
import os
import sys


def _previous() -> None:
    """A sitecustomize that this one hides is loaded as if it were not there."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _package() -> None:
    """Import `resihp_attach` from beside this file, also where the job's interpreter has none."""
    if importlib.util.find_spec("resihp_attach") is not None:
        return
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "resihp_attach", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["resihp_attach"] = module
        spec.loader.exec_module(module)


def _attach() -> None:
    _package()
    import resihp_attach

    resihp_attach.install()
    if "RANK" in os.environ:  # torchrun's own process has none; whoever else trains speaks at its first step
        resihp_attach.watch.start()


try:
    _previous()
except Exception as error:
    print(f"resihp: sitecustomize: {error}", file=sys.stderr)
if os.environ.get("RESIHP_ATTACH_SOCKET"):
    try:
        _attach()
    except Exception as error:
        print(f"resihp: not attached: {type(error).__name__}: {error}", file=sys.stderr)
