"""The ``nvexplore`` command: open the notebooks, fetch the demo model, say what this machine offers.

It knows nothing of the engine. Every heavy package is imported by the one subcommand that needs it, and what
is missing is answered by a line that says what to install.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from nvexplore import __version__
from nvexplore.bench.command import add_command as add_bench
from nvexplore.command_error import CommandError
from nvexplore.replay import add_command as add_replay

FIRST_NOTEBOOK = "01_first_steps.ipynb"
# What `demo` needs beyond the core, by the names they are imported under.
DEMO_MODULES = ("torch", "transformers", "ipywidgets", "anywidget", "ipykernel", "jupyterlab", "nbclient")
INFO_DISTRIBUTIONS = (
    "torch",
    "transformers",
    "triton",
    "flash-attn",
    "flash-attn-4",
    "jupyterlab",
    "ipykernel",
    "anywidget",
)
PACKAGE = Path(__file__).resolve().parent


def notebooks_path() -> Path:
    """Return the folder of the notebooks: inside an installed package, else beside it in a checkout.

    Raises CommandError where there is neither (a broken installation).
    """
    for folder in (PACKAGE / "notebooks", PACKAGE.parent / "notebooks"):
        if (folder / FIRST_NOTEBOOK).is_file():
            return folder
    raise CommandError(f"{FIRST_NOTEBOOK} is neither in {PACKAGE} nor beside it: install nvexplore again")


def copy_notebooks(source: Path, target: Path, *, force: bool = False) -> list[str]:
    """Copy the notebooks of ``source`` into ``target`` and return a line for each that was kept instead.

    Kept is, unless ``force``, a file with other contents: most likely the reader's own work.
    """
    target.mkdir(parents=True, exist_ok=True)
    kept = []
    for notebook in sorted(source.glob("*.ipynb")):
        copy, contents = target / notebook.name, notebook.read_bytes()
        if copy.exists() and not force:
            if copy.read_bytes() != contents:
                kept.append(f"kept your changed {copy} (--force replaces it)")
        else:
            copy.write_bytes(contents)
    return kept


def execute_notebook(notebook: Path, output: Path) -> Path:
    """Run ``notebook`` from top to bottom in this very Python and return where it lies, outputs included.

    The result goes into the folder ``output``, with an HTML page beside it. A cell that raises ends the run
    with a CommandError that names the error; what had run until then is written all the same.
    """
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    contents = nbformat.read(notebook, as_version=4)
    # With no folder to search, "python3" is this interpreter: a kernel registered from elsewhere
    # under that name would not have nvexplore.
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    client = NotebookClient(
        contents,
        km=manager,
        resources={"metadata": {"path": str(notebook.parent)}},
        extra_arguments=["--log-level=ERROR"],  # else it warns that its local sockets are not encrypted
    )
    output.mkdir(parents=True, exist_ok=True)
    result = output / notebook.name
    try:
        client.execute(cleanup_kc=True)
    except CellExecutionError as error:
        nbformat.write(contents, result)
        raise CommandError(f"{notebook} failed: {error.ename}: {error.evalue} (see {result})") from None
    except DeadKernelError:
        raise CommandError(f"{notebook} failed: its kernel died (out of memory?)") from None
    nbformat.write(contents, result)
    if importlib.util.find_spec("nbconvert"):
        from nbconvert import HTMLExporter

        page, _ = HTMLExporter().from_notebook_node(contents)
        result.with_suffix(".html").write_text(page, encoding="utf-8")
    return result


def open_lab(notebook: Path, *, browser: bool = True, port: int | None = None) -> NoReturn:
    """Become JupyterLab with ``notebook`` open: it handles Ctrl-C, and its exit status is this command's."""
    command = [sys.executable, "-m", "jupyterlab", notebook.name]
    if not browser:
        command.append("--no-browser")
    if port is not None:
        command.append(f"--ServerApp.port={port}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # Lab refuses root by default. Whoever started this as root (in a container, most often) meant it.
        command.append("--allow-root")
    os.chdir(notebook.parent)
    sys.stdout.flush()
    os.execv(sys.executable, command)


def demo(args: argparse.Namespace) -> int:
    """``nvexplore demo``: put the notebooks into a folder and open, or execute, the first."""
    missing = [name for name in DEMO_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f'the demo needs {", ".join(missing)}: pip install "nvexplore[demo]"')
    try:
        return _demo(args, notebooks_path())
    except OSError as error:  # a folder that is none, or that nothing can be written to
        raise CommandError(str(error)) from None


def _demo(args: argparse.Namespace, source: Path) -> int:
    if args.here:
        folder, results = source, source.parent / "build"
    else:
        folder = Path(args.folder)
        results = folder / "executed"
        for line in copy_notebooks(source, folder, force=args.force):
            print(line)
    if not args.headless:
        open_lab(folder / FIRST_NOTEBOOK, browser=not args.no_open, port=args.port)
    started = time.monotonic()
    print(f"running {folder / FIRST_NOTEBOOK} ...", flush=True)
    result = execute_notebook(folder / FIRST_NOTEBOOK, results)
    page = result.with_suffix(".html")
    also = f" (as a page: {page})" if page.exists() else ""
    print(f"ran in {time.monotonic() - started:.1f} s; the result is {result}{also}")
    return 0


def demo_model(args: argparse.Namespace) -> int:
    """``nvexplore demo-model``: fetch the demo model unless it is cached, and print its folder."""
    from nvexplore.demo import DemoModelError, demo_model_path

    try:
        print(demo_model_path())
    except DemoModelError as error:
        raise CommandError(str(error)) from None
    return 0


def info(args: argparse.Namespace) -> int:
    """``nvexplore info``: one line for each thing that decides what can run here."""
    lines = {
        "nvexplore": f"{__version__} in {PACKAGE}",
        "python": f"{platform.python_version()} in {sys.prefix}",
        **{name: _version(name) for name in INFO_DISTRIBUTIONS},
        "CUDA": _cuda(),
        "demo model": _demo_model(),
    }
    for name, value in lines.items():
        print(f"{name:<12} {value}")
    return 0


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cuda() -> str:
    if importlib.util.find_spec("torch") is None:
        return "unknown without torch"
    import torch

    if not torch.cuda.is_available():
        return f"no (torch {'was built without it' if torch.version.cuda is None else 'sees no device'})"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{torch.version.cuda}, {len(names)} x {names[0]}"


def _demo_model() -> str:
    from nvexplore.demo import cached_demo_model, default_cache_dir

    if folder := cached_demo_model():
        return f"in {folder}"
    return f"not in {default_cache_dir()} (nvexplore demo-model fetches it)"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    top = argparse.ArgumentParser(prog="nvexplore", description=(__doc__ or "").splitlines()[0])
    top.add_argument("--version", action="version", version=f"nvexplore {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("demo", help="open the notebooks in JupyterLab", description=demo.__doc__)
    command.add_argument("folder", nargs="?", default="nvexplore-notebooks", help="their copy (%(default)s)")
    for flag, meaning in (
        ("--here", "use the notebooks where they lie and copy nothing"),
        ("--force", "replace copies that were changed"),
        ("--headless", f"execute {FIRST_NOTEBOOK} instead of opening it"),
        ("--no-open", "start JupyterLab without a browser"),
    ):
        command.add_argument(flag, action="store_true", help=meaning)
    command.add_argument("--port", type=int, help="the port of JupyterLab")
    command.set_defaults(run=demo)

    for name, run, summary in (
        ("demo-model", demo_model, "fetch the demo model once and print its folder"),
        ("info", info, "say what this machine offers, one line each"),
    ):
        command = commands.add_parser(name, help=summary, description=run.__doc__)
        command.set_defaults(run=run)
    add_replay(commands)
    add_bench(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` (the process's own by default) and return its exit status."""
    args = parser().parse_args(argv)
    # Before torch is loaded, here or in a kernel: threads that wait must not spin, which others pay for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        status: int = args.run(args)
        return status
    except CommandError as error:
        print(f"nvexplore: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
