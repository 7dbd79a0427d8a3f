"""The skip list of conftest.py, tried on small projects of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
NOT_LISTED = "*not listed in tests/skips.toml*"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project whose conftest.py is ours."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nxfail_strict = true\nmarkers =\n    browser: x\n    lab: x\n    gpu: x")
    return pytester


def run(project: pytest.Pytester, *args: str) -> pytest.RunResult:
    # pytest-playwright, where someone has it, wraps each test in a scope that cannot be nested.
    return project.runpytest_inprocess("-p", "no:playwright", *args)


def allow(project: pytest.Pytester, test: str, reason: str) -> None:
    (project.path / "skips.toml").write_text(f'[[skip]]\ntest = "{test}"\nreason = "{reason}"\n')


SKIPPED = """
    import pytest
    @pytest.mark.parametrize("kind", ["a", "b"])
    def test_one(kind):
        pytest.skip("no such device")
    def test_two():
        pass
"""


def test_a_skip_that_is_not_listed_fails_the_run(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=SKIPPED)
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([NOT_LISTED, "test_it.py::test_one[[]a]: Skipped: no such device"])
    result.assert_outcomes(passed=1, skipped=2)


def test_a_listed_skip_passes(project: pytest.Pytester) -> None:
    project.makepyfile(test_it=SKIPPED)
    allow(project, "test_it.py::test_one[*]", "no such device")
    result = run(project)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line(NOT_LISTED)


@pytest.mark.parametrize(
    ("test", "reason"),
    [("test_it.py::test_one[*]", "some other reason"), ("test_it.py::test_one[a]", "no such device")],
    ids=["other reason", "other test"],
)
def test_the_list_allows_one_test_for_one_reason(project: pytest.Pytester, test: str, reason: str) -> None:
    project.makepyfile(test_it=SKIPPED)
    allow(project, test, reason)
    assert run(project).ret == pytest.ExitCode.TESTS_FAILED


def test_a_module_that_skips_itself_counts(project: pytest.Pytester) -> None:
    project.makepyfile(test_it="import pytest\npytest.importorskip('surely_not_installed')")
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([NOT_LISTED, "test_it.py: Skipped: could not import 'surely_not_installed'*"])


def test_an_expected_failure_counts(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.xfail(reason="known")
        def test_fails():
            assert False
        @pytest.mark.xfail(reason="mended", strict=False)
        def test_passes():
            pass
        """
    )
    result = run(project)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([NOT_LISTED, "*test_fails: expected to fail: known", "*test_passes: *mended"])


def test_deselected_is_not_skipped(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.gpu
        def test_gpu():
            assert False
        def test_cpu():
            pass
        """
    )
    result = run(project, "-m", "not gpu")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, deselected=1)


def test_browser_tests_come_last(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import pytest
        @pytest.mark.browser
        def test_page(): pass
        @pytest.mark.lab
        def test_lab(): pass
        def test_plain(): pass
        """
    )
    result = run(project, "-v")
    result.stdout.fnmatch_lines(["*::test_plain PASSED*", "*::test_page PASSED*", "*::test_lab PASSED*"])
