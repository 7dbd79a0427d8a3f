"""The wheel: what is in it, and that it works where nothing but its core dependencies is installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import RunPython, plain_environment

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("nvexplore-*-py3-none-any.whl")
    return file


def required_distributions(wheel: Path) -> list[metadata.Distribution]:
    """Return what pip would install with the wheel and no extra, as it is installed here."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = metadata.PathDistribution(zipfile.Path(archive, name.removesuffix("METADATA")))
        wanted = [Requirement(text) for text in declared.requires or ()]
    found: dict[str, metadata.Distribution] = {}
    while wanted:
        requirement = wanted.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            found[name] = metadata.distribution(name)
            wanted += [Requirement(text) for text in found[name].requires or ()]
    return list(found.values())


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that has the wheel and what it requires, and nothing else.

    The wheel is installed by pip. What it requires is linked in from the environment of the tests, package by
    package: that takes no network and no minute, and what is not declared is as absent as it should be.
    """
    folder = tmp_path_factory.mktemp("clean environment")  # a path with a space, on purpose
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for distribution in required_distributions(wheel):
        for file in distribution.files or ():
            name = file.parts[0]
            if name not in ("..", "__pycache__") and not (site / name).exists():
                (site / name).symlink_to(Path(str(distribution.locate_file(name))))
    return python


def test_the_wheel_holds_the_package_with_its_widgets_and_notebooks(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    on_disk = {
        f"nvexplore/{file.relative_to(ROOT)}"
        for pattern in ("widgets/*.js", "widgets/*.css", "notebooks/*.ipynb", "notebooks/*.json")
        for file in ROOT.glob(pattern)
        if not file.name.endswith(".test.js")
    } | {str(file.relative_to(ROOT)) for file in (ROOT / "nvexplore").rglob("*.py")}
    assert "nvexplore/widgets/store.js" in on_disk
    assert "nvexplore/notebooks/01_first_steps.ipynb" in on_disk
    assert sorted(on_disk - names) == []
    extra = {name for name in names - on_disk if ".dist-info/" not in name}
    assert extra == set(), "tests, and notes for contributors, stay out"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_clean_environment_has_only_what_is_required(clean_python: Path, run_python: RunPython) -> None:
    code = """
from importlib.util import find_spec
print([name for name in ("torch", "IPython", "ipywidgets", "anywidget", "pytest") if find_spec(name)])
import msgspec, numpy, pandas, nvexplore
print("site-packages" in nvexplore.__file__)
"""
    assert run_python(code, python=clean_python) == "[]\nTrue\n"


def test_an_import_loads_no_torch_and_no_jupyter(clean_python: Path, run_python: RunPython) -> None:
    code = """
import sys, nvexplore, nvexplore.engine, nvexplore.explore
print([name for name in ("torch", "IPython", "ipywidgets", "matplotlib.pyplot") if name in sys.modules])
"""
    assert run_python(code, python=clean_python) == "[]\n"


def run_command(python: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [str(python.with_name("nvexplore")), *args]
    return subprocess.run(
        command, cwd=python.parent, env=plain_environment(), capture_output=True, text=True, check=False
    )


def test_info_runs_without_torch(clean_python: Path) -> None:
    done = run_command(clean_python, "info")
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch        not installed\n" in done.stdout
    assert "demo model   not in " in done.stdout or "demo model   in " in done.stdout


def test_the_demo_says_what_to_install(clean_python: Path) -> None:
    done = run_command(clean_python, "demo")
    assert done.returncode == 1
    assert done.stderr.startswith("nvexplore: the demo needs torch, ")
    assert done.stderr.endswith('pip install "nvexplore[demo]"\n')


def test_the_notebooks_are_found_in_the_package(clean_python: Path, run_python: RunPython) -> None:
    code = """
from nvexplore.cli import PACKAGE, notebooks_path
print(notebooks_path() == PACKAGE / "notebooks", len(list(notebooks_path().glob("*.ipynb"))))
"""
    expected = len(list((ROOT / "notebooks").glob("*.ipynb")))
    assert run_python(code, python=clean_python) == f"True {expected}\n"
