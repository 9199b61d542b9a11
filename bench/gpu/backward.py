"""Forward and backward of a whole MoE layer on one GPU: libmok against PyTorch, same inputs, same run.

  python3 bench/gpu/backward.py --library build/cuda/libmok.so --json FILE

As forward.py, with all gradients: dx, router weights, and weights stored in bf16 as PyTorch stores them. Operations:
18 T K H I. Equality with the CPU library: dx and router gradients of --samples tokens, and every byte of the three
weight gradients of one expert, recomputed from its rows.
"""
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import forward as base  # noqa: E402
import mok_ctypes as mok  # noqa: E402


class Step:
    """One shape's tensors and libmok's layer over them."""

    def __init__(self, lib, options, name, routing):
        self.lib, self.shape = lib, base.SHAPES[name]
        tokens, hidden, inner, experts, slots = self.shape
        generator = torch.Generator(device="cuda").manual_seed(options.seed)

        def normal(*size):
            return torch.randn(*size, device="cuda", dtype=torch.bfloat16, generator=generator)

        self.x = normal(tokens, hidden)
        self.dy = normal(tokens, hidden)
        self.gate_up = normal(experts, 2 * inner, hidden) * hidden ** -0.5
        self.down = normal(experts, hidden, inner) * inner ** -0.5
        self.routes, self.router_weights = base.make_routes(tokens, experts, slots, routing, generator)
        self.out = torch.full_like(self.x, float("nan"))
        self.dx = torch.full_like(self.x, float("nan"))
        self.d_router = torch.full_like(self.router_weights, float("nan"))
        self.d_gate_up = torch.full_like(self.gate_up, float("nan"))
        self.d_down = torch.full_like(self.down, float("nan"))
        config = mok.layer_config(lib, hidden, inner, experts, slots, tokens, minibatch_rows=options.minibatch_rows)
        self.layer = mok.DeviceLayer(lib, config, 1, options.comm_blocks, options.trace_events)
        self.layer.bind([self.out], [self.x], [self.routes], [self.router_weights], [self.weights()])
        self.layer.bind_backward([self.dy], [self.dx], [self.d_router], [self.d_gate_up[:, :inner]],
                                 [self.d_gate_up[:, inner:]], [self.d_down])

    def weights(self):
        inner = self.shape[2]
        return mok.weights_view(self.gate_up[:, :inner], self.gate_up[:, inner:], self.down)

    def run(self):
        stream = torch.cuda.current_stream().cuda_stream
        self.layer.run(stream)
        self.layer.run_backward(stream)

    def results(self):
        return [t.view(torch.int16) for t in (self.out, self.dx, self.d_gate_up, self.d_down, self.d_router)]


def tokens_equal(step, samples):
    """dx and router gradients of a few tokens: they depend on nothing else."""
    tokens, hidden, inner, experts, slots = step.shape
    pick = torch.linspace(0, tokens - 1, samples).long()

    def few(tensor):
        return tensor.cpu()[pick].contiguous()

    gate_up, down = step.gate_up.cpu(), step.down.cpu()
    weights = mok.weights_view(gate_up[:, :inner], gate_up[:, inner:], down)
    config = mok.layer_config(step.lib, hidden, inner, experts, slots, samples)
    layer = mok.CpuLayer(step.lib, config, os.cpu_count())
    x, dy, routes, router = few(step.x), few(step.dy), few(step.routes), few(step.router_weights)
    dx, d_router = torch.full_like(x, float("nan")), torch.full_like(router, float("nan"))
    full = [torch.empty(experts, inner, hidden, dtype=torch.bfloat16) for _ in range(2)]
    full.append(torch.empty(experts, hidden, inner, dtype=torch.bfloat16))
    out = layer.forward(x, routes, router, weights)
    layer.backward(mok.gradients(step.lib, dx, d_router, *full), dy, x, router, weights)
    layer.close()
    return (torch.equal(out.view(torch.int16), few(step.out).view(torch.int16)) and
            torch.equal(dx.view(torch.int16), few(step.dx).view(torch.int16)) and
            torch.equal(d_router.view(torch.int32), few(step.d_router).view(torch.int32)))


