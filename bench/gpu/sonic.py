"""Forward and backward of a MoE layer on one GPU: libmok against SonicMoE, same inputs and routes, same run.

  PYTHONPATH=SITE python3 bench/gpu/sonic.py --library build/cuda/libmok.so --json FILE

SITE holds the packages sonic-moe, quack-kernels and nvidia-cutlass-dsl with what they need; they are used here only.
SonicMoE's own functions are called with the routes that libmok gets: its routing tables, up projection, down
projection, and their backward. A forward is timed with what backward keeps, as in training.
"""
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import backward  # noqa: E402
import forward as base  # noqa: E402


def sonic_layer(functional, activation):
    """(x, routes, router weights, w1, w2) -> y, by SonicMoE 0.1.2."""
    def run(x, routes, scores, w1, w2):
        tokens, slots = routes.shape
        experts = w2.size(-1)
        count = tokens * slots

        def ints(n):
            return torch.empty(n, dtype=torch.int32, device=x.device)

        scatter, reverse, frequency, offset, gather = ints(count), ints(count), ints(experts), ints(experts + 1), \
            ints(count)
        functional.TC_topk_router_metadata_triton(routes, experts, frequency, offset, gather, scatter, reverse)
        a, h = functional._UpProjection.apply(x, w1, None, offset, count, slots, gather, scatter, reverse, None, False,
                                              activation, False, False)
        return functional._DownProjection.apply(a, h, w2, None, scores, offset, tokens, slots, gather, scatter, reverse,
                                                None, False, activation)
    return run


def run_case(lib, options, name, routing):
    import sonicmoe.functional as functional
    from sonicmoe.enums import ActivationType
    tokens, hidden, inner, experts, slots = base.SHAPES[name]
    step = backward.Step(lib, options, name, routing)
    layer = sonic_layer(functional, ActivationType.SWIGLU)
    # Its weights: gate and up rows in turn, experts the last axis of the shape and the first of the memory.
    w1 = torch.stack([step.gate_up[:, :inner], step.gate_up[:, inner:]], 2).reshape(experts, 2 * inner, hidden)
    leaves = [step.x.detach().requires_grad_(), step.router_weights.detach().requires_grad_(),
              w1.permute(1, 2, 0).detach().requires_grad_(), step.down.permute(1, 2, 0).detach().requires_grad_()]
    routes = step.routes.int().contiguous()

    def forward_only():
        return layer(leaves[0], routes, leaves[1], leaves[2], leaves[3])

    def both():
        return torch.autograd.grad(forward_only(), leaves, step.dy)

    def mok_forward():
        step.layer.run(torch.cuda.current_stream().cuda_stream)

    step.run()
    theirs = both()
    torch.cuda.synchronize()
    step.layer.check()
    difference = float((step.dx.float() - theirs[0].float()).norm() / theirs[0].float().norm())
    times = base.Timer({"libmok": step.run, "sonic": both}).medians(options.repeats)
    first = base.Timer({"libmok": mok_forward, "sonic": forward_only}).medians(options.repeats)
    step.layer.check()
    operations = 18.0 * tokens * slots * hidden * inner
    row = {"shape": name, "routing": routing, "forward_ms": round(first["libmok"], 4),
           "sonic_forward_ms": round(first["sonic"], 4), "forward_ratio": round(first["sonic"] / first["libmok"], 3),
           "ms": round(times["libmok"], 4), "sonic_ms": round(times["sonic"], 4),
           "ratio": round(times["sonic"] / times["libmok"], 3), "tflops": round(operations / times["libmok"] * 1e-9, 1),
           "relative_difference_of_dx": float(f"{difference:.2e}")}
    step.layer.close()
    return row


def main():
    parser = base.make_parser(__doc__, 12, 0)
    parser.add_argument("--trace-events", type=int, default=0)
    parser.set_defaults(shapes="Qwen3-30B-A3B,OLMoE", routings="uniform", no_peers=True)
    return base.run_all(parser.parse_args(), run_case, "shape           forward  sonic  ratio   both  sonic  ratio",
                        lambda row: f"{row['shape']:<15} {row['forward_ms']:>7.3f} {row['sonic_forward_ms']:>6.3f} "
                                    f"{row['forward_ratio']:>6.2f} {row['ms']:>6.3f} {row['sonic_ms']:>6.3f} "
                                    f"{row['ratio']:>6.2f}  dx differs by {row['relative_difference_of_dx']}")


if __name__ == "__main__":
    sys.exit(main())
