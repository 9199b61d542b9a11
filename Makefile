# Short names for what people do. CMakePresets.json holds the configurations.
#
#   make          the library and build/release/mok
#   make demo     installs what is missing, builds, trains on a real text, about two minutes on two cores
#   make test     installs what is missing, builds four ways, runs every test
#   make bench    speed of the products and of a layer on this machine
#   make soak     224 training runs that lose a rank or have one that does not fit; about five minutes
#   make gpu      every GPU check and the GPU benchmark; needs a Hopper GPU

JOBS := $(shell nproc)

.PHONY: all setup demo test bench check gpu soak clean format

all:
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

setup:
	scripts/setup

demo: setup all
	build/release/mok train --data data/text.txt --size demo --out out

test:
	scripts/test

check: setup all
	build/release/mok check

bench: setup all
	build/release/mok bench

gpu:
	scripts/gpu

soak:
	scripts/setup --test
	cmake --preset test
	cmake --build --preset test -j $(JOBS)
	scripts/soak --mok build/test/tests/mok-soak --points 224 --json bench/results/soak.json

clean:
	rm -rf build out

format:
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -v /ptx/ | xargs clang-format-14 -i
