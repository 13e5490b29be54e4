# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast test-kernels coverage lint docs clean

demo: .venv/.installed
	$(BIN)/pinchpoint demo -o demo

# With worksteal, most tests of a file run in the same worker, so that their shared fixtures are built once.
# Three workers keep two cores busy: many tests wait for processes that they start.
test: .venv/.ready
	$(BIN)/python -m pytest -q -n 3 --dist worksteal

# The toolkit without its slow tests, in under two minutes on two cores: systems, kit, workloads and benchmarks are left out.
test-fast: .venv/.ready
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" --ignore tests/systems --ignore tests/benchmarks \
	  --ignore tests/kit --ignore tests/workloads

# The kernels of the kit on the CPU, by Triton's interpreter, which needs an older NumPy: four minutes on two cores.
test-kernels: .venv/triton/.ready
	PYTHONPATH=.venv/triton TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/kit

.venv/triton/.ready: .venv/.ready Makefile
	rm -rf .venv/triton
	$(BIN)/python -m pip install --quiet --target .venv/triton triton==3.6.0 'numpy<2.4'
	touch $@

# The lines of src/ that the tests run, also those of the processes they start; about twice as long as `test`.
# Tests that trace lines themselves (the marker traces_lines) are skipped.
coverage: .venv/.ready
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest -q -n 2 --dist worksteal
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report --sort cover

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# The documentation as a site that needs no server and no network.
docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

clean:
	rm -rf .venv build dist demo .pytest_cache .ruff_cache

# The demo needs the systems only; the tests and linters come on top, into the same .venv.
.venv/.installed: pyproject.toml constraints.txt
	$(call install,all)
	touch $@

.venv/.ready: pyproject.toml constraints.txt
	$(call install,all$(comma)dev)
	touch .venv/.installed $@

comma := ,

# pip compiles what it installs on one core, compileall on all of them; it passes over templates that are not Python.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "pinchpoint needs Python 3.11 or newer; choose one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(1)]'
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ .venv/lib || true
endef
