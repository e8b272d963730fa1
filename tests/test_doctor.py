"""`python -m grader doctor`: what it says of the limits is what holds, here and where no cgroup can be made."""

import json

from grader import doctor, sandbox


def says(found, what):
    (fine, text), = [(fine, text) for name, fine, text in found if name == what]
    return fine, text


def test_this_machine(monkeypatch, capsys):
    found = doctor.findings()
    assert all(what and text and fine in (True, False, None) for what, fine, text in found)
    isolated = sandbox.why_no_box() is None
    assert says(found, "sandbox")[0] is isolated
    limited = set()
    if isolated:
        box = sandbox.Box({"memory_bytes": 1 << 30, "processes": 16})
        limited = box._cgroups.limited
        box.kill()
    for what, kind in (("memory limit", "memory"), ("process limit", "processes")):
        fine, text = says(found, what)
        assert fine is (True if kind in limited else None), text
        assert text.startswith("a cgroup " if fine else "no cgroup ")

    monkeypatch.setattr(doctor, "findings", lambda: found)
    assert doctor.main_doctor(["--json"]) == (0 if isolated else 1)
    assert [(row["what"], row["fine"], row["says"]) for row in json.loads(capsys.readouterr().out)] == found
    doctor.main_doctor([])
    printed = capsys.readouterr().out
    assert all(text in printed for _, _, text in found)


def test_without_cgroups(monkeypatch):
    monkeypatch.setattr(sandbox, "cgroup_roots", list)
    found = doctor.findings()
    fine, text = says(found, "memory limit")
    assert fine is None and "for each process alone" in text and "Nothing bounds the number of files (inodes)" in text
    assert says(found, "process limit")[0] is None


def test_without_a_sandbox(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "findings", lambda: [("sandbox", False, "bubblewrap is missing")])
    assert doctor.main_doctor([]) == 1
    assert "bubblewrap is missing" in (said := capsys.readouterr()).out and "--unsafe-no-sandbox" in said.err
