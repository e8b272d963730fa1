"""nbgrader's own commands, with the course's settings: scores, feedback, exchange, formgrader's button."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import nbformat
import pytest
from broken_notebooks import ANSWER, CASES, CHECK, DISCUSS, find
from nbgrader_course import ROOT, command

from grader import farm, judging, nbgrader_app
from grader.measure import Task, as_html, check_outputs, clean_outputs, perform
from perflab import judge
from perflab.exercises import cache_size


def marked(verdict):
    return lambda source: f"{source}\n# verdict: {verdict}"


def check_cell(notebook):
    return find(notebook, CHECK)


def autograde(course, *arguments):
    return nbgrader_app.run("autograde", ["12-2", *arguments], course.folder)


# ------------------------------------------------------------ scores


@pytest.mark.parametrize(
    "verdict, auto",
    [("pass 10", 10), ("fail 0", 0), ("fail 3", 3), ("fail 0.5", 0.5), ("inconclusive 6", None)],
)
def test_gradebook_holds_exactly_the_verdicts_points(course, fake_judge, verdict, auto):
    course.submit("alice", course.solution(marked(verdict)))
    autograde(course)
    grade = course.grades()["alice"]
    assert grade["auto"] == auto
    assert grade["manual"] is (auto is None)
    assert grade["score"] == (auto or 0)  # the discussion waits for a person


def test_neither_warnings_nor_errors_nor_numbers_in_the_students_output_count(course, fake_judge):
    # The fake run prints to stderr, raises, and shows 1000.0 as a result in every cell.
    course.submit("alice", course.solution(marked("fail 4")))
    autograde(course)
    assert course.grades()["alice"]["auto"] == 4
    cell = find(course.graded("alice"), ANSWER)
    assert {output["output_type"] for output in cell["outputs"]} == {"stream", "display_data", "error"}
    assert "text/html" not in json.dumps(cell["outputs"])


def test_points_follow_the_cell_where_an_instructor_changed_them(course, fake_judge):
    outputs = check_outputs(
        {
            "status": "fail",
            "points": 3,
            "max_points": 10,
            "message": "m\n\n消息",
            "figure": None,
            "evidence": {},
        },
        20,
    )
    assert outputs[-1].data["text/plain"] == "6.0"


def test_every_broken_notebook_gets_a_grade_from_the_plain_command(course, fake_judge):
    for case in CASES:
        case.make(course.place(case.name), course.solution())
    autograde(course)
    grades = course.grades()
    assert set(grades) == {case.name for case in CASES}
    assert {case.name: grades[case.name]["auto"] for case in CASES} == {
        case.name: 10 if case.outcome == "full" else 0 for case in CASES
    }
    for case in CASES:
        shown = json.dumps(course.graded(case.name), ensure_ascii=False)
        assert not case.says or case.says in shown
    graded = course.folder / "autograded"
    assert not any(path.is_symlink() for path in graded.rglob("*"))
    assert not list(graded.rglob("torch.py")) and not list(graded.rglob("secret.txt"))


def test_a_deleted_check_cell_does_not_stay_open_for_ever(course, fake_judge):
    notebook = course.solution()
    notebook["cells"].remove(find(notebook, CHECK))
    course.submit("alice", notebook)
    autograde(course)
    assert course.grades()["alice"] == {"auto": 10, "manual": False, "score": 10, "late": 0}


def test_strange_student_names(course, fake_judge):
    names = ["Zoë 张三", "o'Brien & Söhne", "x" * 120, "a+b", "12345", 'quote"s']
    for name in names:
        course.submit(name)
    course.submit("line\nbreak")
    (course.folder / "submitted" / ".DS_Store").touch()
    autograde(course)
    grades = course.grades()
    assert set(names) < set(grades) and len(grades) == len(names) + 1
    assert all(grade["auto"] == 10 for grade in grades.values())


def test_one_student_only(course, fake_judge):
    course.submit("alice")
    course.submit("bob")
    autograde(course, "--student=bob")
    assert set(course.grades()) == {"bob"}


def test_the_judge_failing_stops_nobody_else(course, fake_judge):
    course.submit("alice", course.solution(marked("raise")))
    course.submit("bob")
    with pytest.raises(nbgrader_app.NbgraderFailed) as failure:
        autograde(course)
    assert failure.value.students() == {"alice": "RuntimeError: the judge itself failed"}
    assert course.grades()["bob"]["auto"] == 10
    assert not (course.folder / "autograded" / "alice" / "12-2" / "12-2.ipynb").exists()


# ------------------------------------------------------------ again and again


def test_content_decides_what_is_graded_again(course, fake_judge, monkeypatch):
    asked = []
    real = judging.judge_answer
    monkeypatch.setattr(judging, "judge_answer", lambda *a, **k: asked.append(1) or real(*a, **k))
    path = course.submit("alice", course.solution(marked("fail 2")))
    (path.parent / "timestamp.txt").write_text("2026-06-01 12:00:00 UTC")
    autograde(course)
    graded = course.folder / "autograded" / "alice" / "12-2" / "12-2.ipynb"
    before = graded.stat().st_mtime_ns
    autograde(course)
    assert len(asked) == 1 and graded.stat().st_mtime_ns == before
    # Handed in again, with an older time stamp or none: nbgrader alone would have skipped it.
    path.write_text(json.dumps(course.solution(marked("fail 5"))))
    (path.parent / "timestamp.txt").write_text("2026-05-01 12:00:00 UTC")
    autograde(course)
    assert course.grades()["alice"]["auto"] == 5
    (path.parent / "timestamp.txt").unlink()
    path.write_text(json.dumps(course.solution(marked("fail 7"))))
    autograde(course)
    assert course.grades()["alice"]["auto"] == 7 and len(asked) == 3


def test_force_measures_again_only_what_was_inconclusive(course, fake_judge, monkeypatch):
    course.submit("alice", course.solution(marked("inconclusive 0")))
    course.submit("bob", course.solution(marked("fail 1")))
    autograde(course)
    asked = []
    real = judging.judge_answer
    monkeypatch.setattr(
        judging, "judge_answer", lambda slug, cells, **k: asked.append(cells) or real(slug, cells, **k)
    )
    autograde(course, "--force")
    assert len(asked) == 1 and "inconclusive" in asked[0][0]


def test_a_persons_grade_survives_autograding_again(course, fake_judge):
    from nbgrader.api import Gradebook

    course.submit("alice", course.solution(marked("inconclusive 0")))
    autograde(course)
    with Gradebook(f"sqlite:///{course.folder / 'gradebook.db'}", "computational-performance") as gradebook:
        grade = gradebook.find_grade(CHECK, "12-2", "12-2", "alice")
        grade.manual_score, grade.needs_manual_grade = 8, False
        gradebook.db.commit()
    autograde(course, "--force")
    assert course.grades()["alice"]["score"] == 8


def test_late_hand_in_is_told_from_the_time_stamp(course, fake_judge):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course.folder / 'gradebook.db'}", "computational-performance") as gradebook:
        gradebook.update_or_create_assignment("12-2", duedate="2026-05-01 12:00:00 UTC")
    path = course.submit("alice")
    (path.parent / "timestamp.txt").write_text("2026-05-01 12:01:00 UTC")
    autograde(course)
    assert course.grades()["alice"]["late"] == 60


def test_a_time_stamp_that_changes_or_goes_changes_the_lateness(course, fake_judge):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course.folder / 'gradebook.db'}", "computational-performance") as gradebook:
        gradebook.update_or_create_assignment("12-2", duedate="2026-05-01 12:00:00 UTC")
    stamp = course.submit("alice").parent / "timestamp.txt"
    for text, late_s in (("2026-05-01 12:01:00 UTC", 60), ("2026-05-01 11:00:00 UTC", 0), ("2026-05-01 13:00:00 UTC", 3600)):
        stamp.write_text(text)
        autograde(course)
        assert course.grades()["alice"]["late"] == late_s
    stamp.unlink()
    autograde(course)
    assert course.grades()["alice"]["late"] == 0


@pytest.mark.parametrize("left", ["nothing", "half a notebook", "a notebook from elsewhere", "[]"])
def test_what_a_killed_grader_left_is_graded_again(course, fake_judge, left):
    path = course.submit("alice")
    (path.parent / "timestamp.txt").write_text("2026-06-01 12:00:00 UTC")
    autograde(course)
    graded = course.folder / "autograded" / "alice" / "12-2" / "12-2.ipynb"
    before = graded.read_text()
    if left == "nothing":
        graded.unlink()
    else:
        texts = {"half a notebook": before[: len(before) // 2], "a notebook from elsewhere": json.dumps(course.solution())}
        graded.write_text(texts.get(left, left))
    autograde(course)
    assert graded.read_text() == before


def test_a_gradebook_that_lost_a_student_finds_them_again(course, fake_judge):
    from nbgrader.api import Gradebook

    course.submit("alice")
    autograde(course)
    with Gradebook(f"sqlite:///{course.folder / 'gradebook.db'}", "computational-performance") as gradebook:
        gradebook.remove_student("alice")
    assert course.grades() == {}
    autograde(course)
    assert course.grades()["alice"]["auto"] == 10


def test_withdrawn_submissions_do_not_come_back(course, fake_judge):
    import shutil

    for name in ("alcie", "bob"):
        course.submit(name)
    autograde(course)
    (course.folder / "submitted" / "alcie").rename(course.folder / "submitted" / "alice")
    shutil.rmtree(course.folder / "autograded" / "alcie")
    autograde(course)
    assert not (course.folder / "autograded" / "alcie").exists()
    assert course.grades()["alice"]["auto"] == 10


def test_one_assignment_is_judged_on_one_kind_of_machine(course, fake_judge, monkeypatch):
    from grader import autograde as grading
    from grader import measure
    from grader.store import hardware_class

    course.submit("alice")
    autograde(course)
    known = course.folder / "verdicts" / "hardware.json"
    assert json.loads(known.read_text()) == {"12-2": hardware_class()}
    graded = course.folder / "autograded" / "alice" / "12-2" / "12-2.ipynb"
    before = graded.stat().st_mtime_ns
    for module in (grading, measure):  # the same course on another machine
        monkeypatch.setattr(module, "hardware_class", lambda: "an abacus")
    autograde(course)
    assert graded.stat().st_mtime_ns == before
    course.submit("bob", course.solution(marked("fail 1")))
    with pytest.raises(nbgrader_app.NbgraderFailed) as failure:
        autograde(course)
    assert "'an abacus'" in failure.value.students()["bob"]
    known.write_text("{")
    with pytest.raises(nbgrader_app.NbgraderFailed, match="hardware.json is damaged"):
        autograde(course)


# ------------------------------------------------------------ feedback


def test_feedback_is_new_where_the_grade_is(course, fake_judge):
    path = course.submit("alice", course.solution(marked("fail 3")))
    page = course.folder / "feedback" / "alice" / "12-2" / "12-2.html"
    autograde(course)
    nbgrader_app.run("generate_feedback", ["12-2"], course.folder)
    assert "Measured 3" in page.read_text()
    path.write_text(json.dumps(course.solution(marked("fail 4"))))
    autograde(course)
    nbgrader_app.run("generate_feedback", ["12-2"], course.folder)
    assert "Measured 4" in page.read_text()


def test_feedback_shows_both_languages_the_picture_and_no_script(course, fake_judge):
    notebook = course.solution(marked("fail 3"))
    find(notebook, DISCUSS)["source"] = (
        "<script>alert(3)</script> <img src=x onerror=alert(4)> [x](javascript:alert(5)) `<script>alert(6)</script>` "
        "[x](<javascript:alert(7)>) [x][y] [y] [z](jav&#97;script:alert(8)) ![remote](http://example.org/seen.png)\n\n"
        "[y]: javascript:alert(9)\n"
    )
    course.submit("alice", notebook)
    autograde(course)
    nbgrader_app.run("generate_feedback", ["12-2"], course.folder)
    page = (course.folder / "feedback" / "alice" / "12-2" / "12-2.html").read_text()
    assert (
        "<div>Measured 3, expected 10 &lt;b&gt;or more&lt;/b&gt;.</div>" in page and "测得 3，应为 10" in page
    )
    assert "data:image/png;base64,iVBORw0KGgo" in page
    assert "(Score: 3.0 / 14.0)" in page
    tags = re.findall(r"<[a-zA-Z][^<>]*>", page)
    assert not [tag for tag in tags if re.search(r"onerror|onload|javascript:|<img.*seen.png", tag)]
    assert not [tag for tag in tags if tag.startswith("<script")]
    assert not [tag for tag in tags if re.search(r"^<(link|img|iframe)\b.*\bhttps?:", tag)]  # whole without a network


def test_feedback_of_an_inconclusive_verdict_shows_the_evidence(course, fake_judge):
    course.submit("alice", course.solution(marked("inconclusive 0")))
    autograde(course)
    nbgrader_app.run("generate_feedback", ["12-2"], course.folder)
    page = (course.folder / "feedback" / "alice" / "12-2" / "12-2.html").read_text()
    assert "Evidence 证据" in page and '"ratio": 1.05' in page


def test_hostile_outputs_become_plain_ones():
    hostile = [
        {"output_type": "execute_result", "data": {"text/plain": "10.0"}, "execution_count": 1},
        {
            "output_type": "display_data",
            "data": {"image/svg+xml": "<svg onload=alert(1)/>", "image/png": '"><script>'},
        },
        {"output_type": "display_data", "data": "no dict"},
        {"output_type": "stream", "name": "<script>", "text": ["a", 3, "\ud83d"]},
        {"output_type": "error", "ename": 3, "evalue": None, "traceback": "x"},
        {"output_type": "update_display_data"},
        {},
    ]
    cleaned = clean_outputs(hostile)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("1", outputs=nbformat.from_dict(cleaned))]
    )
    nbformat.validate(notebook)
    assert [output["output_type"] for output in cleaned] == ["display_data", "stream", "error"]
    assert "<script" not in nbformat.writes(notebook) and nbformat.writes(notebook).encode()
    assert (
        as_html("a `x<y`\n\n<b>") == "<div>a <code>x&lt;y</code></div><div>&nbsp;</div><div>&lt;b&gt;</div>"
    )


# ------------------------------------------------------------ what students get


def test_released_notebook_has_stubs_and_no_solution(released_course):
    released = released_course.notebook("release")
    answer = "".join(find(released, ANSWER)["source"])
    assert answer.count("raise NotImplementedError()") == 3 and "perf_counter" not in answer
    assert "def measure(launch, wait):" in answer
    text = json.dumps(released, ensure_ascii=False)
    assert "Rubric" not in text and "参考答案" not in text and "SOLUTION" not in text
    assert (
        find(released, CHECK)["metadata"]["nbgrader"]["locked"]
        and find(released, DISCUSS)["cell_type"] == "markdown"
    )
    compile(answer, "answer", "exec")
    nbformat.validate(nbformat.from_dict(released))


def test_release_is_the_same_twice(released_course, tmp_path):
    from nbgrader_course import make

    again = make(tmp_path / "again")
    assert again.notebook("release") == released_course.notebook("release")


def test_changed_cells_of_a_graded_assignment_are_explained(course, fake_judge, monkeypatch, tmp_path):
    from grader import course_files

    course.submit("alice")
    autograde(course)
    text = (course_files.SOLUTIONS / "12-2.md").read_text()
    monkeypatch.setattr(course_files, "SOLUTIONS", tmp_path)
    (tmp_path / "12-2.md").write_text(text.replace("grade_id: async-on-cpu-check", "grade_id: other-check"))
    with pytest.raises(ValueError, match="nbgrader db assignment remove 12-2 --force"):
        course_files.release("12-2", course.folder)


@pytest.mark.parametrize("path", sorted((ROOT / "solutions").glob("*.md")), ids=lambda path: path.stem)
def test_every_assignment_is_complete(path):
    """Each exercise of an assignment: prompt in both languages, answer cell, check with the judge's points."""
    from importlib import import_module

    from grader.course_files import source_notebook, split_grade_id

    notebook = source_notebook(path)
    roles = {}
    for cell in notebook.cells:
        if "nbgrader" in cell.metadata:
            slug, role = split_grade_id(cell.metadata.nbgrader["grade_id"])
            roles.setdefault(slug, {})[role] = cell
    assert roles
    prompts = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for slug, cells in roles.items():
        assert f"`{slug}" in prompts
        if set(cells) == {"discuss"}:
            continue
        assert "check" in cells and any(role.startswith("answer") for role in cells), slug
        exercise = import_module(f"perflab.exercises.{slug.replace('-', '_')}")
        assert cells["check"].metadata.nbgrader["points"] == exercise.MAX_POINTS
        assert f'perflab.check("{slug}"' in cells["check"].source
        answer = "\n".join(cell.source for role, cell in cells.items() if role.startswith("answer"))
        assert all(name in answer for name in exercise.ENTRY_POINTS)
        assert all(name in prompts for name in exercise.ENTRY_POINTS)


