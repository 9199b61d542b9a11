"""Seconds of forward and backward of one MoE layer in PyTorch on the CPU, in bfloat16.

  python3 torch_layer.py TOKENS HIDDEN INNER SHARED_INNER EXPERTS SLOTS THREADS

Rows are sorted by expert and each expert's rows go through torch's products; the better of the grouped product
(where this build has one for the CPU) and a loop over experts is printed.
"""
import statistics
import sys
import time

import torch


def experts_loop(rows, ends, gate_up, down):
    parts = []
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        both = rows[begin:end] @ gate_up[expert].t()
        g, u = both.chunk(2, dim=1)
        parts.append((torch.nn.functional.silu(g) * u) @ down[expert].t())
        begin = end
    return torch.cat(parts)


def experts_grouped(rows, ends, gate_up, down):
    both = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends)
    g, u = both.chunk(2, dim=1)
    return torch._grouped_mm(torch.nn.functional.silu(g) * u, down.transpose(1, 2), offs=ends)


def layer(x, routes, weights, gate_up, down, shared, experts):
    tokens, slots = routes.shape
    ids, order = torch.sort(routes.reshape(-1), stable=True)
    ends = torch.searchsorted(ids, torch.arange(down.shape[0]), right=True).to(torch.int32)
    y = experts(x[order // slots], ends, gate_up, down)
    back = torch.empty_like(y)
    back = back.index_copy(0, order, y).view(tokens, slots, -1)
    out = (back * weights.unsqueeze(2)).sum(1)
    both = x @ shared[0].t()
    g, u = both.chunk(2, dim=1)
    return (out + (torch.nn.functional.silu(g) * u) @ shared[1].t()).to(x.dtype)


def measure(experts, inputs, dy):
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        out = layer(*inputs, experts)
        torch.autograd.grad(out, [inputs[0], inputs[2], inputs[3], inputs[4], *inputs[5]], dy)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main():
    tokens, hidden, inner, shared_inner, experts, slots, threads = (int(a) for a in sys.argv[1:8])
    torch.set_num_threads(threads)
    torch.manual_seed(1)

    def normal(*size):
        return (torch.randn(*size) * size[-1] ** -0.5).to(torch.bfloat16).requires_grad_()

    x = torch.randn(tokens, hidden).to(torch.bfloat16).requires_grad_()
    routes = torch.rand(tokens, experts).topk(slots, dim=1).indices
    weights = torch.rand(tokens, slots).requires_grad_()
    inputs = (x, routes, weights, normal(experts, 2 * inner, hidden), normal(experts, hidden, inner),
              (normal(2 * shared_inner, hidden), normal(hidden, shared_inner)))
    dy = torch.randn(tokens, hidden).to(torch.bfloat16)
    best = measure(experts_loop, inputs, dy)
    try:
        best = min(best, measure(experts_grouped, inputs, dy))
    except (AttributeError, RuntimeError, NotImplementedError):
        pass
    print(f"{best:.6f}")


if __name__ == "__main__":
    main()
