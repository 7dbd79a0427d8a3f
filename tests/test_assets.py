"""The browser side is found and fits into one module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvexplore.notebook import assets


def join(**sources: str) -> str:
    files = {f"{name}.js": text for name, text in sources.items()}
    return assets.join_modules(assets.in_order(list(files), files.__getitem__))


def test_the_module_parses_and_imports_nothing(tmp_path: Path) -> None:
    text = assets.module_text()
    (tmp_path / "module.mjs").write_text(text, encoding="utf-8")
    subprocess.run(["node", "--check", tmp_path / "module.mjs"], check=True)
    assert "\nimport " not in text and "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert text.count("export default") == 1 and text.count("\nexport ") == 1
    assert len(text) < 300_000


def test_a_view_brings_little() -> None:
    assert len(assets.view_text()) < 2_000
    assert "import" not in assets.view_text().replace("imported", "")


def test_sources_are_joined_in_the_order_of_their_imports() -> None:
    a = 'import { b } from "./b.js";\nexport const a = b + 1;\n'
    text = join(a=a, b='import { c } from "./c.js";\nexport function b() { return c; }\n', c="export const c = 1;\n")
    assert (
        text
        == "// ---- c.js\nconst c = 1;\n\n// ---- b.js\nfunction b() { return c; }\n\n// ---- a.js\nconst a = b + 1;\n"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("const x = 1;", "function x() {}"),
        ("export const a = 1, x = { a: 1, b: [2, 3] }, c = 2;", "class x {}"),
        ("async function x() {}", "export let x = 1;"),
        ("const a = f(b = 2, c), x = 1;", "const x = 2;"),
        ("const a = [1, 2],\n  x = 1;", "const b = () => {\n    return 2;\n  },\n  x = 2;"),
        ("const a = 1, // one, of three\n  x = 2;", 'const b = "(//", x = 2;'),
    ],
)
def test_two_definitions_of_a_name_are_refused(first: str, second: str) -> None:
    with pytest.raises(assets.AssetError, match=r"b\.js and a\.js both define x"):
        join(a=first, b=second)


def test_a_name_inside_a_definition_is_nobodys() -> None:
    join(a="const a = { x: 1, y: f(x = 2) };\nfunction f() {\n  const y = 1;\n}", b="const x = 1, y = 2;")
    join(a="const a = () => {\n  const x = 1,\n    y = 2;\n};", b="const x = 1,\n  y = 2;")


@pytest.mark.parametrize(
    "text",
    [
        'import x from "./a.js";',
        'import * as a from "./a.js";',
        'import { x } from "https://cdn.example/x.js";',
        'const x = await import("./a.js");',
        "export { x };",
        'export * from "./a.js";',
    ],
)
def test_other_forms_of_import_and_export_are_refused(text: str) -> None:
    with pytest.raises(assets.AssetError):
        join(a="export const a = 1;\n", b=text + "\n")


def test_circles_are_refused() -> None:
    with pytest.raises(assets.AssetError, match="imports itself"):
        join(a='import { b } from "./b.js";\n', b='import { a } from "./a.js";\n')


def test_a_missing_browser_side_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(assets, "PACKAGE", tmp_path / "nvexplore")
    with pytest.raises(assets.AssetError, match=r"store\.js"):
        assets.widgets_folder()
    inside = tmp_path / "nvexplore" / "widgets"
    inside.mkdir(parents=True)
    (inside / "store.js").touch()
    assert assets.widgets_folder() == inside
