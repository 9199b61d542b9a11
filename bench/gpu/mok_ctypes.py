"""The parts of libmok's C API that the GPU benchmark calls, by ctypes.

Structs repeat include/mok/mok.h and mok_cuda.h field by field; the library refuses a struct whose size it
does not know, so a difference shows at once.
"""
import ctypes as c

BF16, F32, I32, I64 = 1, 2, 3, 4
MAX_RANKS = 8


class Tensor(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("data", c.c_void_p), ("dtype", c.c_int),
                ("rank", c.c_int32), ("shape", c.c_int64 * 4), ("stride", c.c_int64 * 4)]


class LayerConfig(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t)] + [(name, c.c_int64) for name in (
        "hidden", "intermediate", "shared_intermediate", "experts", "slots", "max_tokens",
        "capacity_rows", "macrobatch_rows", "minibatch_rows")] + [
        ("arith", c.c_int), ("activation", c.c_int), ("swiglu_limit", c.c_float), ("weights", c.c_int)]


class CudaConfig(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t)] + [(name, c.c_int32) for name in (
        "device", "ranks", "comm_blocks", "timeout_ms", "stalled_rank", "forward_only", "trace_events")]


class WeightsView(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t)] + [(name, Tensor) for name in (
        "gate", "up", "down", "shared_gate", "shared_up", "shared_down")]


class RankIo(c.Structure):
    _fields_ = [("out", Tensor), ("x", Tensor), ("router_weights", Tensor), ("weights", WeightsView)]


class Gradients(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("dx", Tensor), ("d_router_weights", Tensor), ("mode", c.c_int),
                ("gate", Tensor), ("up", Tensor), ("down", Tensor), ("shared_lanes", c.c_int64),
                ("shared_gate", Tensor), ("shared_up", Tensor), ("shared_down", Tensor)]


class RankGradients(c.Structure):
    _fields_ = [("dy", Tensor), ("gradients", Gradients)]


class Fault(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("rank", c.c_int32), ("peer", c.c_int32),
                ("phase", c.c_int), ("task_idx", c.c_int64), ("waited_ms", c.c_int64)]


class Event(c.Structure):
    _fields_ = [("begin_ns", c.c_int64), ("end_ns", c.c_int64)] + [(name, c.c_int32) for name in (
        "rank", "block", "role", "what", "kind", "row_block", "col")]


ROLES = ("comm", "producer", "consumer", "store")
WHATS = ("work", "wait", "barrier", "fold")


class CommConfig(c.Structure):
    _fields_ = [("struct_bytes", c.c_size_t), ("threads", c.c_int32), ("timeout_ms", c.c_int32),
                ("level", c.c_int), ("allocate", c.c_void_p), ("release", c.c_void_p),
                ("context", c.c_void_p)]


class Library:
    def __init__(self, path):
        self.lib = c.CDLL(path)
        self.lib.mok_last_error.restype = c.c_char_p
        self.lib.mok_cuda_layer_bytes.restype = c.c_size_t
        self.lib.mok_cuda_task_string.restype = c.c_char_p

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}: {self.lib.mok_last_error().decode()}")


def view(tensor):
    """A torch tensor of at most three axes as a mok_tensor; the torch tensor must stay alive."""
    import torch
    dtype = {torch.bfloat16: BF16, torch.float32: F32, torch.int32: I32, torch.int64: I64}[tensor.dtype]
    out = Tensor(c.sizeof(Tensor), tensor.data_ptr(), dtype, tensor.dim())
    for axis in range(tensor.dim()):
        out.shape[axis] = tensor.shape[axis]
        out.stride[axis] = tensor.stride(axis)
    return out


def gradients(lib, dx, d_router, gate, up, down):
    out = Gradients()
    lib.lib.mok_gradients_init(c.byref(out))
    out.dx, out.d_router_weights = view(dx), view(d_router)
    out.gate, out.up, out.down = view(gate), view(up), view(down)
    return out


def weights_view(gate, up, down, shared=None):
    out = WeightsView()
    out.struct_bytes = c.sizeof(WeightsView)
    out.gate, out.up, out.down = view(gate), view(up), view(down)
    if shared is not None:
        out.shared_gate, out.shared_up, out.shared_down = (view(t) for t in shared)
    return out


def layer_config(lib, hidden, intermediate, experts, slots, max_tokens, **others):
    out = LayerConfig()
    lib.lib.mok_layer_config_init(c.byref(out))
    out.hidden, out.intermediate, out.experts = hidden, intermediate, experts
    out.slots, out.max_tokens = slots, max_tokens
    for name, value in others.items():
        setattr(out, name, value)
    return out


