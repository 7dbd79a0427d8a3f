"""The ``nvexplore`` command. The notebooks that it ships are executed in test_notebooks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

import nvexplore.demo
from nvexplore import cli

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder with two small notebooks, instead of the real one."""
    folder = tmp_path / "package" / "notebooks"
    folder.mkdir(parents=True)
    write_notebook(folder / cli.FIRST_NOTEBOOK, "import sys; print(sys.executable)")
    write_notebook(folder / "02_more.ipynb", "1 + 1")
    monkeypatch.setattr(cli, "PACKAGE", folder.parent)
    monkeypatch.chdir(tmp_path)
    return folder


def write_notebook(file: Path, *cells: str) -> None:
    contents = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    contents.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(contents, file)


class LabStarted(Exception):
    """The process would have become JupyterLab: its command and its folder."""


@pytest.fixture(autouse=True)
def lab(monkeypatch: pytest.MonkeyPatch) -> None:
    def execv(program: str, command: list[str]) -> None:
        assert program == command[0] == sys.executable
        raise LabStarted(command[1:], Path.cwd())

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.chdir(Path.cwd())  # to come back after the change of folder that goes with it


def start_lab(*args: str) -> tuple[list[str], Path]:
    with pytest.raises(LabStarted) as started:
        cli.main(["demo", *args])
    command, folder = started.value.args
    return command, folder


def test_the_notebooks_of_a_checkout_are_found() -> None:
    assert cli.notebooks_path() == CHECKOUT / "notebooks"


def test_the_notebooks_of_an_installed_package_come_first(notebooks: Path) -> None:
    assert cli.notebooks_path() == notebooks


def test_demo_copies_the_notebooks_and_opens_the_first(notebooks: Path, tmp_path: Path) -> None:
    command, folder = start_lab("--no-open", "--port", "8901")
    assert folder == tmp_path / "nvexplore-notebooks"
    assert command[:3] == ["-m", "jupyterlab", cli.FIRST_NOTEBOOK]
    assert {"--no-browser", "--ServerApp.port=8901"} <= set(command)
    assert ("--allow-root" in command) == (os.geteuid() == 0)
    assert sorted(file.name for file in folder.iterdir()) == [cli.FIRST_NOTEBOOK, "02_more.ipynb"]


def test_demo_here_copies_nothing(notebooks: Path, tmp_path: Path) -> None:
    command, folder = start_lab("--here")
    assert folder == notebooks
    assert "--no-browser" not in command
    assert not (tmp_path / "nvexplore-notebooks").exists()


