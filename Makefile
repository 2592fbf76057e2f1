# Every target works on a new machine: what it needs is installed into .venv, once.
# The demo brings a ZooKeeper of its own. The tests need a real one, PostgreSQL, MariaDB, Redis, RabbitMQ, Apache Curator and Chromium.
# As root, with apt, they are installed. Otherwise one line says how, and the tests of what is missing are skipped: see ZKLOCK_TESTS_ALL.

PYTHON ?= python3
VENV := .venv
# Relative: make cannot have spaces in the name of a target.
BIN := $(VENV)/bin
# setuptools warns, in a box, of a folder that has the name of the package.
PIP_INSTALL = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check
RUN_DEMO := cd example_project && "$(CURDIR)/$(BIN)/python" -m
comma := ,
# Run a command, and say how long it took.
timed = @began=$$(date +%s); { $(2); }; status=$$?; echo "$(1): $$(($$(date +%s) - began)) s"; exit $$status
PYTEST = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --randomly-seed=$(or $(SEED),1)
PROGRAMS := @cd tests && PYTHONPATH=.. "$(CURDIR)/$(BIN)/python" -m support.programs

# A virtual environment that is half made, has lost its Python, or came from another place with its folder, is of no use.
ifneq ($(wildcard $(VENV)),)
ifneq ($(shell grep -qs '^uv = ' $(VENV)/pyvenv.cfg && ! $(BIN)/python -c "import pip" 2>/dev/null && echo uv),)
$(error $(VENV) was made by uv, and has no pip. Run: uv pip install pip, or: rm -r $(VENV))
endif
$(shell grep -qsF "$$(pwd -P)/$(VENV)/" $(BIN)/pip && $(BIN)/python -c "import pip" 2>/dev/null || rm -rf $(VENV))
endif

# The tests start hundreds of processes. Without compiled modules each of them would compile all that it imports. And
# output without a buffer hides what users see: a failed write is tried again at the exit.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

.DEFAULT_GOAL := help
.PHONY: help demo demo-check test quick check lint typing pyright imports pytest green chaos incidents bench bench-celery bench-devserver scale docs release measure kazoo-tests clean programs lease-clients browser mutants

help:
	@echo "make demo         the example shop with traffic, on http://127.0.0.1:8000/ (Ctrl-C ends it)"
	@echo "                  on the dev server; ZOOKEEPER=real: on a real ZooKeeper; ZKLOCK_URL=zk://...: on that one"
	@echo "make demo-check   prove that the shop sells nothing twice; UNSAFE=1: without locks, which must fail;"
	@echo "                  UNSAFE=broken: with locks that grant everybody, where fenced writes must hold out"
	@echo "make test         lint, types, import contracts and all tests; ZKLOCK_TESTS_ALL=1: a missing program is an error, as it is with CI=1"
	@echo "make quick        the unit tests, and locks on the dev server: Python alone, a minute and a half"
	@echo "make lint | typing | imports | pytest   one of them (ARGS=... for pytest; ARGS=tests/unit needs Python alone)"
	@echo "make pyright      what users of pyright see of the types; needs Node"
	@echo "make green        all tests RUNS=10 times, one line for each run; BUSY=1: while a process on each core computes"
	@echo "make chaos        the locks under faults, and a soak (about an hour); SECONDS=600 SEED=7: that soak alone;"
	@echo "                  LOCK=kazoo: the tests that kazoo's own lock must fail"
	@echo "make mutants      change one line of the package, and run mypy and the tests that reach it, for COUNT=40 lines that a SEED=7 draws:"
	@echo "                  what nothing notices is in the table at the end"
	@echo "make incidents    the incidents that operators meet, with real processes: what the pages say of each (a quarter of an hour);"
	@echo "                  ARGS=chain: those with this word in their names"
	@echo "make browser      the admin's pages in a browser, all of them; SCREENSHOTS=dir: with pictures"
	@echo "                  DJANGO=6.1: on that version, from Python 3.12 on (PYTHON=python3.13); UNFOLD=1: under that theme"
	@echo "make bench        round trips, and acquire and release in pairs with kazoo's Lock, Curator's mutex and redis-py's lock;"
	@echo "                  then 10,000 waiters in one process, leases of a coordinator, and what the app of events costs"
	@echo "make bench-celery tasks on one key in Celery: how long all take, in which order they run, also next to other tasks;"
	@echo "                  ARGS=\"--case 'full pool'\": one case"
	@echo "                  both: ARGS=--check: fail unless all budgets are met; ARGS=\"--check --slower=10\": show that a loss is found"
	@echo "make bench-devserver   the dev server compared with ZooKeeper: medians, and many clients"
	@echo "make scale        idle and held keys, sessions with heartbeats, long queues, inspection; needs an idle machine;"
	@echo "                  ARGS=--quick: a hundredth of it"
	@echo "make docs         the site of the documentation, in docs/_build; warnings are errors"
	@echo "make release      the distributions in dist, built and checked, for the next tag"
	@echo "make measure      lines, modules, imports and privates; ARGS=--trace: also the calls of a lock, a task and a page"
	@echo "make kazoo-tests  kazoo's own test suite on the dev server; ARGS=--server=real: on ZooKeeper"
	@echo "make clean        remove what these made"

demo: export ZOOKEEPER := $(ZOOKEEPER)
demo: $(VENV)/.installed-demo
	@$(RUN_DEMO) demo

demo-check: export UNSAFE := $(UNSAFE)
demo-check: $(VENV)/.installed-demo
	@$(RUN_DEMO) demo.check

test: check programs pytest

