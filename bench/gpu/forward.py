"""Forward of a whole MoE layer on one GPU: libmok against PyTorch, same inputs, same run.

  python3 bench/gpu/forward.py --library build/cuda/libmok.so --json FILE

Times are medians over --repeats of alternated runs, by CUDA events; each of libmok's includes building its
schedule, as PyTorch's include sorting. Operations count useful rows: 6 T K H I. Equality with the CPU is
that of --samples tokens, recomputed by the CPU library (a token's result depends on nothing else), and of
the digest of y over all repeats.
"""
import argparse
import datetime
import hashlib
import json
import os
import statistics
import subprocess
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mok_ctypes as mok  # noqa: E402

SHAPES = {  # T, H, I, E, K
    "Qwen3-30B-A3B": (16384, 2048, 768, 128, 8),
    "OLMoE": (16384, 2048, 1024, 64, 8),
    "Mixtral-8x7B": (8192, 4096, 14336, 8, 2),
    "DeepSeek-V3/8": (8192, 7168, 2048, 32, 8),
    "gpt-oss-20b": (16384, 2880, 2880, 32, 4),
}


def make_routes(tokens, experts, slots, routing, generator):
    """Distinct experts a token. Skewed: a quarter of the experts gets three quarters of the rows."""
    score = torch.rand(tokens, experts, device="cuda", generator=generator)
    if routing == "skewed":
        few = experts // 4
        inside = min(slots * 3 // 4 if slots > 1 else 1, few)
        hot = torch.topk(score[:, :few], max(inside, 1), dim=1).indices
        cold = torch.topk(score[:, few:], slots - hot.shape[1], dim=1).indices + few
        routes = torch.cat([hot, cold], dim=1)
    else:
        routes = torch.topk(score, slots, dim=1).indices
    weights = torch.rand(tokens, slots, device="cuda", generator=generator) + 0.1
    return routes.to(torch.int32).contiguous(), weights / weights.sum(1, keepdim=True)


def torch_layer(x, routes, router_weights, gate_up, down, bmm):
    tokens, slots = routes.shape
    inner = down.shape[2]
    flat = routes.reshape(-1)
    ids, order = torch.sort(flat, stable=True)
    ends = torch.searchsorted(ids, torch.arange(down.shape[0], device=x.device, dtype=ids.dtype), right=True)
    ends = ends.to(torch.int32)
    rows = x[order // slots]
    both = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends)
    h = torch.nn.functional.silu(both[:, :inner]) * both[:, inner:]
    y = torch._grouped_mm(h, down.transpose(1, 2), offs=ends)
    back = torch.empty_like(y)
    back[order] = y
    back = back.view(tokens, slots, -1)
    if bmm:
        return torch.bmm(router_weights.to(x.dtype).unsqueeze(1), back).squeeze(1)
    return (back * router_weights.unsqueeze(2)).sum(1).to(x.dtype)


class Timer:
    """Alternates the candidates; all are enqueued without waiting, so the device never waits for the host."""

    def __init__(self, candidates):
        self.candidates = candidates

    def medians(self, repeats):
        events = {name: [] for name in self.candidates}
        for run in self.candidates.values():
            run()
            run()
        torch.cuda.synchronize()
        for _ in range(repeats):
            for name, run in self.candidates.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                run()
                end.record()
                events[name].append((begin, end))
        torch.cuda.synchronize()
        return {name: statistics.median(b.elapsed_time(e) for b, e in pairs) for name, pairs in events.items()}


def digest(tensor):
    return hashlib.sha256(tensor.view(torch.int16).cpu().numpy().tobytes()).hexdigest()[:16]


def equal_to_cpu(lib, shape, out, x, routes, router_weights, weights, samples):
    tokens, hidden, inner, experts, slots = shape
    pick = torch.linspace(0, tokens - 1, samples).long()
    gate, up, down = (w.cpu() for w in weights)
    config = mok.layer_config(lib, hidden, inner, experts, slots, samples)
    want = mok.cpu_forward(lib, config, x.cpu()[pick].contiguous(), routes.cpu()[pick].contiguous(),
                           router_weights.cpu()[pick].contiguous(), mok.weights_view(gate, up, down),
                           os.cpu_count())
    return bool(torch.equal(want.view(torch.int16), out.cpu()[pick].view(torch.int16)))


def run_case(lib, options, name, routing):
    shape = SHAPES[name]
    tokens, hidden, inner, experts, slots = shape
    generator = torch.Generator(device="cuda").manual_seed(options.seed)

    def normal(*size):
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16, generator=generator)

    x = normal(tokens, hidden)
    gate_up = normal(experts, 2 * inner, hidden) * hidden ** -0.5
    down = normal(experts, hidden, inner) * inner ** -0.5
    gate, up = gate_up[:, :inner], gate_up[:, inner:]
    routes, router_weights = make_routes(tokens, experts, slots, routing, generator)
    out = torch.full_like(x, float("nan"))
    config = mok.layer_config(lib, hidden, inner, experts, slots, tokens, minibatch_rows=options.minibatch_rows)
    layer = mok.DeviceLayer(lib, config, 1, options.comm_blocks)
    layer.bind([out], [x], [routes], [router_weights], [mok.weights_view(gate, up, down)])
    stream = torch.cuda.current_stream().cuda_stream
    layer.run(stream)
    torch.cuda.synchronize()
    layer.check()
    first = digest(out)
    candidates = {"libmok": lambda: layer.run(stream)}
    if not options.no_peers:
        candidates["eager"] = lambda: torch_layer(x, routes, router_weights, gate_up, down, True)
        torch._dynamo.reset()
        compiled = torch.compile(torch_layer, dynamic=False)
        candidates["compile"] = lambda: compiled(x, routes, router_weights, gate_up, down, False)
        rows = normal(tokens * slots, hidden)
        inner_rows = normal(tokens * slots, inner)
        w1, w2 = gate_up[0].t().contiguous(), down[0].t().contiguous()
        candidates["cublas"] = lambda: (torch.matmul(rows, w1), torch.matmul(inner_rows, w2))
    times = Timer(candidates).medians(options.repeats)
    layer.check()
    operations = 6.0 * tokens * slots * hidden * inner
    row = {"shape": name, "routing": routing, "ms": round(times["libmok"], 4),
           "tflops": round(operations / times["libmok"] * 1e-9, 1)}
    if not options.no_peers:
        peer = min(("eager", "compile"), key=lambda key: times[key])
        error = (out.float() - candidates["eager"]().float()).norm() / out.float().norm()
        row.update({"peer": f"torch {torch.__version__} {peer}", "peer_ms": round(times[peer], 4),
                    "ratio": round(times[peer] / times["libmok"], 3),
                    "eager_ms": round(times["eager"], 4), "compile_ms": round(times["compile"], 4),
                    "cublas_ms": round(times["cublas"], 4),
                    "share_of_cublas": round(times["cublas"] / times["libmok"], 3),
                    "relative_difference_to_torch": float(f"{error:.2e}")})
    same = digest(out) == first
    row["digest"] = first
    row["digest_equal_repeats"] = same
    row["digest_equal_cpu"] = same and (options.samples == 0 or equal_to_cpu(
        lib, shape, out, x, routes, router_weights, (gate, up, down), options.samples))
    row["sampled_tokens"] = options.samples
    row["device_bytes"] = layer.bytes()
    layer.close()
    return row


