# SPDX-License-Identifier: Apache-2.0
# The front door: each target sets up what it needs, then hands over to CMake or a script.

SHELL = /bin/bash
.SHELLFLAGS = -o pipefail -c

PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# What to run from tests: `make test STAGES=gcc,asan`; all of them without it.
STAGES ?=
FUZZ_SECONDS ?= 60
BENCH_ARGS ?=
# Of demo-generate: smollm2 (Apache-2.0) or gemma3 (Gemma Terms of Use).
MODEL ?= smollm2
DEMO = build/release/treeattn-demo examples/data/code.safetensors

.PHONY: help build demo demo-generate test bench fuzz install format lint clean

help:
	@echo 'make build                 the library and the command line, in build/release'
	@echo 'make demo                  a real draft tree attended, checked bit by bit and timed'
	@echo 'make demo-generate         a real language model that decodes with draft trees (fetches 96 MB on the first run)'
	@echo 'make demo-generate MODEL=gemma3   the same with Gemma 3 270M, under its own terms (fetches 238 MB)'
	@echo 'make test                  everything: gcc, clang, sanitizers, Arm under qemu, installation, command line'
	@echo 'make test STAGES=gcc,cli   some of it (scripts/run-tests --list)'
	@echo 'make bench                 measurements of this machine (BENCH_ARGS=... are options of treeattn bench)'
	@echo 'make fuzz                  each fuzzer for FUZZ_SECONDS (60)'
	@echo 'make install PREFIX=dir    headers, libraries, pkg-config, CMake package; the command line in dir/bin'
	@echo 'make format | lint         lay out the C files | check them without changing anything'
	@echo 'make clean                 remove build/'

build:
	@scripts/setup build
	@test -f build/release/Makefile || cmake --preset release --log-level=NOTICE >/dev/null
	@env -u MAKEFLAGS -u MAKELEVEL cmake --build build/release -j $(JOBS) | { grep -vE 'Built target|^Consolidate' || true; }

demo: build
	@$(DEMO)

demo-generate:
	@scripts/setup build
	@env -u MAKEFLAGS -u MAKELEVEL JOBS=$(JOBS) MODEL=$(MODEL) scripts/demo-generate

test:
	@scripts/setup test
	@scripts/run-tests $(if $(STAGES),--stages $(STAGES)) -j $(JOBS)

bench: build
	@build/release/treeattn bench $(BENCH_ARGS)

fuzz:
	@scripts/setup test
	@scripts/run-tests --stages fuzz --fuzz-seconds $(FUZZ_SECONDS) -j $(JOBS)

install: build
	@cmake --install build/release --prefix $(abspath $(PREFIX))

C_FILES = $(shell find include src tools tests bench examples fuzz -name '*.[ch]' 2>/dev/null)

format:
	@scripts/setup lint
	@clang-format -i $(C_FILES)

lint:
	@scripts/setup lint
	@scripts/lint $(C_FILES)

clean:
	@rm -rf build