check:
	@$(MAKE) --no-print-directory --jobs=3 lint typing imports

lint: $(VENV)/.installed-test
	$(call timed,lint,$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/codespell && $(BIN)/python scripts/prose.py)

typing: $(VENV)/.installed-test
	$(call timed,types,$(BIN)/mypy)

# Not a part of `make test`: it needs Node, and downloads pyright from npm.
pyright: $(VENV)/.installed-test
	npx --yes pyright@1.1.414 --pythonpath $(BIN)/python --project tests/typing

imports: $(VENV)/.installed-test
	$(call timed,imports,$(BIN)/lint-imports)

# The unit tests need no programs.
pytest: $(VENV)/.installed-test $(if $(filter tests/unit%,$(ARGS)),$(if $(filter tests/%,$(filter-out tests/unit%,$(ARGS))),programs),programs)
	$(call timed,tests,$(PYTEST) -n auto $(ARGS))

# The rules, and the locks on the dev server: no Java, no broker, no database, and nothing is installed by apt.
quick: $(VENV)/.installed-test
	$(call timed,tests,$(PYTEST) -n $(or $(WORKERS),6) --quick tests/unit tests/contract $(ARGS))

green: $(VENV)/.installed-test
	@$(BIN)/python scripts/green.py --runs=$(or $(RUNS),10) $(if $(BUSY),--busy)

chaos: $(VENV)/.installed-test .cache/agents/.installed lease-clients
	$(PROGRAMS) zookeeper postgres mariadb redis rabbitmq curator
	@$(BIN)/python scripts/chaos.py $(if $(SECONDS),--seconds=$(SECONDS)) $(if $(SEED),--seed=$(SEED)) \
		$(if $(LOCK),--lock=$(LOCK)) $(ARGS)

mutants: $(VENV)/.installed-test
	$(PROGRAMS) zookeeper postgres mariadb redis rabbitmq curator
	@$(BIN)/python scripts/mutants.py $(if $(COUNT),--count=$(COUNT)) $(if $(SEED),--seed=$(SEED)) $(ARGS)

incidents: $(VENV)/.installed-test
	$(PROGRAMS) zookeeper
	@$(BIN)/python scripts/incidents.py $(ARGS)

# A version of Django has a virtual environment of its own: without DJANGO, it is that of the other tests.
BROWSER_VENV := $(if $(DJANGO),.cache/django-$(DJANGO),$(VENV))

browser: export SCREENSHOTS := $(abspath $(SCREENSHOTS))
browser: export UNFOLD := $(UNFOLD)
browser: BIN := $(BROWSER_VENV)/bin
browser: $(BROWSER_VENV)/.installed-test
	$(PROGRAMS) zookeeper chromium
	$(if $(SCREENSHOTS),@mkdir -p $(SCREENSHOTS))
	$(BIN)/python -m pytest tests/browser -m "chaos or not chaos" $(ARGS)

.cache/django-%/.installed-test: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[celery]" --editable clients/python --group browser "Django==$*.*"
	@touch $@

.cache/agents/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group agents
	@touch $@

# All of them run, even if one misses a budget.
bench: $(VENV)/.installed-test
	$(PROGRAMS) zookeeper redis rabbitmq curator
	@failed=0; for name in acquire hot_key crowd leases events; do \
		$(BIN)/python benchmarks/$$name.py $(ARGS) || failed=1; \
	done; exit $$failed

bench-celery: $(VENV)/.installed-test
	$(PROGRAMS) zookeeper redis rabbitmq
	$(BIN)/python benchmarks/celery_waiting.py $(ARGS)

bench-devserver: $(VENV)/.installed-test
	$(PROGRAMS) zookeeper
	$(BIN)/python benchmarks/devserver.py $(ARGS)

scale: $(VENV)/.installed-test
	$(PROGRAMS) zookeeper
	$(BIN)/python benchmarks/scale.py $(ARGS)

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b dirhtml docs docs/_build
	@echo "docs/_build/index.html"

release: $(VENV)/.installed-package
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

measure: $(VENV)/.installed-test
	@$(BIN)/python scripts/measure.py $(ARGS)

kazoo-tests: $(VENV)/.installed-test
	$(BIN)/python scripts/kazoo_tests.py $(ARGS)

programs: $(VENV)/.installed-test
	$(call timed,programs,$(subst @cd,cd,$(PROGRAMS)))

lease-clients: $(VENV)/.installed-test
	$(PIP_INSTALL) --group go
	@cd tests && PYTHONPATH=.. "$(CURDIR)/$(BIN)/python" -m support.lease_clients

clean:
	rm -rf $(VENV) .cache .demo .green build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info

# The pip that comes with Python before 3.14 knows no dependency groups.
$(VENV)/.installed-demo: setup.cfg pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	$(PIP_INSTALL) --editable ".[celery]" --group demo
	@touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml clients/python/pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	$(call timed,set-up,$(PIP_INSTALL) --editable ".[celery$(comma)gevent]" --editable clients/python --group make)
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: setup.cfg pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	$(PIP_INSTALL) --editable . --group docs
	@touch $@

$(VENV)/.installed-package: setup.cfg pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	$(PIP_INSTALL) --group package
	@touch $@

$(BIN)/python:
	@said=$$($(PYTHON) -m venv --clear $(VENV) 2>&1) || { rm -rf $(VENV); case "$$said" in \
		*ensurepip*) echo "Python has no venv here. Install it (Debian, Ubuntu): sudo apt-get install python3-venv";; \
		*) echo "$$said";; esac; exit 1; }
