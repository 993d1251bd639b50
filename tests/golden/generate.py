"""Writes the reference values that tests/test_golden*.c compare with, by PyTorch on the CPU.

Usage: python3 generate.py [PART...]   (scaler, optimizers, dtypes, ops, curves; default: all)
Files are written beside this one. Inputs are not stored: both sides make them by value()."""

import contextlib
import itertools
import logging
import os
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

HERE = os.path.dirname(os.path.abspath(__file__))


def value(index, salt):
    """A number in [-1, 1] that C makes in the same way: integers, then one division."""
    return ((index * index * 39 + index * 7919 + salt * 4099) % 2003) / 1001 - 1


def number(x):
    """A float32 as C's hexadecimal constant, without trailing zeros."""
    x = float(x)
    if x != x:
        return "NAN"
    if x in (float("inf"), -float("inf")):
        return "INFINITY" if x > 0 else "-INFINITY"
    mantissa, exponent = x.hex().split("p")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + "p" + exponent


def numbers(values):
    """Lines of up to eight numbers."""
    values = [number(v) for v in values]
    return "".join("    " + ", ".join(values[i:i + 8]) + ",\n" for i in range(0, len(values), 8))


def write(name, text):
    with open(os.path.join(HERE, name), "w") as file:
        file.write("/* Made by generate.py with PyTorch %s; see README.md. */\n" % torch.__version__)
        file.write(text)


# Sequences of a scaler: for each optimizer of a step f (gradient 1), i (infinite), n (NaN) or
# o (1e36, which overflows once it is scaled); u: the step unscales by itself first; L: the state is
# loaded into a new scaler; S: the scale is set to 1024; P: the growth interval is set to 2.
GRADIENTS = {"f": 1.0, "i": float("inf"), "n": float("nan"), "o": 1e36}
SCALERS = [
    # name, optimizers, init_scale, growth, backoff, interval, enabled, events
    ("growth", 1, 65536.0, 2.0, 0.5, 3, True, "fffffffff"),
    ("backoff", 1, 65536.0, 2.0, 0.5, 3, True, "iffniffffffnnff"),
    ("odd factors", 1, 1000.0, 1.3, 0.7, 2, True, "ffifffffnffffffi"),
    ("unscaled before", 1, 4096.0, 2.0, 0.5, 2, True, "ufuiufufufun"),
    ("overflow by scaling", 1, 65536.0, 2.0, 0.25, 4, True, "foffffooffff"),
    ("loaded between", 1, 256.0, 2.0, 0.5, 4, True, "ffLffffiLfffLf"),
    ("set between", 1, 256.0, 2.0, 0.5, 4, True, "fffSffPffff"),
    ("lowered interval", 1, 256.0, 2.0, 0.5, 4, True, "fffPfff"),
    ("two optimizers", 2, 512.0, 2.0, 0.5, 2, True, "ffffiffnffffiifffff"),
    ("disabled", 1, 512.0, 2.0, 0.5, 2, False, "ffiff"),
    ("largest", 1, 2.0**125, 2.0, 0.5, 1, True, "ffffif"),
    ("smallest", 1, 2.0**-125, 2.0, 0.5, 2, True, "iiiffi"),
    ("vanishing", 1, 2.0**-147, 2.0, 0.5, 2, True, "iiifff"),
]


def scaler_states(optimizers, options, events):
    def make(scale):
        return torch.amp.GradScaler("cpu", **dict(options, init_scale=scale))

    scaler = make(options["init_scale"])
    weights = [torch.tensor([0.5, -1.0], requires_grad=True) for _ in range(optimizers)]
    steppers = [torch.optim.SGD([w], lr=1.0) for w in weights]
    applied = [0] * optimizers
    for i, stepper in enumerate(steppers):
        stepper.register_step_post_hook(
            lambda *_, i=i: applied.__setitem__(i, applied[i] + 1))
    states, gradients, unscale = [], [], False
    for event in events:
        if event == "L":
            state = scaler.state_dict()
            scaler = make(8.0)
            scaler.load_state_dict(state)
        elif event == "S":
            scaler.update(1024.0)
        elif event == "P":
            scaler.set_growth_interval(2)
        elif event == "u":
            unscale = True
        else:
            gradients.append(GRADIENTS[event])
        if len(gradients) < optimizers:
            continue
        before = list(applied)
        for w, stepper, g in zip(weights, steppers, gradients):
            stepper.zero_grad()
            scaler.scale((w * g).sum()).backward()
        for stepper in steppers:
            if unscale:
                scaler.unscale_(stepper)
            scaler.step(stepper)
        scaler.update()
        bits = sum((applied[i] > before[i]) << i for i in range(optimizers))
        states.append((scaler.get_scale(), scaler._get_growth_tracker(), bits))
        gradients, unscale = [], False
    return states