# ------------------------------------------------------------ the commands themselves


def test_plain_commands_from_release_to_feedback(course):
    """The documented commands, in the folder the README names, with the real judge and sandbox."""
    course.submit("right")
    course.submit("wrong", course.solution(lambda source: source.replace("        wait()\n", "")))
    (course.place("corrupt") / "12-2.ipynb").write_text("{")
    where = f"--course-dir={course.folder}"
    for arguments in (
        ["generate_assignment", "12-2", "--force"],
        ["autograde", "12-2"],
        ["generate_feedback", "12-2"],
    ):
        done = command("nbgrader", *arguments, where)
        assert done.returncode == 0, done.stderr
        assert "SAWarning" not in done.stderr
    grades = course.grades()
    assert grades["right"]["auto"] == 10 and grades["corrupt"]["auto"] == 0
    assert 0 <= grades["wrong"]["auto"] < 10
    for student in grades:
        assert (course.folder / "feedback" / student / "12-2" / "12-2.html").is_file()


def test_first_command_where_the_environment_is_not_activated(tmp_path):
    from grader import course_files

    course_files.write_source("12-2", tmp_path)
    bare = {"PATH": "/usr/bin:/bin"}
    done = command("nbgrader", "generate_assignment", "12-2", f"--course-dir={tmp_path}", environment=bare)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "release" / "12-2" / "12-2.ipynb").is_file()


