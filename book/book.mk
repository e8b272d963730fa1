# The book's targets; the Makefile includes this file. $(PYTHON) is the virtual environment's.
PYTHON ?= .venv/bin/python

.PHONY: book po serve
book:            ## build the book in both languages into _build/html
	$(PYTHON) book/build.py
po:              ## after an edit of the English pages: bring the Chinese catalogs up to date
	$(PYTHON) book/build.py --update-po
serve: book      ## look at the book on http://127.0.0.1:8000
	$(PYTHON) book/build.py --serve 8000
