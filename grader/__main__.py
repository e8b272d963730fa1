"""`python -m grader COMMAND …`: what an instructor runs. `--help` after a command explains it."""

from __future__ import annotations

import importlib
import sys

# command: (module, function taking the remaining arguments and returning the exit status, one line of help).
# Modules are imported only when asked for: `python -m grader --help` stays instant.
COMMANDS = {
    "judge": ("grader.judging", "main_judge", "judge one answer file and print the verdict"),
    "trial": ("grader.trial", "main_trial", "judge every answer of a folder many times under made noise"),
    "doctor": (
        "grader.doctor",
        "main_doctor",
        "what this machine can judge, what it cannot, and how noisy it is",
    ),
    "release": ("grader.course_files", "main_release", "make the students' notebooks from solutions/*.md"),
    "collect": ("grader.collect", "main_collect", "sort a folder of returned files into submitted/"),
    "grade": ("grader.farm", "main_grade", "grade everything under submitted/, one row a student"),
    "demo": ("grader.demo", "main_demo", "grade a made-up class through nbgrader and show the result"),
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m grader COMMAND [arguments]\n")
        for name, (_, _, help_line) in COMMANDS.items():
            print(f"  {name:8} {help_line}")
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"python -m grader: no command {argv[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module, function, _ = COMMANDS[argv[0]]
    return getattr(importlib.import_module(module), function)(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
