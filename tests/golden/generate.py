"""Writes the reference values that tests/test_golden*.c compare with, by PyTorch on the CPU.

Usage: python3 generate.py [PART...]   (scaler, optimizers, dtypes, ops, curves; default: all)
Files are written beside this one. Inputs are not stored: both sides make them by value()."""

import os
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def value(index, salt):
    """A number in [-1, 1] that C makes in the same way: integers, then one division."""
    return ((index * 7919 + salt * 4099) % 2003) / 1001 - 1


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


PARTS = {"scaler": write_scaler, "optimizers": write_optimizers}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