def expert_equal(step):
    """All weight gradients of the expert with the fewest rows, from those rows alone."""
    tokens, hidden, inner, experts, slots = step.shape
    routes = step.routes.cpu()
    counts = torch.bincount(routes.reshape(-1), minlength=experts)
    expert = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    token, slot = torch.nonzero(routes == expert, as_tuple=True)
    rows = len(token)
    gate_up, down = step.gate_up[expert:expert + 1].cpu(), step.down[expert:expert + 1].cpu()
    weights = mok.weights_view(gate_up[:, :inner], gate_up[:, inner:], down)
    layer = mok.CpuLayer(step.lib, mok.layer_config(step.lib, hidden, inner, 1, 1, rows), os.cpu_count())
    x, dy = step.x.cpu()[token].contiguous(), step.dy.cpu()[token].contiguous()
    router = step.router_weights.cpu()[token, slot].reshape(rows, 1).contiguous()
    dx, d_router = torch.empty_like(x), torch.empty_like(router)
    d_gate_up, d_down = torch.full_like(gate_up, float("nan")), torch.full_like(down, float("nan"))
    layer.forward(x, torch.zeros(rows, 1, dtype=torch.int32), router, weights)
    layer.backward(mok.gradients(step.lib, dx, d_router, d_gate_up[:, :inner], d_gate_up[:, inner:], d_down), dy, x,
                   router, weights)
    layer.close()
    return (torch.equal(d_gate_up[0].view(torch.int16), step.d_gate_up[expert].cpu().view(torch.int16)) and
            torch.equal(d_down[0].view(torch.int16), step.d_down[expert].cpu().view(torch.int16)))


def peers(step):
    leaves = [t.detach().requires_grad_() for t in (step.x, step.router_weights, step.gate_up, step.down)]
    x, router, gate_up, down = leaves

    def run(layer, bmm):
        out = layer(x, step.routes, router, gate_up, down, bmm)
        return torch.autograd.grad(out, leaves, step.dy)

    torch._dynamo.reset()
    compiled = torch.compile(base.torch_layer, dynamic=False)
    return {"eager": lambda: run(base.torch_layer, True), "compile": lambda: run(compiled, False)}


def run_case(lib, options, name, routing):
    tokens, hidden, inner, _, slots = base.SHAPES[name]
    step = Step(lib, options, name, routing)
    step.run()
    torch.cuda.synchronize()
    step.layer.check()
    first = [t.clone() for t in step.results()]
    candidates = {"libmok": step.run}
    if not options.no_peers:
        candidates.update(peers(step))
    times = base.Timer(candidates).medians(options.repeats)
    step.layer.check()
    operations = 18.0 * tokens * slots * hidden * inner
    row = {"shape": name, "routing": routing, "ms": round(times["libmok"], 4),
           "tflops": round(operations / times["libmok"] * 1e-9, 1)}
    if not options.no_peers:
        peer = min(("eager", "compile"), key=lambda key: times[key])
        theirs = candidates["eager"]()
        row.update({"peer": f"torch {torch.__version__} {peer}", "peer_ms": round(times[peer], 4),
                    "ratio": round(times[peer] / times["libmok"], 3), "eager_ms": round(times["eager"], 4),
                    "compile_ms": round(times["compile"], 4),
                    "relative_difference_of_dx_to_torch": float(
                        f"{(step.dx.float() - theirs[0].float()).norm() / theirs[0].float().norm():.2e}")})
    same = all(torch.equal(a, b) for a, b in zip(step.results(), first))
    del first
    row.update({"digest": f"out {base.digest(step.out)} dx {base.digest(step.dx)}", "digest_equal_repeats": same,
                "sampled_tokens": options.samples})
    row["digest_equal_cpu"] = same and (options.samples == 0 or
                                        (tokens_equal(step, options.samples) and expert_equal(step)))
    row["device_bytes"] = step.layer.bytes()
    if options.trace_events:
        import trace
        trace.summary(lib, step.layer.trace())
    step.layer.close()
    return row


def main():
    parser = base.make_parser(__doc__, 12, 16)
    parser.add_argument("--trace-events", type=int, default=0)
    return base.run_all(parser.parse_args(), run_case, f"{base.TABLE_HEADER}  bytes equal",
                        lambda row: f"{base.table_line(row)}  {row['digest_equal_cpu']}")


if __name__ == "__main__":
    sys.exit(main())