def write_scaler():
    text = ""
    for name, optimizers, scale, growth, backoff, interval, enabled, events in SCALERS:
        options = dict(init_scale=scale, growth_factor=growth, backoff_factor=backoff,
                       growth_interval=interval, enabled=enabled)
        states = scaler_states(optimizers, options, events)
        text += '{"%s", %d, %s, %r, %r, %d, %d, "%s", %d, {\n' % (
            name, optimizers, number(scale), growth, backoff, interval, enabled, events,
            len(states))
        text += "".join("    {%s, %d, %d},\n" % (number(s), t, a) for s, t, a in states)
        text += "}},\n"
    write("scaler.inc", text)


# Optimizers: kind, lr, two rates (momentum; betas; alpha and momentum), eps, weight decay, Nesterov.
OPTIMIZERS = [
    ("sgd", 0.1, 0.0, 0.0, 0.0, 0.0, False),
    ("sgd", 0.1, 0.0, 0.0, 0.0, 0.05, False),
    ("sgd", 0.05, 0.9, 0.0, 0.0, 0.0, False),
    ("sgd", 0.05, 0.9, 0.0, 0.0, 0.01, False),
    ("sgd", 0.05, 0.7, 0.0, 0.0, 0.01, True),
    ("adam", 0.05, 0.9, 0.999, 1e-8, 0.0, False),
    ("adam", 0.02, 0.8, 0.95, 1e-3, 0.1, False),
    ("adamw", 0.05, 0.9, 0.999, 1e-8, 0.01, False),
    ("adamw", 0.02, 0.8, 0.95, 1e-3, 0.3, False),
    ("rmsprop", 0.02, 0.99, 0.0, 1e-8, 0.0, False),
    ("rmsprop", 0.02, 0.9, 0.8, 1e-3, 0.05, False),
]
STEPS, ELEMENTS = 20, 7


def stepper_of(kind, p, lr, rate0, rate1, eps, decay, nesterov):
    if kind == "sgd":
        return torch.optim.SGD([p], lr=lr, momentum=rate0, weight_decay=decay, nesterov=nesterov)
    if kind == "rmsprop":
        return torch.optim.RMSprop([p], lr=lr, alpha=rate0, momentum=rate1, eps=eps,
                                   weight_decay=decay)
    adam = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
    return adam([p], lr=lr, betas=(rate0, rate1), eps=eps, weight_decay=decay)


def write_optimizers():
    text = ""
    for case in OPTIMIZERS:
        kind, nesterov = case[0], case[-1]
        p = torch.tensor([2 * value(i, 0) for i in range(ELEMENTS)], requires_grad=True)
        stepper = stepper_of(kind, p, *case[1:])
        values = []
        for step in range(1, STEPS + 1):
            p.grad = torch.tensor([value(i, step) for i in range(ELEMENTS)])
            stepper.step()
            values += p.tolist()
        text += '{"%s", %r, {%r, %r}, %r, %r, %d, {\n%s}},\n' % (*case[:-1], nesterov,
                                                                numbers(values))
    write("optimizers.inc", text)


# Data types of results. Case: name, shapes of the inputs whose dtypes vary, function of them. Shapes
# are minim's; images and filters reach the function in PyTorch's order.
F = torch.nn.functional
SQUARE, IMAGE, FILTER, VECTOR, SCALAR = (4, 4), (1, 4, 4, 4), (4, 1, 1, 4), (4,), ()