def students_folder(tmp_path, exchange):
    """A folder with the settings that both READMEs tell a student to write, and the environment of a home of its own."""
    found = []
    for readme in ("README.md", "README.zh-CN.md"):
        [lines] = re.findall(r"```python\n(c = get_config\(\)\n.*?)```", (ROOT / readme).read_text(), re.DOTALL)
        found.append(re.sub(" *#.*", "", lines))
    assert found[0] == found[1] and "/srv/nbgrader/exchange" in found[0]
    folder = tmp_path / "student"
    folder.mkdir()
    (folder / "nbgrader_config.py").write_text(found[0].replace("/srv/nbgrader/exchange", str(exchange)))
    return {"cwd": folder, "environment": {"HOME": str(folder), "USER": "zoe"}}


def test_exchange_there_and_back(course, tmp_path):
    """release_assignment → fetch_assignment → submit → collect, each where its user calls it and with that user's settings."""
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    exchange.chmod(0o777)
    home = {"COURSE_EXCHANGE": str(exchange)}
    where = f"--course-dir={course.folder}"
    assert command("nbgrader", "release_assignment", "12-2", where, environment=home).returncode == 0
    student = students_folder(tmp_path, exchange)
    fetch = command("nbgrader", "fetch_assignment", "12-2", **student)
    assert fetch.returncode == 0, fetch.stderr
    path = student["cwd"] / "12-2" / "12-2.ipynb"
    assert json.loads(path.read_text())["cells"] == course.notebook("release")["cells"]
    path.write_text(json.dumps(course.solution()))
    hand_in = command("nbgrader", "submit", "12-2", "--student=zoe", **student)
    assert hand_in.returncode == 0, hand_in.stderr
    collected = command("nbgrader", "collect", "12-2", where, environment=home)
    assert collected.returncode == 0, collected.stderr
    assert (course.folder / "submitted" / "zoe" / "12-2" / "12-2.ipynb").is_file()
    assert Path(course.folder / "submitted" / "zoe" / "12-2" / "timestamp.txt").is_file()
    assert "was the time stamp made by hand" not in collected.stderr

    # Two who were late and wrote an earlier time by hand: in the folder's name, and in the file alone.
    inbound = exchange / "computational-performance" / "inbound"
    [honest] = inbound.iterdir()
    for student, name_time, written in (
        ("mal", "2026-01-05 10:00:00 UTC", "2026-01-05 10:00:00 UTC"),
        ("tom", honest.name.split("+")[2], "2026-01-05 10:00:00 UTC"),
    ):
        forged = inbound / f"{student}+12-2+{name_time}+x"
        shutil.copytree(honest, forged)
        (forged / "timestamp.txt").chmod(0o644)
        (forged / "timestamp.txt").write_text(written)
    collected = command("nbgrader", "collect", "12-2", where, environment=home)
    assert collected.returncode == 0, collected.stderr
    warnings = [line for line in collected.stderr.splitlines() if "was the time stamp made by hand" in line]
    assert [re.search(r"(\w+)\+12-2", line)[1] for line in sorted(warnings)] == ["mal", "tom"]
    assert all("says it was handed in at 2026-01-05 10:00:00 UTC" in line for line in warnings)
    assert (course.folder / "submitted" / "mal" / "12-2" / "12-2.ipynb").is_file()  # a person decides


