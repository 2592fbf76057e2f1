# Every target works on a new machine: what it needs is installed into .venv, once.
# The demo brings a ZooKeeper of its own. The real one comes from ZOOKEEPER_HOME or Debian's package, which is installed where that is allowed,
# and so are PostgreSQL, MariaDB, Redis, RabbitMQ, Apache Curator and Chromium, for the tests.

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
RUN_DEMO := cd example_project && $(BIN)/python -m

# The tests start hundreds of processes. Without compiled modules each of them would compile all that it imports. And
# output without a buffer hides what users see: a failed write is tried again at the exit.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

.DEFAULT_GOAL := help
.PHONY: help demo demo-check test check lint typing pyright imports pytest green chaos incidents bench bench-celery bench-devserver scale docs release measure kazoo-tests clean zookeeper postgres mariadb brokers curator lease-clients chromium promtool browser

help:
	@echo "make demo         the example shop with traffic, on http://127.0.0.1:8000/ (Ctrl-C ends it)"
	@echo "                  on the dev server; ZOOKEEPER=real: on a real ZooKeeper; ZKLOCK_URL=zk://...: on that one"
	@echo "make demo-check   prove that the shop sells nothing twice; UNSAFE=1: without locks, which must fail;"
	@echo "                  UNSAFE=broken: with locks that grant everybody, where fenced writes must hold out"
	@echo "make test         lint, types, import contracts and all tests"
	@echo "make lint | typing | imports | pytest   one of them (ARGS=... for pytest)"
	@echo "make pyright      what users of pyright see of the types; needs Node"
	@echo "make green        all tests RUNS=10 times, one line for each run; BUSY=1: while a process on each core computes"
	@echo "make chaos        the locks under faults, and a soak (about an hour); SECONDS=600 SEED=7: that soak alone;"
	@echo "                  LOCK=kazoo: the tests that kazoo's own lock must fail"
	@echo "make incidents    the incidents that operators meet, with real processes: what the pages say of each (ten minutes);"
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

test: check zookeeper postgres mariadb brokers curator chromium promtool pytest

check: lint typing imports

lint: $(VENV)/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/python scripts/prose.py

typing: $(VENV)/.installed-test
	$(BIN)/mypy

# Not a part of `make test`: it needs Node, and downloads pyright from npm.
pyright: $(VENV)/.installed-test
	npx --yes pyright@1.1.414 --pythonpath $(BIN)/python --project tests/typing

imports: $(VENV)/.installed-test
	$(BIN)/lint-imports

pytest: $(VENV)/.installed-test zookeeper postgres mariadb brokers curator chromium promtool
	$(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder --randomly-seed=$(or $(SEED),1) $(ARGS)

green: $(VENV)/.installed-test
	@$(BIN)/python scripts/green.py --runs=$(or $(RUNS),10) $(if $(BUSY),--busy)

chaos: $(VENV)/.installed-test .cache/agents/.installed zookeeper postgres mariadb brokers curator lease-clients
	@$(BIN)/python scripts/chaos.py $(if $(SECONDS),--seconds=$(SECONDS)) $(if $(SEED),--seed=$(SEED)) \
		$(if $(LOCK),--lock=$(LOCK)) $(ARGS)

incidents: $(VENV)/.installed-test zookeeper
	@$(BIN)/python scripts/incidents.py $(ARGS)

# A version of Django has a virtual environment of its own: without DJANGO, it is that of the other tests.
BROWSER_VENV := $(if $(DJANGO),.cache/django-$(DJANGO),$(VENV))

browser: export SCREENSHOTS := $(abspath $(SCREENSHOTS))
browser: export UNFOLD := $(UNFOLD)
browser: $(BROWSER_VENV)/.installed-test zookeeper chromium
	$(if $(SCREENSHOTS),@mkdir -p $(SCREENSHOTS))
	$(BROWSER_VENV)/bin/python -m pytest tests/browser -m "chaos or not chaos" $(ARGS)

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
bench: $(VENV)/.installed-test zookeeper brokers curator
	@failed=0; for name in acquire hot_key crowd leases events; do \
		$(BIN)/python benchmarks/$$name.py $(ARGS) || failed=1; \
	done; exit $$failed

bench-celery: $(VENV)/.installed-test zookeeper brokers
	$(BIN)/python benchmarks/celery_waiting.py $(ARGS)

bench-devserver: $(VENV)/.installed-test zookeeper
	$(BIN)/python benchmarks/devserver.py $(ARGS)

scale: $(VENV)/.installed-test zookeeper
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

zookeeper: $(VENV)/.installed-demo
	@$(RUN_DEMO) demo.zookeeper

postgres: $(VENV)/.installed-test
	@cd tests && PYTHONPATH=$(CURDIR) $(BIN)/python -m support.postgres

mariadb: $(VENV)/.installed-test
	@cd tests && PYTHONPATH=$(CURDIR) $(BIN)/python -m support.mariadb

brokers: $(VENV)/.installed-test
	@cd tests && PYTHONPATH=$(CURDIR) $(BIN)/python -m support.brokers

curator: $(VENV)/.installed-test
	@cd tests && PYTHONPATH=$(CURDIR) $(BIN)/python -m support.neighbours.curator

lease-clients: $(VENV)/.installed-test
	$(PIP_INSTALL) --group go
	@cd tests && PYTHONPATH=$(CURDIR) $(BIN)/python -m support.lease_clients

chromium: $(VENV)/.installed-test
	@cd tests && PYTHONPATH=$(CURDIR) $(BIN)/python -m support.browser.chromium

promtool: $(VENV)/.installed-test
	@cd tests && PYTHONPATH=$(CURDIR) $(BIN)/python -m support.promtool

clean:
	rm -rf $(VENV) .cache .demo .green build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info

# The pip that comes with Python before 3.14 knows no dependency groups.
$(VENV)/.installed-demo: setup.cfg pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	$(PIP_INSTALL) --editable ".[celery]" --group demo
	@touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml clients/python/pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --upgrade "pip>=25.1"
	$(PIP_INSTALL) --editable ".[celery,gevent]" --editable clients/python --group make
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
	$(PYTHON) -m venv $(VENV)