def ones(like, *shape):
    return torch.ones(shape, device=like.device)


def index(x, ndim):
    """Indices (5 i + 1) mod columns of the shape of x's first axes."""
    shape = x.shape[:ndim]
    count = torch.Size(shape).numel()
    return ((5 * torch.arange(count, device=x.device) + 1) % x.shape[-1]).reshape(shape)


def batch_norm(x, mean, variance, training):
    one = ones(x, x.shape[1])
    return F.batch_norm(x, mean * one, variance * one, 1.5 * one, 0.25 * one, training=training)


def some(x):
    return (torch.arange(x.numel(), device=x.device) % 3 > 0).reshape(x.shape)


DTYPES = [
    ("relu", [SQUARE], F.relu),
    ("leaky_relu", [SQUARE], lambda x: F.leaky_relu(x, 0.1)),
    ("clamp", [SQUARE], lambda x: x.clamp(-0.5, 1.5)),
    ("neg", [SQUARE], torch.neg),
    ("abs", [SQUARE], torch.abs),
    ("add_scalar", [SQUARE], lambda x: x + 0.5),
    ("mul_scalar", [SQUARE], lambda x: x * 0.5),
    ("pow_scalar", [SQUARE], lambda x: x**1.5),
    ("exp", [SQUARE], torch.exp),
    ("log", [SQUARE], torch.log),
    ("sqrt", [SQUARE], torch.sqrt),
    ("rsqrt", [SQUARE], torch.rsqrt),
    ("tanh", [SQUARE], torch.tanh),
    ("sigmoid", [SQUARE], torch.sigmoid),
    ("silu", [SQUARE], F.silu),
    ("gelu", [SQUARE], F.gelu),
    ("softmax", [SQUARE], lambda x: torch.softmax(x, 1)),
    ("log_softmax", [SQUARE], lambda x: torch.log_softmax(x, 1)),
    ("sum", [SQUARE], torch.sum),
    ("mean", [SQUARE], torch.mean),
    ("amax", [SQUARE], torch.amax),
    ("amin", [SQUARE], torch.amin),
    ("norm", [SQUARE], torch.linalg.vector_norm),
    ("var", [SQUARE], torch.var),
    ("argmax", [SQUARE], lambda x: torch.argmax(x, 1)),
    ("clone", [SQUARE], torch.clone),
    ("reshape", [SQUARE], lambda x: x.reshape(-1)),
    ("permute", [SQUARE], lambda x: x.permute(1, 0)),
    ("slice", [SQUARE], lambda x: x[1:]),
    ("pad", [SQUARE], lambda x: F.pad(x, (1, 2), value=2)),
    ("gather", [SQUARE], lambda x: torch.gather(x, 1, index(x, 2))),
    ("dropout", [SQUARE], lambda x: F.dropout(x, 0.5, True)),
    ("layer_norm", [SQUARE], lambda x: F.layer_norm(x, x.shape[1:])),
    ("nll_loss", [SQUARE], lambda x: F.nll_loss(x, index(x, 1))),
    ("cross_entropy", [SQUARE], lambda x: F.cross_entropy(x, index(x, 1))),
    ("group_norm", [IMAGE], lambda x: F.group_norm(x, 2)),
    ("batch_norm", [IMAGE], lambda x: batch_norm(x, 1, 1, True)),
    ("max_pool2d", [IMAGE], lambda x: F.max_pool2d(x, 2)),
    ("avg_pool2d", [IMAGE], lambda x: F.avg_pool2d(x, 2)),
    ("global_avg_pool2d", [IMAGE], lambda x: x.mean((2, 3))),
    ("nearest", [IMAGE], lambda x: F.interpolate(x, (7, 7))),
    ("bilinear", [IMAGE], lambda x: F.interpolate(x, (7, 7), mode="bilinear")),
    ("add", [SQUARE, SQUARE], torch.add),
    ("sub", [SQUARE, SQUARE], torch.sub),
    ("mul", [SQUARE, SQUARE], torch.mul),
    ("div", [SQUARE, SQUARE], torch.div),
    ("pow", [SQUARE, SQUARE], torch.pow),
    ("minimum", [SQUARE, SQUARE], torch.minimum),
    ("maximum", [SQUARE, SQUARE], torch.maximum),
    ("eq", [SQUARE, SQUARE], torch.eq),
    ("ne", [SQUARE, SQUARE], torch.ne),
    ("le", [SQUARE, SQUARE], torch.le),
    ("gt", [SQUARE, SQUARE], torch.gt),
    ("ge", [SQUARE, SQUARE], torch.ge),
    ("lt", [SQUARE, SQUARE], torch.lt),
    ("add", [SQUARE, SCALAR], torch.add),
    ("mul", [SCALAR, SQUARE], torch.mul),
    ("pow", [SQUARE, SCALAR], torch.pow),
    ("where", [SQUARE, SQUARE], lambda a, b: torch.where(some(a), a, b)),
    ("concat", [SQUARE, SQUARE], lambda a, b: torch.cat([a, b])),
    ("scatter_add", [SQUARE, SQUARE], lambda a, b: a.scatter_add(1, index(a, 2), b)),
    ("dot", [VECTOR, VECTOR], torch.dot),
    ("matmul", [SQUARE, SQUARE], torch.matmul),
    ("linear", [SQUARE, SQUARE], F.linear),
    ("linear_bias", [SQUARE, VECTOR], lambda x, b: F.linear(x, x, b)),
    ("conv2d", [IMAGE, FILTER], F.conv2d),
    ("conv2d_bias", [FILTER, VECTOR], lambda x, b: F.conv2d(x, x, b)),
    ("layer_norm_affine", [SQUARE, VECTOR], lambda x, w: F.layer_norm(x, x.shape[1:], w, w)),
    ("group_norm_affine", [IMAGE, VECTOR], lambda x, w: F.group_norm(x, 2, w, w)),
    ("cross_entropy_of", [SQUARE, SQUARE], F.cross_entropy),
    ("mse_loss", [SQUARE, SQUARE], F.mse_loss),
    ("l1_loss", [SQUARE, SQUARE], F.l1_loss),
    ("huber_loss", [SQUARE, SQUARE], lambda x, t: F.huber_loss(x, t, delta=0.5)),
    ("bce_with_logits", [SQUARE, SQUARE], F.binary_cross_entropy_with_logits),
    ("bce", [SQUARE, SQUARE], F.binary_cross_entropy),
]
# Those of which the autocast lists of both devices say the same.
SHARED = ("matmul linear linear_bias conv2d conv2d_bias mse_loss l1_loss huber_loss bce_with_logits "
          "nll_loss cross_entropy cross_entropy_of").split()
