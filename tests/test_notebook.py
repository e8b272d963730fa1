"""perflab.check, as a student runs it: in a kernel, without a sandbox, by the same judge."""

import subprocess
import sys
from pathlib import Path

import pytest

from perflab import notebook

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = (Path(__file__).parent / "answers" / "async-on-cpu" / "right-reference.py").read_text()


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # IPython puts a module of its own there
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.reset()
    yield shell
    InteractiveShell.clear_instance()


def test_importing_perflab_is_cheap():
    code = "import sys, perflab; assert not {'torch', 'matplotlib', 'numpy', 'IPython'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_check_judges_the_cells_that_define_the_answer(shell):
    shell.run_cell("import perflab", store_history=True)
    shell.run_cell("def survey(): return 'an old version'", store_history=True)
    shell.run_cell(REFERENCE, store_history=True)
    shell.run_cell("v = perflab.check('async-on-cpu', measure, is_asynchronous, survey)", store_history=True)
    verdict = shell.user_ns["v"]
    assert verdict.status == "pass", verdict.message
    assert "<img" in verdict._repr_html_()


def test_a_helper_in_another_cell_is_missing_as_when_grading(shell):
    shell.run_cell("import perflab\nimport time", store_history=True)
    shell.run_cell(REFERENCE.replace("import time\n", ""), store_history=True)
    shell.run_cell("v = perflab.check('async-on-cpu', measure, is_asynchronous, survey)", store_history=True)
    assert "Only the answer cells are run" in shell.user_ns["v"].message


def test_while_grading_it_does_nothing(monkeypatch):
    monkeypatch.setenv(notebook.AUTOGRADE, "1")
    assert notebook.check("async-on-cpu") is None


@pytest.mark.parametrize("status", ["pass", "inconclusive", "fail"])
def test_nbgraders_validate_is_told_of_a_wrong_answer_only(status, shell, monkeypatch):
    from perflab import judge

    message = "Not passed: 0 points. " + "A long line. " * 20 + "\n\n未通过：0 分。"
    monkeypatch.setattr(judge, "judge", lambda slug, *a, **k: judge.Verdict(slug, status, 0, 10, {}, message))
    shell.run_cell(REFERENCE, store_history=True)
    call = "perflab.check('async-on-cpu', measure, is_asynchronous, survey)"
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    result = shell.run_cell(f"import perflab\n{call}", store_history=True)
    if status != "fail":
        assert result.success and result.result is None
        return
    assert isinstance(result.error_in_exec, notebook.NotPassed) and str(result.error_in_exec) == message
    shown = result.error_in_exec._render_traceback_()
    assert " ".join(shown).split() == message.split()
    assert max(map(len, shown)) <= 80
    monkeypatch.delenv("NBGRADER_EXECUTION")
    assert shell.run_cell(call, store_history=True).result.status == "fail"


def test_misuse_is_explained(shell):
    with pytest.raises(ValueError, match="takes measure, is_asynchronous, survey"):
        notebook.check("async-on-cpu", len)
    with pytest.raises(KeyError, match="there are: "):
        notebook.check("no-such-exercise")
    with pytest.raises(ValueError, match="no cell that was run defines `measure`"):
        notebook.check("async-on-cpu", len, len, len)


def test_a_script_is_its_own_cell(tmp_path):
    path = tmp_path / "answer.py"
    path.write_text(REFERENCE + "\nif __name__ == '__main__':\n    import perflab\n    print(perflab.check('async-on-cpu', measure, is_asynchronous, survey))\n")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("Passed: 10 / 10"), done.stdout + done.stderr