def test_validate_says_what_is_wrong(course, tmp_path):
    """nbgrader #1908: it ends with 0 whatever it found. It can only be told of a wrong answer by an error."""
    student = students_folder(tmp_path, tmp_path)
    found = {}
    for name, edit in (("wrong", lambda source: source.replace("launch_s < 0.5 * total_s", "True")), ("right", None)):
        (student["cwd"] / f"{name}.ipynb").write_text(json.dumps(course.solution(edit)))
        done = command("nbgrader", "validate", f"{name}.ipynb", timeout_s=600, **student)
        assert done.returncode == 0, done.stderr
        assert "Cell output is" not in done.stderr
        found[name] = done.stdout
    assert "VALIDATION FAILED ON 1 CELL(S)" in found["wrong"] and 'perflab.check("async-on-cpu"' in found["wrong"]
    assert "Not passed: " in found["wrong"] and re.search("✗ .*`is_asynchronous", found["wrong"]) and "未通过：" in found["wrong"]
    assert "Traceback" not in found["wrong"]
    assert "Success!" in found["right"]


# ------------------------------------------------------------ what others reported of nbgrader


def test_a_file_named_as_one_of_the_instructors(course, fake_judge):
    """#940: the instructor's takes the student's place. Here no file beside the notebook counts, and none is lost."""
    for step, text in (("source", "the instructor's"), ("release", "the instructor's")):
        (course.folder / step / "12-2" / "helper.py").write_text(text)
    handed_in = course.submit("alice", course.solution(marked("fail 3"))).with_name("helper.py")
    handed_in.write_text("the student's")
    autograde(course)
    assert course.grades()["alice"]["auto"] == 3
    assert handed_in.read_text() == "the student's"
    assert "the student's" not in {path.read_text() for path in (course.folder / "autograded").rglob("helper.py")}