LETTERS = {torch.float64: "d", torch.float32: "s", torch.float16: "h", torch.bfloat16: "b",
           torch.int64: "l", torch.bool: "u"}
TYPES = list(LETTERS)[:5]


def dtype_letter(function, shapes, dtypes, device, region):
    """The result's dtype, or - where PyTorch refuses."""
    if region:
        torch.set_autocast_dtype(device, region)
    torch.set_autocast_enabled(device, bool(region))
    try:
        inputs = [torch.ones(s, dtype=d, device=device) for s, d in zip(shapes, dtypes)]
        return LETTERS[function(*[nchw(x) for x in inputs]).dtype]
    except (RuntimeError, NotImplementedError, ValueError):
        return "-"
    finally:
        torch.set_autocast_enabled(device, False)


def nchw(x):
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def write_dtypes():
    logging.disable(logging.ERROR)  # of what fake tensors refuse
    lists = [("cpu", None), ("cuda", torch.float16), ("cuda", torch.bfloat16),
             ("cpu", torch.float16), ("cpu", torch.bfloat16)]
    text = ""
    for name, shapes, function in DTYPES:
        rows = []
        for i, (device, region) in enumerate(lists):
            if i > 2 and name not in SHARED:
                rows.append("")
                continue
            with FakeTensorMode() if device == "cuda" else contextlib.nullcontext():
                rows.append("".join(dtype_letter(function, shapes, dtypes, device, region)
                                    for dtypes in itertools.product(TYPES, repeat=len(shapes))))
        text += '{"%s", %d, {%s}, {%s}, {\n' % (
            name, len(shapes), ", ".join(str(len(s)) for s in shapes),
            ", ".join("{%s}" % ", ".join(map(str, s or (1,))) for s in shapes))
        text += "".join('    "%s",\n' % row for row in rows) + "}},\n"
    write("dtypes.inc", text)


