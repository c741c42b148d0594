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
REPORT_ARGS ?=
# Of demo-generate: smollm2 (Apache-2.0) or gemma3 (Gemma Terms of Use).
MODEL ?= smollm2
DEMO = build/release/treeattn-demo examples/data/code.safetensors

.PHONY: help build demo demo-generate test exhaustive bench report plots fuzz install format lint clean

help:
	@echo 'make build                 the library and the command line, in build/release'
	@echo 'make demo                  a real draft tree attended, checked bit by bit and timed'
	@echo 'make demo-generate         a real language model that decodes with draft trees (fetches 96 MB on the first run)'
	@echo 'make demo-generate MODEL=gemma3   the same with Gemma 3 270M, under its own terms (fetches 238 MB)'
	@echo 'make test                  everything: gcc, clang, sanitizers, Arm under qemu, installation, command line'
	@echo 'make test STAGES=gcc,cli   some of it (scripts/run-tests --list)'
	@echo 'make exhaustive            exp2, tanh and log over every f32 input, and each instruction set against the scalar one'
	@echo 'make bench                 measurements of this machine, beside OpenBLAS, ggml and PyTorch where they are'
	@echo '                           (BENCH_ARGS=... are options of treeattn bench; PYTHON=... one that has torch)'
	@echo 'make report                the same with hardware, commit and command into bench/results/ (REPORT_ARGS=...)'
	@echo 'make plots                 time against nodes and against keys, with the floor, as SVG in docs/ (needs gnuplot)'
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

# Minutes, so no stage of make test, which takes every 251st input.
exhaustive:
	@scripts/setup test
	@cmake --preset test --log-level=NOTICE >/dev/null
	@env -u MAKEFLAGS -u MAKELEVEL cmake --build build/test -j $(JOBS) --target test_math test_elementary_isa >/dev/null
	@TREEATTN_TEST_EXHAUSTIVE=1 ctest --test-dir build/test -j $(JOBS) -R '^test_(math|elementary_isa)$$' --verbose

bench: build
	@mapfile -t peers < <(bench/peers/available | sed p | awk 'NR % 2 { print "--peer"; next } 1'); \
	  build/release/treeattn bench "$${peers[@]}" $(BENCH_ARGS)

report: build
	@bench/report.py --peers $(REPORT_ARGS) $(BENCH_ARGS)

plots: build
	@bench/plot.py --peers $(REPORT_ARGS) $(BENCH_ARGS)

fuzz:
	@scripts/setup test
	@scripts/run-tests --stages fuzz --fuzz-seconds $(FUZZ_SECONDS) -j $(JOBS)

install: build
	@cmake --install build/release --prefix $(abspath $(PREFIX))

C_FILES = $(shell find include src tools tests bench examples fuzz -name '*.[chm]' -o -name '*.cpp' -o -name '*.metal' 2>/dev/null)

format:
	@scripts/setup lint
	@clang-format -i $(C_FILES)

lint:
	@scripts/setup lint
	@scripts/lint $(C_FILES)

clean:
	@rm -rf build