def commit():
    """MOK_COMMIT names it where the files were carried to a machine without their repository."""
    if "MOK_COMMIT" in os.environ:
        return os.environ["MOK_COMMIT"]
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def make_parser(description, repeats, samples):
    """The options that this benchmark and backward.py share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/cuda/libmok.so")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--routings", default="uniform,skewed")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--comm-blocks", type=int, default=0)
    parser.add_argument("--minibatch-rows", type=int, default=0)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json")
    return parser


def run_all(options, run_one, header, line):
    """run_one(library, options, shape, routing) for every case; prints a table, keeps the JSON up to date."""
    if not torch.cuda.is_available():
        print("skipped: this machine has no GPU")
        return 77
    lib = mok.Library(os.path.abspath(options.library))
    common = {"command": "python3 " + " ".join(sys.argv), "commit": commit(),
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "device": torch.cuda.get_device_name()}
    rows = []
    print(header)
    for name in options.shapes.split(","):
        for routing in options.routings.split(","):
            row = run_one(lib, options, name, routing)
            torch.cuda.empty_cache()
            rows.append({**row, **common})
            print(line(row), flush=True)
            if options.json:  # after every case: a later one may fail
                with open(options.json, "w") as file:
                    json.dump(rows, file, indent=1)
                    file.write("\n")
    return 0 if all(row.get("digest_equal_cpu", True) for row in rows) else 1


def table_line(row):
    return (f"{row['shape']:<16}{row['routing']:<9}{row['ms']:>8.3f}{row['tflops']:>9.0f}{row.get('eager_ms', 0):>8.3f}"
            f"{row.get('compile_ms', 0):>9.3f}{row.get('ratio', 0):>7.2f}")


TABLE_HEADER = f"{'shape':<16}{'routing':<9}{'ms':>8}{'TFLOP/s':>9}{'eager':>8}{'compile':>9}{'ratio':>7}"


def main():
    options = make_parser(__doc__, 20, 32).parse_args()
    return run_all(options, run_case, f"{TABLE_HEADER}{'cublas':>8}  bytes equal",
                   lambda row: f"{table_line(row)}{row.get('cublas_ms', 0):>8.3f}  {row['digest_equal_cpu']}")


if __name__ == "__main__":
    sys.exit(main())
