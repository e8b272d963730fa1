"""`python -m grader grade` and `collect`: whole classes, broken, cut off, and again."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from broken_notebooks import CASES
from nbgrader_course import ROOT, command

from grader import farm, nbgrader_app
from grader.collect import collect, student_of
from grader.store import Store, key_of

FAKE = {"DASK_DISTRIBUTED__WORKER__PRELOAD": json.dumps([str(ROOT / "tests" / "fake_judge.py")])}


def grade(course, *arguments, **more):
    return command("grader", "grade", "12-2", f"--course-dir={course.folder}", *arguments, **more)


def rows_of(done):
    assert done.returncode == 0, done.stderr
    return {row["student"]: row for row in map(json.loads, done.stdout.splitlines())}


# The first case of each thing that is said of one: in the cells, the notebook and the folder, with full credit and without.
# test_rebuild.py and test_nbgrader.py have them all.
BROKEN = [case for n, case in enumerate(CASES) if case.says not in {earlier.says for earlier in CASES[:n]}][:30]


def fill_class(course):
    """Thirty submissions broken in as many ways, and thirty honest ones; returns the scores that are due."""
    due = {}
    for case in BROKEN:
        case.make(course.place(case.name), course.solution())
        due[case.name] = 10 if case.outcome == "full" else 0
    for number in range(30):
        points = number % 11
        verdict = "pass 10" if points == 10 else f"fail {points}"
        student = f"honest-{number:02}"
        course.submit(
            student, course.solution(lambda source, v=verdict, n=number: f"{source}\n# {n}\n# verdict: {v}")
        )
        due[student] = points
    return due


def test_a_class_of_sixty_half_of_it_broken(course):
    due = fill_class(course)
    assert len(due) == 60 and {due[case.name] for case in BROKEN} == {0, 10}
    start = time.perf_counter()
    done = grade(course, "--json", environment=FAKE)
    rows = rows_of(done)
    assert {student: row["score"] for student, row in rows.items()} == due
    assert {student: row["status"] for student, row in rows.items()} == {
        student: "pass" if points == 10 else "fail" for student, points in due.items()
    }
    assert all(row["reason"] for row in rows.values())
    assert "60 submissions of 12-2 graded" in done.stderr
    assert {student: grade["auto"] for student, grade in course.grades().items()} == due

    # Twice changes nothing, and judges nothing.
    before = {path: path.stat().st_mtime_ns for path in (course.folder / "autograded").rglob("*.ipynb")}
    again = grade(course, "--json", environment={"DASK_DISTRIBUTED__WORKER__PRELOAD": "nothing.of.the.kind"})
    assert rows_of(again) == rows
    assert {
        path: path.stat().st_mtime_ns for path in (course.folder / "autograded").rglob("*.ipynb")
    } == before
    assert time.perf_counter() - start < 200


def test_killed_at_any_moment_and_going_on(course):
    due = fill_class(course)
    rng = random.Random(12)
    arguments = [sys.executable, "-m", "grader", "grade", "12-2", f"--course-dir={course.folder}", "--json"]
    for _ in range(5):
        process = subprocess.Popen(
            arguments,
            cwd=ROOT / "grader",
            env=os.environ | FAKE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(1.5, 6))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in (course.folder / "verdicts").rglob("*.json"):
            json.loads(path.read_text())  # whole, or not there
    rows = rows_of(grade(course, "--json", environment=FAKE))
    assert {student: row["score"] for student, row in rows.items()} == due
    assert {student: grade["auto"] for student, grade in course.grades().items()} == due


def test_a_worker_that_dies_costs_one_row_only(course):
    course.submit("bomb", course.solution(lambda source: source + "\n# verdict: die"))
    neighbours = [f"neighbour-{n}" for n in range(6)]
    for n, student in enumerate(neighbours):  # they wait at the same worker
        course.submit(student, course.solution(lambda source, n=n: f"{source}\n# {n}"))
    rows = rows_of(grade(course, "--json", environment=FAKE))
    assert [rows[student]["status"] for student in neighbours] == ["pass"] * 6
    assert rows["bomb"]["status"] == "error" and "worker died" in rows["bomb"]["reason"]


def test_a_comma_in_a_name_excludes_nobody_else(course):
    course.submit("Li, Wei", course.solution(lambda source: source + "\n# verdict: raise"))
    course.submit("Li")
    rows = rows_of(grade(course, "--json", environment=FAKE))
    assert rows["Li"]["status"] == "pass"
    assert rows["Li, Wei"]["status"] == "error" and "the judge itself failed" in rows["Li, Wei"]["reason"]


def test_what_is_in_no_assignments_folder_is_named(course):
    course.submit("alice")
    (course.folder / "submitted" / "bob").mkdir()
    (course.folder / "submitted" / "bob" / "12-2.ipynb").write_text(json.dumps(course.solution()))
    (course.folder / "submitted" / "cid" / "12-2 homework").mkdir(parents=True)
    done = grade(course, "--json", environment=FAKE)
    assert set(rows_of(done)) == {"alice"}
    assert "bob/12-2.ipynb" in done.stderr and "cid/12-2 homework" in done.stderr
    nobody = grade(course, "--student=alcie", environment=FAKE)
    assert nobody.returncode == 2 and "'alcie'" in nobody.stderr


def test_the_judge_failing_costs_one_row_only(course):
    course.submit("alice")
    course.submit("bob", course.solution(lambda source: source + "\n# verdict: raise"))
    rows = rows_of(grade(course, "--json", environment=FAKE))
    assert rows["alice"]["status"] == "pass"
    assert rows["bob"]["status"] == "error" and "the judge itself failed" in rows["bob"]["reason"]


def test_inconclusive_waits_for_a_person_and_can_be_retried(course, fake_judge, monkeypatch):
    monkeypatch.setattr(farm, "compute", in_this_process)
    course.submit("alice", course.solution(lambda source: source + "\n# verdict: inconclusive 0"))
    [row] = farm.grade("12-2", course.folder, progress=False)
    assert (row.status, row.score, row.manual_points) == ("inconclusive", 0, 14)
    from grader import judging

    real = judging.judge_answer
    monkeypatch.setattr(
        judging, "judge_answer", lambda slug, cells, **k: real(slug, ["# verdict: pass 10"], **k)
    )
    [row] = farm.grade("12-2", course.folder, progress=False)
    assert row.status == "inconclusive"
    [row] = farm.grade("12-2", course.folder, retry=True, progress=False)
    assert (row.status, row.score) == ("pass", 10)


def in_this_process(tasks, scheduler, workers, unsafe, wanted_class):
    from grader.measure import perform
    from grader.store import hardware_class

    for task in tasks:
        yield task, perform(task, unsafe), wanted_class or hardware_class()


def test_a_scheduler_elsewhere_and_one_kind_of_machine(course):
    from distributed import LocalCluster

    course.submit("alice")
    with LocalCluster(n_workers=1, threads_per_worker=1, memory_limit=0, dashboard_address=None) as cluster:
        rows = rows_of(grade(course, "--json", "--scheduler", cluster.scheduler_address))
        assert rows["alice"]["score"] == 10  # by the real judge, in that cluster
        (course.folder / "verdicts" / "hardware.json").write_text('{"12-2": "an abacus"}')
        refused = grade(course, "--scheduler", cluster.scheduler_address)
    assert refused.returncode == 2 and "'an abacus'" in refused.stderr


def test_locked_gradebook_loses_nothing(course, fake_judge, monkeypatch):
    import sqlite3

    monkeypatch.setattr(farm, "compute", in_this_process)
    course.submit("alice")
    lock = sqlite3.connect(course.folder / "gradebook.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(farm.GradingFailed, match="gradebook"):
            farm.grade("12-2", course.folder, progress=False)
    finally:
        lock.close()
    [row] = farm.grade("12-2", course.folder, progress=False)
    assert row.score == 10


def test_nothing_handed_in_and_no_such_assignment(course):
    (course.folder / "submitted").mkdir()
    (course.folder / "submitted" / "zoe_12-2.ipynb").touch()
    done = grade(course)
    assert done.returncode == 0 and "0 submissions of 12-2" in done.stdout
    assert "zoe_12-2.ipynb" in done.stderr and "python -m grader collect" in done.stderr
    done = command("grader", "grade", "12-9", f"--course-dir={course.folder}")
    assert done.returncode == 2 and "python -m grader release 12-9" in done.stderr


def test_verdicts_are_keyed_by_content(tmp_path):
    keys = {
        key_of("judge", "async-on-cpu", ["a"], "x", False),
        key_of("judge", "async-on-cpu", ["a", ""], "x", False),
        key_of("judge", "async-on-cpu", ["a"], "y", False),
        key_of("judge", "async-on-cpu", ["a"], "x", True),
        key_of("run", "async-on-cpu", ["a"], "x", False),
        key_of("judge", "small-operations", ["a"], "x", False),
    }
    assert len(keys) == 6
    store = Store(tmp_path)
    assert store.get("ab12") is None
    store.put("ab12", {"status": "pass", "message": "消息"})
    assert Store(tmp_path).get("ab12") == {"status": "pass", "message": "消息"}


def test_one_writer_at_a_time(course, fake_judge):
    import fcntl
    import threading

    course.submit("alice")
    with open(course.folder / ".grading.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=nbgrader_app.run, args=("autograde", ["12-2"], course.folder))
        thread.start()
        thread.join(2)
        assert thread.is_alive() and course.grades() == {}
    thread.join(30)
    assert course.grades()["alice"]["auto"] == 10


# ------------------------------------------------------------ collecting


@pytest.mark.parametrize(
    "path, student",
    [
        ("li_12345_12-2.ipynb", "li_12345"),
        ("li_12345_12-2 (1).ipynb", "li_12345"),
        ("li_12345_12-2-1.ipynb", "li_12345"),
        ("Zoë Li_12345_assignsubmission_file_/12-2.ipynb", "Zoë Li_12345"),
        ("zoe/12-2.ipynb", "zoe"),
        ("submitted/zoe/12-2/12-2.ipynb", "zoe"),
        ("张三_12-2.ipynb", "张三"),
        ("zoe-12-2-Copy1.ipynb", "zoe"),
        ("12-2.ipynb", None),
        ("notes.txt", None),
        ("a+b_12-2.ipynb", None),
    ],
)
def test_whose_file_it_is(path, student):
    assert student_of(path, "12-2") == student


def test_own_pattern():
    assert student_of("x/2026 zoe hw.ipynb", "12-2", r"\d+ (?P<student>\w+) hw") == "zoe"


def test_collecting_a_downloaded_folder(course, tmp_path):
    text = json.dumps(course.solution())
    returned = tmp_path / "returned"
    (returned / "carol_3_assignsubmission_file_").mkdir(parents=True)
    (returned / "alice_1_12-2.ipynb").write_text("an early version")
    (returned / "alice_1_12-2 (1).ipynb").write_text(text)
    (returned / "carol_3_assignsubmission_file_" / "renamed.ipynb").write_text(text)
    (returned / "dave_4_12-2.ipynb").symlink_to("/etc/passwd")
    (returned / "12-2.ipynb").write_text(text)
    (returned / "broken.zip").write_bytes(b"PK")
    with zipfile.ZipFile(returned / "bob.zip", "w") as archive:
        archive.writestr("12-2.ipynb", text)
        archive.writestr("../../../evil_12-2.ipynb", text)
        archive.writestr("__MACOSX/._12-2.ipynb", "x")
    rows = collect(returned, "12-2", course.folder)
    said = {row.file: (row.student, row.result) for row in rows}
    assert said["alice_1_12-2 (1).ipynb"] == ("alice_1", "collected")
    assert said["alice_1_12-2.ipynb"][1] == "left out: a later version was taken"
    assert said["carol_3_assignsubmission_file_/renamed.ipynb"] == ("carol_3", "collected")
    assert said["bob/12-2.ipynb"] == ("bob", "collected")
    assert "points outside" in said["bob/../../../evil_12-2.ipynb"][1]
    assert "symbolic link" in said["dave_4_12-2.ipynb"][1]
    assert said["12-2.ipynb"][0] is None and "no student's name" in said["12-2.ipynb"][1]
    assert "not a zip file" in said["broken.zip"][1]
    assert {path.name for path in (course.folder / "submitted").iterdir()} == {"alice_1", "bob", "carol_3"}
    assert not list(tmp_path.rglob("evil*"))
    assert {row.result for row in collect(returned, "12-2", course.folder) if row.student == "bob"} >= {
        "already there"
    }
    (returned / "alice_1_12-2 (2).ipynb").write_text("{}")
    [row] = [row for row in collect(returned, "12-2", course.folder) if "(2)" in row.file]
    assert "--update" in row.result
    [row] = [row for row in collect(returned, "12-2", course.folder, update=True) if "(2)" in row.file]
    assert row.result == "collected"


def zipped(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path.read_bytes()


@pytest.mark.parametrize(
    "files, students",
    [
        (["week3/ann_12-2.ipynb", "week3/bob_12-2.ipynb"], {"ann", "bob"}),
        (["ann/week3/12-2.ipynb", "bob/week3/12-2.ipynb"], {"ann", "bob"}),
        (["a/ann/12-2.ipynb", "a/bob/12-2.ipynb", "b/cid/12-2.ipynb"], {"ann", "bob", "cid"}),
        (["zoe/draft_12-2.ipynb", "zoe/final_12-2.ipynb", "bob/12-2.ipynb"], {"zoe", "bob"}),
        (["ann/ann_12-2.ipynb", "ann/ann-final_12-2.ipynb", "bob/bob_12-2.ipynb"], {"ann", "bob"}),
        (["ann/v1_12-2.ipynb", "ann/v2_12-2.ipynb", "bob/v1_12-2.ipynb", "bob/v3_12-2.ipynb"], {"ann", "bob"}),
        (["zoe/12-2.ipynb", "readme.txt"], {"zoe"}),
        (["张　三/12-2.ipynb", "李四/12-2.ipynb"], {"张 三", "李四"}),
    ],
)
def test_whose_files_they_are(files, students, course, tmp_path):
    returned = tmp_path / "returned"
    returned.mkdir()
    for name in files:
        (returned / name).parent.mkdir(parents=True, exist_ok=True)
        (returned / name).write_text(json.dumps(course.solution()))
    rows = collect(returned, "12-2", course.folder)
    assert sorted(row.file for row in rows) == sorted(files)
    assert {row.student for row in rows if row.result == "collected"} == students


def test_zip_files_as_platforms_and_students_make_them(course, tmp_path):
    returned = tmp_path / "returned"
    returned.mkdir()
    text = json.dumps(course.solution())
    for student in ("Ann_1", "Bob_2"):  # Moodle's folders, the same name in each
        (returned / f"{student}_assignsubmission_file_").mkdir()
        zipped(returned / f"{student}_assignsubmission_file_" / "hw.zip", **{"my work/12-2.ipynb": text})
    inner = zipped(returned / "inner.zip", **{"12-2.ipynb": text})
    (returned / "inner.zip").unlink()
    zipped(returned / "class.zip", **{"cid/hw.zip": inner, "class\\dan_12-2.ipynb": text, "eve/answer.pdf": b"%PDF"})
    damaged = bytearray(zipped(returned / "more.zip", **{"fay/12-2.ipynb": text, "gil/12-2.ipynb": text}))
    place = damaged.index(text.encode())  # stored as it is: one wrong byte is a wrong checksum
    damaged[place + 5] ^= 1
    (returned / "more.zip").write_bytes(damaged)
    rows = collect(returned, "12-2", course.folder)
    said = {row.file: row for row in rows}
    assert len(rows) == 7
    assert {row.student for row in rows if row.result == "collected"} >= {"Ann_1", "Bob_2", "cid", "eve", "gil"}
    assert "damaged inside the zip file" in said["more/fay/12-2.ipynb"].result
    submitted = course.folder / "submitted"
    assert (submitted / "cid" / "12-2" / "12-2.ipynb").read_text() == text
    assert [path.name for path in (submitted / "eve" / "12-2").iterdir()] == ["answer.pdf"]  # as the student knows it


def test_a_zip_of_the_students_zips(course, tmp_path):
    text = json.dumps(course.solution())
    returned = tmp_path / "returned"
    returned.mkdir()
    inner = [zipped(tmp_path / f"{name}.zip", **{"12-2.ipynb": text}) for name in ("ann", "bob")]
    long = "x" * 300 + ".pdf"
    zipped(returned / "class.zip", **{"ann_12-2.zip": inner[0], "bob_12-2.zip": inner[1]})
    rows = collect(returned, "12-2", course.folder)
    assert {row.student for row in rows if row.result == "collected"} == {"ann", "bob"}
    zipped(returned / "class.zip", **{f"eve/{long}": b"%PDF", "fay/12-2.txt": text, "gil/12-2.ipynb": text})
    rows = collect(returned, "12-2", course.folder)
    assert {row.student for row in rows if row.result == "collected"} == {"eve", "fay", "gil"}
    assert (course.folder / "submitted" / "fay" / "12-2" / "12-2.ipynb").is_file()  # a notebook under another name


def test_a_later_version_does_not_inherit_the_time_stamp(course, tmp_path):
    returned = tmp_path / "returned"
    returned.mkdir()
    path = course.submit("zoe")
    (path.parent / "timestamp.txt").write_text("2026-05-01 12:00:00 UTC")
    (returned / "zoe_12-2.ipynb").write_text(json.dumps(course.solution(lambda source: source + "\n# later")))
    [row] = collect(returned, "12-2", course.folder, update=True)
    assert row.result == "collected" and "# later" in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["12-2.ipynb"]


def test_collect_command(course, tmp_path):
    returned = tmp_path / "returned"
    returned.mkdir()
    (returned / "zoe_12-2.ipynb").write_text(json.dumps(course.solution()))
    done = command("grader", "collect", str(returned), "12-2", f"--course-dir={course.folder}")
    assert done.returncode == 0 and re.search(r"zoe +collected", done.stdout)
    assert Path(course.folder / "submitted/zoe/12-2/12-2.ipynb").is_file()
    assert command("grader", "collect", str(returned / "no"), "12-2").returncode == 2
    assert command("grader", "collect", str(returned), "12-2", "--pattern", "(").returncode == 2


# ------------------------------------------------------------ bad answers, the real judge


def without_measure(code):
    """The right solution with `code` in place of its first function."""

    def edit(source):
        return source.replace("def measure", f"{code}\n\n\ndef _unused", 1)

    return edit


BAD_ANSWERS = {
    "does not parse": ("def measure(launch, wait:", "SyntaxError"),
    "null byte": ("x = '\0'", "null byte"),
    "prints for ever": ("while True:\n    print('x' * 1000)", "print"),
    "wants 100 GB": ("x = bytearray(100_000_000_000)", "MemoryError"),
    "returns the wrong type": ("def measure(launch, wait):\n    return 'fast'", "it returned str"),
    "leaves quietly": ("import os\nos._exit(0)", "ended"),
    "asks a question": ("x = input('your name?')", "input"),
    "recurses": ("def f():\n    return f()\n\n\nf()", "RecursionError"),
    "shadows modules": (
        "import sys\nsys.modules['perflab'] = sys.modules['torch'] = None\nimport torch",
        "torch",
    ),
}


def test_bad_answers_each_get_a_row_with_a_reason(course):
    for name, (code, _) in BAD_ANSWERS.items():
        course.submit(name, course.solution(without_measure(code)))
    course.submit("right")
    rows = rows_of(grade(course, "--json"))
    assert set(rows) == {"right", *BAD_ANSWERS}
    assert rows["right"]["score"] == 10
    for name, (_, says) in BAD_ANSWERS.items():
        assert rows[name]["status"] == "fail" and rows[name]["score"] < 10, rows[name]
        assert says.casefold() in rows[name]["reason"].casefold(), rows[name]


# ------------------------------------------------------------ the demonstration class


def test_demonstration_class_and_again(course, fake_judge, monkeypatch, capsys):
    from grader import demo, judging

    fake, asked = judging.judge_answer, []

    def judge(slug, cells, **options):
        asked.append(slug)
        # lines of the reference answers' own
        right = any(line in cells[0] for line in ("torch.compile(", "finished - start", "sum(alone)", "torch.matmul("))
        return fake(slug, ["# verdict: pass 10" if right else "# verdict: fail 2"], **options)

    monkeypatch.setattr(judging, "judge_answer", judge)
    monkeypatch.setattr(farm, "compute", in_this_process)
    assert demo.main_demo([f"--course-dir={course.folder}"]) == 0
    shown = capsys.readouterr().out
    tables = shown.split("\n\n")
    for assignment, table in zip(demo.CLASS, tables, strict=False):
        names = [f"demo-{name}" for name in sorted(demo.CLASS[assignment])]
        assert [line.split()[0] for line in table.splitlines()] == [assignment, "student", *names]
    for table, scores in zip(tables, (("10/14", "2/14"), ("10/14", "2/14"), ("20/24", "4/24")), strict=False):
        assert [re.search(rf"demo-{name} +(\S+)", table)[1] for name in ("ada", "bruno")] == list(scores)
    assert "demo-fatima/" not in shown
    assert all(f"\n{what} " in shown for what in ("site", "feedback", "gradebook"))
    pages = sorted((course.folder / "feedback").rglob("*.html"))
    assert len(pages) == sum(map(len, demo.CLASS.values())) == 11
    # nothing was asked about the cut-off notebook and the deleted answer
    counts = {"faster-model": 2, "async-on-cpu": 5, "eight-operations": 2, "small-operations": 2}
    assert {slug: asked.count(slug) for slug in asked} == counts

    before = [page.stat().st_mtime_ns for page in pages]
    assert demo.main_demo([f"--course-dir={course.folder}"]) == 0
    assert capsys.readouterr().out == shown
    assert len(asked) == 11 and [page.stat().st_mtime_ns for page in pages] == before


def test_demonstration_class_goes_on_where_one_assignment_fails(course, fake_judge, monkeypatch, capsys):
    from grader import demo

    def compute(tasks, *rest):
        if any(task.slug == "async-on-cpu" for task in tasks):
            raise farm.GradingFailed("no machine for it")
        return in_this_process(tasks, *rest)

    monkeypatch.setattr(farm, "compute", compute)
    wrong = (demo._with(optimise="# verdict: fail 2"), "fail")
    lazy = (demo._with(concurrency="# verdict: fail 2"), "pass")
    monkeypatch.setattr(demo, "CLASS", {"12-1": {"bruno": wrong}, "12-2": {"ada": (demo._bytes, "pass")}, "12-3": {"chen": lazy}})
    assert demo.main_demo([f"--course-dir={course.folder}"]) == 1
    said = capsys.readouterr()
    assert re.search(r"12-1\nstudent.*\ndemo-bruno +2/14.*\n\n12-2\n\n12-3\nstudent.*\ndemo-chen +12/24", said.out)
    assert "demo: 12-2: no machine for it\n" in said.err
    assert "demo: 12-3: not the result that was due: demo-chen\n" in said.err and "demo: 12-1" not in said.err
