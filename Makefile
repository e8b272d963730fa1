# The two commands that matter are `make course` and `make test`; each is enough by itself on a new machine.
# `make help` lists the others.

# Options for pip. Where pip would fetch torch with CUDA (several GB) and you have no GPU, point it at a CPU build:
#   make course PIP_OPTIONS="--find-links /folder/with/the/cpu/wheel"
PIP_OPTIONS ?=
# The Python (3.11 or newer) that .venv is made from.
BASE_PYTHON ?= python3
export BASE_PYTHON

override VENV := .venv
override PYTHON := $(VENV)/bin/python
# nbgrader starts alembic by its bare name: without this the first run fails and leaves half a database.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help
help:            ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile book/book.mk

# ---- set-up: each step is done once, and again only when its input changes

.PHONY: system
system:
	@tools/system-packages course

$(VENV)/.packages: requirements.txt | system
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one: make course BASE_PYTHON=/usr/bin/python3.12" >&2; exit 1; }
	@# what was cut off while it was made has no pip
	$(PYTHON) -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(BASE_PYTHON) -m venv $(VENV); }
	$(PYTHON) -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) -r requirements.txt
	touch $@

$(VENV)/.project: $(VENV)/.packages pyproject.toml
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

.PHONY: setup
setup: $(VENV)/.project

# ---- the main job

.PHONY: course
course: setup    ## everything: the book in both languages, the assignments, the demonstration class graded here
	$(PYTHON) -m grader release
	$(PYTHON) book/build.py
	$(PYTHON) -m grader demo

.PHONY: test
test: setup      ## every test: the book's pages first, then what can run two at a time, then what is measured
	@tools/system-packages test
	@status=0; \
	$(PYTHON) book/build.py || status=1; \
	$(PYTHON) -m pytest -n 2 --dist loadfile -m "not measured" $(PYTEST_OPTIONS) || [ $$? = 5 ] || status=1; \
	$(PYTHON) -m pytest -m measured $(PYTEST_OPTIONS) || [ $$? = 5 ] || status=1; \
	exit $$status  # 5: PYTEST_OPTIONS selected nothing of this part

.PHONY: bench lint
bench: setup     ## what the course's own machinery costs, measured
	@tools/system-packages bench || echo "Going on without: what then can't be compared is named below."
	@status=0; for file in benchmarks/bench_*.py; do echo "== $$file"; $(PYTHON) $$file || status=1; done; exit $$status
lint: setup      ## ruff
	$(PYTHON) -m ruff check .

include book/book.mk
book po serve: setup
