"""A stranger adds a view as widgets/README.md says: two short files, put where the others lie, and it is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.conftest import RunPython

ROOT = Path(__file__).parents[1]
SESSION = """
from nvexplore.notebook import assets, display
from nvexplore.notebook.session import Session
from tests.comms import recorded_comms
from tests.notebook_fakes import FakeLLM

print(assets.PACKAGE)
with recorded_comms() as comms:
    session = Session()
    session.attach(FakeLLM())
    session.add("Hello", request_id="first")
    session.add("Good day", request_id="second")
    session.watch("queue")._repr_mimebundle_()
    session.step()
    explorer = session.explorer
    print(display.VIEWS)
    print("VIEWS.queue_view = mountQueueView;" in assets.module_text())
    comm = next(comm for comm in comms if comm.comm_id == explorer.model_id)
    comm.send_custom(type="ask", ask="1", what="queue_view", id=1, step=-1)
    print([data["content"]["prompt"] for kind, data, _ in comm.sent if data.get("method") == "custom"
        and data["content"].get("type") == "answer"])
    session.close()
"""


def fenced(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", (ROOT / "widgets" / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_two_short_files_are_a_view(tmp_path: Path, run_python: RunPython) -> None:
    script, module = fenced("js"), fenced("python")
    assert max(text.count("\n") for text in (script, module)) < 40
    copy = tmp_path / "checkout"
    for folder in ("nvexplore", "widgets"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "widgets" / "queue_view.js").write_text(script, encoding="utf-8")
    (copy / "nvexplore" / "notebook" / "queue_view.py").write_text(module, encoding="utf-8")
    package, views, is_joined, answers = run_python(
        SESSION, env={"PYTHONPATH": f"{copy}:{ROOT}", "IPYTHONDIR": str(tmp_path / "ipython")}
    ).splitlines()
    assert package == str(copy / "nvexplore")
    assert "'queue'" in views and is_joined == "True"
    assert answers == "['Good day']"