# Values and gradients in f32. Case: name, shapes, how many inputs get a gradient, and what the inputs
# are: False: in [-2, 2], True: in [0.1, 1], 2: pairs of SPECIAL. The gradient is that of sum(y c), c
# made by value().
SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.0, float("inf"), float("-inf"), float("nan")]
FLAT, ROW, COLUMN, PICTURE = (3, 7), (1, 7), (3, 1), (2, 5, 3, 4)
EXTRA = {
    "softmax_first": lambda x: torch.softmax(x, 0),
    "sum_first": lambda x: x.sum(0, keepdim=True),
    "mean_first": lambda x: x.mean(0),
    "amax_first": lambda x: x.amax(0),
    "norm1_first": lambda x: torch.linalg.vector_norm(x, 1, 0),
    "var0_first": lambda x: x.var(0, correction=0, keepdim=True),
    "cross_entropy_smooth": lambda x: F.cross_entropy(x, index(x, 1), label_smoothing=0.2,
                                                      ignore_index=2, reduction="sum"),
    "batch_norm_inference": lambda x: batch_norm(x, 0.5, 2, False),
    "max_pool2d_odd": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d_odd": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "bilinear_aligned": lambda x: F.interpolate(x, (7, 7), mode="bilinear", align_corners=True),
    "conv2d_odd": lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 2), (1, 2), 2),
}
VALUES = (
    [(name, [FLAT], 1, False) for name in (
        "relu leaky_relu clamp neg abs add_scalar mul_scalar exp tanh sigmoid silu gelu softmax "
        "softmax_first log_softmax sum sum_first mean mean_first amax amax_first amin norm "
        "norm1_first var var0_first clone reshape permute slice pad gather layer_norm nll_loss "
        "cross_entropy cross_entropy_smooth").split()]
    + [(name, [FLAT], 1, True) for name in "pow_scalar log sqrt rsqrt".split()]
    + [(name, [PICTURE], 1, False) for name in (
        "group_norm batch_norm batch_norm_inference max_pool2d max_pool2d_odd avg_pool2d "
        "avg_pool2d_odd global_avg_pool2d nearest bilinear bilinear_aligned").split()]
    + [(name, [FLAT, FLAT], 2, False) for name in (
        "add mul minimum maximum where concat scatter_add mse_loss l1_loss huber_loss").split()]
    + [(name, [FLAT, FLAT], 2, True) for name in "div pow".split()]
    + [(name, [FLAT, FLAT], 1, True) for name in "cross_entropy_of bce_with_logits bce".split()]
    + [(name, [FLAT, (7,)], 2, False) for name in "add sub layer_norm_affine".split()]
    + [(name, [COLUMN, ROW], 2, True) for name in "mul div pow maximum".split()]
    + [("argmax", [FLAT], 0, False), ("eq", [COLUMN, FLAT], 0, False),
       ("lt", [COLUMN, FLAT], 0, False), ("mul", [SCALAR, FLAT], 2, False),
       ("dot", [(7,), (7,)], 2, False), ("matmul", [(5, 7), (7, 3)], 2, False),
       ("matmul", [(2, 1, 3, 5), (4, 5, 2)], 2, False), ("linear", [(2, 3, 7), (5, 7)], 2, False),
       ("linear_bias", [(5, 7), (5,)], 2, False), ("conv2d", [PICTURE, (3, 2, 2, 4)], 2, False),
       ("conv2d_bias", [(3, 4, 2, 4), (3,)], 2, False),
       ("conv2d_odd", [(2, 7, 5, 4), (6, 3, 2, 2)], 2, False),
       ("group_norm_affine", [PICTURE, (4,)], 2, False)]
    + [(name, [(8,)], 1, 2) for name in (
        "relu leaky_relu clamp neg abs pow_scalar exp log sqrt rsqrt tanh sigmoid silu gelu").split()]
    + [(name, [(64,), (64,)], 2, 2) for name in "add mul div pow minimum maximum".split()]
    + [(name, [(64,), (64,)], 0, 2) for name in "eq ne lt le gt ge".split()])
