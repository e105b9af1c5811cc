# Each target first makes .venv; scripts/bootstrap.py returns at once when there is nothing to do.
PYTHON ?= python3
# The build of torch that is installed before all else; pyproject.toml takes any from 2.10 on. Where a GPU is to be
# used, or pip offers several builds, name the right one: make test TORCH="torch==2.13.0+cpu".
TORCH ?= torch==2.13.0
export TORCH
MAKEFLAGS += --no-print-directory
.PHONY: help venv demo test test-slow crash soak browser check bench docs clean

help:
	@echo "make demo       make a small graph, train on it as two processes, predict"
	@echo "make test       the tests, in two processes"
	@echo "make test-slow  the tests marked slow"
	@echo "make crash      every system killed at 4 random instants on 1, 2 and 3 ranks each, as a table"
	@echo "make soak       an hour of killing, resuming and appending, with memory and files watched: make soak MINUTES=60"
	@echo "make browser    chromium for the tests of the report (Debian, as root)"
	@echo "make check      style, types, import directions, light imports"
	@echo "make docs       the pages of docs/ as a site, in build/docs"
	@echo "make bench      all benchmarks, or some: make bench NAMES='store diff'"
	@echo "make clean      remove .venv, caches and build outputs"

venv:
	@$(PYTHON) scripts/bootstrap.py

demo: venv
	@PATH="$(CURDIR)/.venv/bin:$$PATH" examples/demo.sh

test: venv
	@scripts/test

test-slow: venv
	@scripts/test -m slow --timeout 1800

crash: venv
	@scripts/crash

soak: venv
	@scripts/soak $(MINUTES)

browser:
	@scripts/browser

check: venv
	@scripts/check

bench:
	@$(PYTHON) scripts/bootstrap.py bench
	@scripts/bench $(NAMES)

docs:
	@$(PYTHON) scripts/bootstrap.py docs
	@scripts/docs

clean:
	rm -rf .venv .venv.lock .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist demo
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
