#!/bin/sh
# A Python with PyTorch for the CPU, used by `mok bench --peer bench/peers/venv/bin/python` and nothing else.
set -eu
cd "$(dirname "$0")"
python3 -m venv venv
venv/bin/pip install --quiet torch numpy
