# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/.ready
	$(BIN)/pinchpoint demo -o demo

# By stealing, the tests of a file stay with one worker but for the last few: what they share is made once.
test: .venv/.ready
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

clean:
	rm -rf .venv build dist demo .pytest_cache .ruff_cache

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "pinchpoint needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all]'
	touch $@
