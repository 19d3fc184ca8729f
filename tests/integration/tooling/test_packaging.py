"""The wheel: built from this tree, installed in a new environment, used from another folder."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(p).name for p in CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
CONTAINERS = ["libs", "services", "trainer_agent", "migrations", "tests"]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel, and everything else from this one.

    A path file lends it this environment's site-packages; path files in there are not followed, so the editable
    install of this tree stays out.
    """
    home = tmp_path_factory.mktemp("env")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=home)
    return python


def test_every_package_imports_from_the_wheel_and_generic_names_do_not(installed: Path, tmp_path: Path) -> None:
    program = f"""
import importlib, importlib.util, json
print(json.dumps({{
    "files": {{name: importlib.import_module(name).__file__ for name in {PACKAGES!r}}},
    "generic": [name for name in {CONTAINERS!r} if importlib.util.find_spec(name)],
}}))"""
    seen = json.loads(run(installed, "-I", "-c", program, cwd=tmp_path))
    home = installed.parents[1]
    assert seen["generic"] == []
    assert sorted(seen["files"]) == sorted(PACKAGES)
    assert all(Path(file).is_relative_to(home) for file in seen["files"].values()), seen["files"]


def test_the_wheel_holds_migrations_licence_and_type_markers_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    migrations = {p.name for p in (ROOT / "migrations" / "versions").glob("*.py")}
    assert migrations
    assert {f"resihp_store/_migrations/versions/{name}" for name in migrations} <= set(names)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, next(t for t in tops if t.endswith(".dist-info"))}


def test_the_installed_wheel_makes_a_database(installed: Path, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'made.db'}"
    run(installed, "-I", "-m", "resihp_store.migrate", "--url", url, cwd=tmp_path)
    tables = run(
        installed,
        "-I",
        "-c",
        "import sqlite3; c = sqlite3.connect('made.db'); print(*c.execute(\"select name from sqlite_master\"))",
        cwd=tmp_path,
    )
    assert "alembic_version" in tables


def test_the_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    assert "Example: resihp demo" in run(installed.with_name("resihp"), "demo", "--help", cwd=tmp_path)


def test_the_lock_pins_everything_the_project_asks_for() -> None:
    pins = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in pin for pin in pins)
    locked = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    extras = CONFIG["project"]["optional-dependencies"].values()
    asked = [*CONFIG["project"]["dependencies"], *(r for extra in extras for r in extra)]
    names = {r.split(">=")[0].split("==")[0].split("[")[0].lower() for r in asked}
    assert names <= locked, names - locked
    assert "torch==2.13.0" in pins