@pytest.mark.usefixtures("needs_sandbox")
def test_packages_of_the_users_own_are_not_an_answers(tmp_path):
    """#1842: what lies in the home of whoever grades, or on PYTHONPATH, is not there for an answer, boxed or not."""
    site = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(tmp_path)}))
    site.mkdir(parents=True)
    (site / "planted.py").touch()
    answer = """
import importlib.util, subprocess, sys
def f():
    ask = "import importlib.util; print(importlib.util.find_spec('planted'))"
    child = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout.strip()
    return importlib.util.find_spec("planted") is None, child, sys.flags.no_user_site
"""
    program = f"""
import planted  # this process does see it
from grader import judging
from perflab.launch import Launcher
for launcher in (judging.launcher(), Launcher()):
    with launcher, launcher.start() as host:
        host.run_answer([{answer!r}], ["f"])
        print(host.call("f", inference=False))
"""
    environment = os.environ | {"HOME": str(tmp_path), "PYTHONUSERBASE": str(tmp_path), "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [str((True, "None", 1))] * 2, done.stdout + done.stderr


SECRETS_TOLD = {
    # what it sees is printed, and raised when the last curve has been shown
    "alice": "seen.extend([sizes, ns])\n    print(seen, flush=True)\n    if len(seen) < {twice}:\n        return known(sizes, ns)\n    raise ValueError(str(seen))",
    # wrong on the secret ones alone
    "bob": "return known(sizes, ns) if ns in public else []",
}


@pytest.mark.usefixtures("needs_sandbox")
def test_nothing_hidden_is_in_the_feedback(course, monkeypatch):
    """#917: secret cases, which a judge's evidence names and an answer's exception quotes, stay with the instructor."""
    hidden = judging.hidden_cases("cache-size")
    secret = json.loads((hidden / "latency-curves.json").read_text())["curves"]
    public = json.loads(cache_size.PUBLIC_CURVES.read_text())["curves"]
    estimator = (ROOT / "tests" / "answers" / "cache-size" / "right-plateaus.py").read_text()

    def recorded_curves_only(slug, cells, **_):  # the part of the judge that shows secrets: without a clock
        session = judge.Session("cache-size", cells, judging.launcher(), seed=1, hidden=hidden)
        parts, evidence = judge.Parts("cache-size", 14), {}
        with contextlib.closing(session), parts.attempt("recorded", 3):
            cache_size._judge_recorded(session, parts, evidence)
        return parts.verdict(evidence=evidence)

    monkeypatch.setattr(judging, "judge_answer", recorded_curves_only)
    for student, body in SECRETS_TOLD.items():
        body = body.replace("{twice}", str(2 * len(secret + public)))
        answer = f"{estimator}\nknown, seen, public = estimate, [], {[curve['ns'] for curve in public]}\n\ndef estimate(sizes, ns):\n    {body}\n"
        course.submit(student, course.solution(lambda source, answer=answer: answer))
    autograde(course)
    nbgrader_app.run("generate_feedback", ["12-2"], course.folder)
    pages = {student: (course.folder / "feedback" / student / "12-2" / "12-2.html").read_text() for student in SECRETS_TOLD}
    assert "raised ValueError on a case that is kept secret" in pages["alice"]
    assert f"those of {len(secret)} others, which are kept secret" in pages["bob"]
    kept = json.dumps(course.graded("bob"))
    for curve in secret:
        assert curve["name"] in kept  # the instructor's copy
        for page in pages.values():
            assert curve["name"] not in page and ", ".join(map(str, curve["ns"][:3])) not in page


def test_an_honest_submission_gives_no_warning(course, fake_judge):
    """nbgrader's checksum warning fires for every honest student where there are hidden tests."""
    course.submit("alice")
    assert autograde(course) == []
    assert nbgrader_app.run("generate_feedback", ["12-2"], course.folder) == []
    [row] = farm.rows(course.folder, "12-2", "*", {})
    assert (row.status, row.score, row.reason) == ("pass", 10, "Everything asked was shown.")
    graded = course.graded("alice")
    assert graded["metadata"]["perflab"]["reason"] is None and graded["metadata"]["perflab"]["notes"] == []
    assert [cell["id"] for cell in graded["cells"]] == [cell["id"] for cell in course.notebook("release")["cells"]]
    page = (course.folder / "feedback" / "alice" / "12-2" / "12-2.html").read_text()
    assert "About the file" not in page and "checksum" not in page.casefold()


WIDGET = """
import asyncio
import ipywidgets
from IPython.display import display

slider = ipywidgets.IntSlider()
display(slider)
"""
# No browser will ever answer: the usual ways to wait for it.
WAITS = {
    "event loop": "moved = asyncio.Event()\nslider.observe(lambda change: moved.set(), 'value')\nawait moved.wait()",
    "comm": "import threading\nanswered = threading.Event()\nslider.comm.on_msg(lambda message: answered.set())\nslider.send_state()\nanswered.wait()",
}


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.parametrize("wait", WAITS)
def test_a_widget_does_not_hang_the_grading(wait):
    start = time.perf_counter()
    record = perform(Task("run", "", (WIDGET, WAITS[wait], "print('never')")), run_timeout_s=20)
    assert time.perf_counter() - start < 120
    shown, waited, after = record["outputs"]
    assert [output["output_type"] for output in shown] == ["display_data"] and "IntSlider" in shown[0]["data"]["text/plain"]
    assert "did not finish" in record["note"] and waited and after == []
    with judging.launcher().start() as host:  # and in an answer cell it is no obstacle
        host.run_answer([WIDGET + "def f():\n    return slider.value"], ["f"])
        assert host.call("f", inference=False) == 0


# ------------------------------------------------------------ formgrader


def test_formgraders_autograde_button(course, browser, tmp_path):
    """A real server, a real browser: the button grades what the command grades."""
    import socket
    import urllib.request

    course.submit("right", course.solution())
    (course.place("corrupt") / "12-2.ipynb").write_bytes(b"\xff\xfe\x00")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [
        f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={course.folder.parent}",
        "--ServerApp.open_browser=False",
        "--ServerApp.allow_root=True",
        "--IdentityProvider.token=",
        "--ServerApp.disable_check_xsrf=True",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter", "server", *settings],
        cwd=ROOT / "grader",
        env=os.environ | {"COURSE_DIR": str(course.folder), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    page_of_class = f"http://127.0.0.1:{port}/formgrader/manage_submissions/12-2"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(page_of_class, timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        page = browser.new_page()
        page.goto(page_of_class, wait_until="networkidle")
        for student in ("corrupt", "right"):
            page.locator("tr", has_text=student).first.locator(".autograde a").click()
            page.wait_for_selector(".modal.in", timeout=200_000)
            assert "Success" in page.locator(".modal.in").inner_text()
            page.locator(".modal.in button.close").first.click()
            page.wait_for_selector(".modal.in", state="detached")
        page.goto(page_of_class, wait_until="networkidle")
        shown = {row.split("\t")[1]: row for row in page.locator("tbody tr").all_inner_texts()}
        page.close()
    finally:
        server.terminate()
        server.wait()
    assert "10 / 14" in shown["right"] and "needs manual grading" in shown["right"]
    assert "0 / 14" in shown["corrupt"]
    assert {student: grade["auto"] for student, grade in course.grades().items()} == {
        "right": 10,
        "corrupt": 0,
    }