PLAIN = ("matmul", "linear")  # of four axes, but not images


def leaf(shape, salt, positive):
    count = torch.Size(shape).numel()
    values = [value(i, salt) for i in range(count)]
    values = [0.55 + 0.45 * v if positive else 2 * v for v in values]
    if positive == 2:
        values = [SPECIAL[i // 8 if salt > 1 else i % 8] for i in range(count)]
    return torch.tensor(values).reshape(shape).requires_grad_()


@torch.backends.mkldnn.flags(enabled=False)  # whose gelu(inf) is NaN from 8 elements on
def write_ops():
    functions = dict({name: function for name, _, function in DTYPES}, **EXTRA)
    text = ""
    for name, shapes, grads, positive in VALUES:
        inputs = [leaf(shape, salt + 1, positive) for salt, shape in enumerate(shapes)]
        y = functions[name](*(inputs if name in PLAIN else [nchw(x) for x in inputs]))
        if y.dim() == 4 and name not in PLAIN:
            y = y.permute(0, 2, 3, 1)
        values = y.reshape(-1).tolist()
        if grads:
            (y * leaf(y.shape, 9, False).detach()).sum().backward()
            for x in inputs[:grads]:
                values += x.grad.reshape(-1).tolist()
        text += '{"%s", %d, %d, %d, {%s}, {%s}, %d, (const float[]){\n%s}},\n' % (
            name, len(shapes), grads, positive, ", ".join(str(len(s)) for s in shapes),
            ", ".join("{%s}" % ", ".join(map(str, s or (1,))) for s in shapes), y.numel(),
            numbers(values))
    write("ops.inc", text)


# Loss curves of LeNet-5: 50 steps of SGD from weights and on batches of noisy patterns made by
# value(); in 16 bit by autocast, f16 with a scaler as well. f16 on this CPU is the noisiest: its
# losses are farther from those in f32 than minim's are.
CURVE_STEPS, CURVE_BATCH = 50, 16


def counting(count):
    return torch.arange(count, dtype=torch.float64)


def lenet5():
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10))
    with torch.no_grad():
        for salt, p in enumerate(net.parameters()):
            if p.dim() > 1:
                fan_in = p.numel() // len(p)
            p.copy_((2.5 * value(counting(p.numel()), salt) / fan_in**0.5).reshape(p.shape))
    return net


def batch(step):
    labels = [(5 * n + n // 2 + step) % 10 for n in range(CURVE_BATCH)]
    images = [value(counting(784), label) + 0.5 * value(counting(784), 100 + step * CURVE_BATCH + n)
              for n, label in enumerate(labels)]
    return torch.stack(images).float().reshape(-1, 1, 28, 28), torch.tensor(labels)


def curve(low):
    """Losses before, and scales after each step."""
    net = lenet5()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5, weight_decay=5e-4)
    scaler = torch.amp.GradScaler("cpu", growth_interval=20, enabled=low == torch.float16)
    losses, scales = [], []
    for step in range(CURVE_STEPS):
        images, labels = batch(step)
        with torch.autocast("cpu", low, enabled=low is not None):
            loss = F.cross_entropy(net(images), labels)
        sgd.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


def write_curves():
    text = ""
    for name, low, bound in (("MN_F32", None, 1e-3), ("MN_F16", torch.float16, 2e-2),
                             ("MN_BF16", torch.bfloat16, 2e-2)):
        losses, scales = curve(low)
        text += "{%s, %r, {\n%s}, {\n%s}},\n" % (name, bound, numbers(losses), numbers(scales))
    write("curves.inc", text)


PARTS = {"scaler": write_scaler, "optimizers": write_optimizers, "dtypes": write_dtypes,
         "ops": write_ops, "curves": write_curves}

if __name__ == "__main__":
    torch.set_num_threads(1)  # the order of sums
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