def test_a_changed_notebook_is_kept(notebooks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    start_lab(str(folder))
    assert capsys.readouterr().out == ""
    mine = folder / "02_more.ipynb"
    mine.write_text("my own work")
    start_lab(str(folder))
    assert capsys.readouterr().out == f"kept your changed {mine} (--force replaces it)\n"
    assert mine.read_text() == "my own work"
    start_lab(str(folder), "--force")
    assert mine.read_bytes() == (notebooks / mine.name).read_bytes()


def test_headless_executes_in_this_python_and_says_where_the_result_is(
    notebooks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kernel of the same name that the user registered long ago, for an interpreter that is gone.
    kernel = Path("jupyter", "kernels", "python3", "kernel.json").absolute()
    kernel.parent.mkdir(parents=True)
    kernel.write_text('{"argv": ["/gone/python"], "display_name": "x", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(kernel.parents[2]))

    assert cli.main(["demo", "--headless"]) == 0
    result = Path("nvexplore-notebooks", "executed", cli.FIRST_NOTEBOOK)
    assert f"the result is {result}" in (out := capsys.readouterr().out)
    assert str(result.with_suffix(".html")) in out
    (cell,) = nbformat.read(result, as_version=4).cells
    assert cell.outputs[0].text.strip() == sys.executable
    assert "</html>" in result.with_suffix(".html").read_text()


def test_a_cell_that_fails_is_named_in_one_line(notebooks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notebook(notebooks / cli.FIRST_NOTEBOOK, "print('begun')", "raise ValueError('too few blocks')")
    assert cli.main(["demo", "--headless", "--here"]) == 1
    result = notebooks.parent / "build" / cli.FIRST_NOTEBOOK
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"failed: ValueError: too few blocks (see {result})")
    assert nbformat.read(result, as_version=4).cells[0].outputs[0].text == "begun\n"


def test_what_the_demo_lacks_is_named_with_its_remedy(
    notebooks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"torch", "jupyterlab"}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find(name))
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == ('nvexplore: the demo needs torch, jupyterlab: pip install "nvexplore[demo]"\n')
    assert not Path("nvexplore-notebooks").exists()


def unusable(folder: Path) -> Path:
    """A file where the folder should be."""
    folder.write_text("no folder")
    return folder


def test_a_folder_that_cannot_be_used_is_told_in_one_line(
    notebooks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = unusable(tmp_path / "file")
    (tmp_path / "taken" / cli.FIRST_NOTEBOOK).mkdir(parents=True)
    for folder in (file, file / "below", Path("/proc/nowhere"), tmp_path / "taken", tmp_path / ("n" * 300)):
        assert cli.main(["demo", str(folder)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("nvexplore: [Errno ") and str(folder) in line


def test_results_that_cannot_be_written_are_told_in_one_line(
    notebooks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = unusable(notebooks.parent / "build")
    assert cli.main(["demo", "--headless", "--here"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nvexplore: [Errno ") and str(build) in line


TORCH = """
import os, types
print("torch sees", os.environ["OMP_WAIT_POLICY"])
cuda, version = types.SimpleNamespace(is_available=lambda: False), types.SimpleNamespace(cuda=None)
"""


@pytest.mark.parametrize(("said", "seen"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_torch_do_not_spin_unless_somebody_says_so(said: str | None, seen: str, tmp_path: Path) -> None:
    """Read by torch's OpenMP once, when it is loaded."""
    (tmp_path / "torch.py").write_text(TORCH)
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    env |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{CHECKOUT}"} | ({} if said is None else {"OMP_WAIT_POLICY": said})
    command = [sys.executable, "-m", "nvexplore.cli", "info"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.splitlines()[0] == f"torch sees {seen}"


def test_demo_model_prints_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvexplore.demo, "demo_model_path", lambda: tmp_path)
    assert cli.main(["demo-model"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_demo_model_says_what_went_wrong_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise nvexplore.demo.DemoModelError("no network")

    monkeypatch.setattr(nvexplore.demo, "demo_model_path", fail)
    assert cli.main(["demo-model"]) == 1
    assert capsys.readouterr().err == "nvexplore: no network\n"


def test_info_has_one_line_for_each_thing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVEXPLORE_CACHE", str(tmp_path))
    assert cli.main(["info"]) == 0
    lines = {line[:12].strip(): line[13:] for line in capsys.readouterr().out.splitlines()}
    assert lines["nvexplore"] == f"{nvexplore.__version__} in {CHECKOUT / 'nvexplore'}"
    assert lines["demo model"] == f"not in {tmp_path} (nvexplore demo-model fetches it)"
    assert set(cli.INFO_DISTRIBUTIONS) | {"python", "CUDA"} < set(lines)


def test_an_interrupt_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "notebooks_path", interrupt)
    assert cli.main(["demo"]) == 130


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["demo", "--port", "x"]])
def test_a_wrong_command_line_shows_the_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("usage: nvexplore")


def test_an_error_is_one_line_as_a_module_too() -> None:
    """``make demo`` runs the command as a module, whose name is then ``__main__``."""
    command = [sys.executable, "-m", "nvexplore.cli", "bench", "--scheduler", "--peer", "nano-vllm"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    assert done.returncode == 1
    assert done.stderr == "nvexplore: --peer nano-vllm needs --peer-path, a checkout of it\n"