class DeviceLayer:
    """Virtual ranks of one layer on the current device. Inputs are lists, one tensor a rank."""

    def __init__(self, lib, config, ranks=1, comm_blocks=0, trace_events=0):
        self.lib, self.handle = lib, c.c_void_p()
        cuda = CudaConfig()
        lib.lib.mok_cuda_config_init(c.byref(cuda))
        cuda.ranks, cuda.comm_blocks, cuda.trace_events = ranks, comm_blocks, trace_events
        lib.call("mok_cuda_layer_open", c.byref(self.handle), c.byref(config), c.byref(cuda))
        self.ranks = ranks

    def bind(self, out, x, routes, router_weights, weights):
        self.routes = (Tensor * self.ranks)(*[view(t) for t in routes])
        self.io = (RankIo * self.ranks)()
        for rank in range(self.ranks):
            io = self.io[rank]
            io.out, io.x = view(out[rank]), view(x[rank])
            io.router_weights, io.weights = view(router_weights[rank]), weights[rank]

    def run(self, stream):
        self.lib.call("mok_cuda_schedule_build", self.handle, self.routes, c.c_void_p(stream))
        self.lib.call("mok_cuda_forward", self.handle, self.io, c.c_void_p(stream))

    def bind_backward(self, dy, dx, d_router, gate, up, down):
        """Each a list, one tensor a rank."""
        self.back = (RankGradients * self.ranks)()
        for rank in range(self.ranks):
            back = self.back[rank]
            back.dy, back.gradients = view(dy[rank]), gradients(self.lib, dx[rank], d_router[rank], gate[rank],
                                                                up[rank], down[rank])

    def run_backward(self, stream):
        self.lib.call("mok_cuda_backward", self.handle, self.io, self.back, c.c_void_p(stream))

    def check(self):
        fault = Fault()
        fault.struct_bytes = c.sizeof(Fault)
        self.lib.call("mok_cuda_fault_read", self.handle, c.byref(fault))

    def trace(self):
        count = c.c_int64()
        self.lib.call("mok_cuda_trace_read", self.handle, None, c.c_int64(0), c.byref(count))
        events = (Event * max(count.value, 1))()
        self.lib.call("mok_cuda_trace_read", self.handle, events, count, c.byref(count))
        return events[:count.value]

    def bytes(self):
        return self.lib.lib.mok_cuda_layer_bytes(self.handle)

    def close(self):
        self.lib.lib.mok_cuda_layer_close(c.byref(self.handle))


class CpuLayer:
    """The CPU library with one rank; tensors on the CPU."""

    def __init__(self, lib, config, threads):
        self.lib = lib
        self.comm, self.layer = c.c_void_p(), c.c_void_p()
        self.schedule, self.activations = c.c_void_p(), c.c_void_p()
        comm_config = CommConfig()
        lib.lib.mok_comm_config_init(c.byref(comm_config))
        comm_config.threads, comm_config.timeout_ms = threads, 600000
        lib.call("mok_comm_open_local", c.byref(self.comm), 1, c.byref(comm_config))
        lib.call("mok_layer_open", c.byref(self.layer), self.comm, c.byref(config))
        lib.call("mok_schedule_open", c.byref(self.schedule), self.layer)
        lib.call("mok_activations_open", c.byref(self.activations), self.layer)

    def forward(self, x, routes, router_weights, weights):
        import torch
        out = torch.full_like(x, float("nan"))
        views = [view(t) for t in (out, x, routes, router_weights)]
        self.lib.call("mok_schedule_build", self.schedule, self.layer, c.byref(views[2]))
        self.lib.call("mok_forward", self.layer, self.activations, c.byref(views[0]), self.schedule,
                      c.byref(views[1]), c.byref(views[3]), c.byref(weights))
        return out

    def backward(self, grads, dy, x, router_weights, weights):
        views = [view(t) for t in (dy, x, router_weights)]
        self.lib.call("mok_backward", self.layer, c.byref(grads), self.activations, self.schedule,
                      c.byref(views[0]), c.byref(views[1]), c.byref(views[2]), c.byref(weights))

    def close(self):
        self.lib.lib.mok_activations_close(c.byref(self.activations))
        self.lib.lib.mok_schedule_close(c.byref(self.schedule))
        self.lib.lib.mok_layer_close(c.byref(self.layer))
        self.lib.lib.mok_comm_close(c.byref(self.comm))


def cpu_forward(lib, config, x, routes, router_weights, weights, threads):
    layer = CpuLayer(lib, config, threads)
    out = layer.forward(x, routes, router_weights, weights)
    layer.close()
    return out
