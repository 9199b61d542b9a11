"""Where the time of a forward goes: runs one shape with the trace on and sums events by role and task.

  python3 bench/gpu/trace.py --shape Qwen3-30B-A3B [--chrome FILE]
"""
import argparse
import collections
import json
import os
import statistics
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import forward  # noqa: E402
import mok_ctypes as mok  # noqa: E402


def run(lib, options):
    tokens, hidden, inner, experts, slots = forward.SHAPES[options.shape]
    generator = torch.Generator(device="cuda").manual_seed(1)

    def normal(*size):
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16, generator=generator)

    x = normal(tokens, hidden)
    gate_up = normal(experts, 2 * inner, hidden) * hidden ** -0.5
    down = normal(experts, hidden, inner) * inner ** -0.5
    routes, router_weights = forward.make_routes(tokens, experts, slots, options.routing, generator)
    out = torch.empty_like(x)
    config = mok.layer_config(lib, hidden, inner, experts, slots, tokens, minibatch_rows=options.minibatch_rows)
    layer = mok.DeviceLayer(lib, config, 1, options.comm_blocks, 4096)
    layer.bind([out], [x], [routes], [router_weights], [mok.weights_view(gate_up[:, :inner], gate_up[:, inner:], down)])
    for _ in range(5):
        layer.run(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    layer.check()
    return layer.trace()


def summary(lib, events):
    groups = collections.defaultdict(list)
    for event in events:
        kind = lib.lib.mok_cuda_task_string(event.kind).decode()
        groups[(mok.ROLES[event.role], mok.WHATS[event.what], kind)].append(event)
    end = max(event.end_ns for event in events)
    blocks = len({event.block for event in events})
    print(f"{blocks} blocks, {end / 1e6:.3f} ms")
    print(f"{'role':<10}{'what':<9}{'task':<16}{'count':>7}{'median us':>11}{'p95 us':>9}{'share':>8}{'first':>8}{'last':>8}")
    for key, group in sorted(groups.items()):
        spans = sorted((e.end_ns - e.begin_ns) / 1e3 for e in group)
        print(f"{key[0]:<10}{key[1]:<9}{key[2]:<16}{len(group):>7}{statistics.median(spans):>11.2f}"
              f"{spans[int(len(spans) * 0.95)]:>9.2f}{sum(spans) * 1e3 / (blocks * end):>8.1%}"
              f"{min(e.begin_ns for e in group) / 1e6:>8.3f}{max(e.end_ns for e in group) / 1e6:>8.3f}")


def chrome(lib, events, path):
    rows = []
    for event in events:
        kind = lib.lib.mok_cuda_task_string(event.kind).decode()
        what = mok.WHATS[event.what]
        rows.append({"name": kind if what == "work" else f"{what} {kind}", "ph": "X", "pid": event.block,
                     "tid": mok.ROLES[event.role], "ts": event.begin_ns / 1e3,
                     "dur": (event.end_ns - event.begin_ns) / 1e3,
                     "args": {"rank": event.rank, "row_block": event.row_block, "col": event.col}})
    with open(path, "w") as file:
        json.dump({"traceEvents": rows}, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/cuda/libmok.so")
    parser.add_argument("--shape", default="Qwen3-30B-A3B")
    parser.add_argument("--routing", default="uniform")
    parser.add_argument("--comm-blocks", type=int, default=0)
    parser.add_argument("--minibatch-rows", type=int, default=0)
    parser.add_argument("--chrome")
    options = parser.parse_args()
    lib = mok.Library(os.path.abspath(options.library))
    events = run(lib, options)
    summary(lib, events)
    if options.chrome:
        chrome(lib, events, options.chrome)


if __name__ == "__main__":
    main()
