#!/usr/bin/env python3
"""Three small nets trained by PyTorch: what the float engine must find as well (tests/train/test_golden_nets.cpp).

make_float_nets.py [FOLDER]: writes mlp.safetensors, convnet.safetensors and transformer.safetensors into FOLDER (default: where
this file is). PyTorch computes in f64; the files hold the results rounded to f32, and the initial values are f32 to begin
with, so that every program starts from the same numbers. tests/peers/test_float_nets.py makes them afresh and compares.

Names and layouts are Bitloom's: images (N,Y,X,C), kernels (O,I,KY,KX); a matrix is (outputs, inputs) in mlp and convnet and
(inputs, outputs), as in GPT-2, in transformer. A file has
  x, labels         a batch, labels one per row of logits
  initial.NAME      every parameter
  logits, loss      of the initial net, in training mode
  gradient.NAME     of the mean loss, before clipping
  losses, norms     of ten steps of AdamW on that batch: the loss and the norm of all gradients, before each
  final.NAME        every parameter, and every moving average, after them
  final_logits      of the final net, in evaluation mode
and, as metadata, what the optimiser was told.
"""
import pathlib
import sys

STEPS = 10
# epsilon, of transformer: a bias of keys moves all logits of a query alike, so its gradient is zero but for rounding, and with
# the usual 1e-8 Adam would make steps of ordinary size of that.
OPTIONS = {
    "mlp": {"rate": 0.01, "decay": 0.1, "clip": 0.5, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
    "convnet": {"rate": 0.005, "decay": 0.1, "clip": 1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "transformer": {"rate": 0.003, "decay": 0.1, "clip": 0.5, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-4},
}
# tests/train/test_golden_nets.cpp builds the same nets.
ROWS, INPUTS, HIDDEN, CLASSES = 12, 10, 20, 5  # mlp
IMAGES, SIDE, CHANNELS, WIDTH = 6, 8, 3, 8  # convnet
BATCH, TOKENS, VOCABULARY, MODEL, HEADS = 2, 66, 29, 16, 2  # transformer; more tokens than a block of attention has


class Numbers:
    """Random arrays: normal ones of f32, integers of i32."""

    def __init__(self, seed):
        import numpy

        self.numpy = numpy
        self.random = numpy.random.RandomState(seed)  # the generator whose numbers NumPy promises never to change

    def normal(self, *shape, deviation=1.0, mean=0.0):
        return (mean + deviation * self.random.standard_normal(shape)).astype(self.numpy.float32)

    def below(self, limit, *shape):
        return self.random.randint(0, limit, shape).astype(self.numpy.int32)


def linear(numbers, name, inputs, outputs, transposed):
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    return {f"{name}.weight": numbers.normal(*shape, deviation=inputs**-0.5),
            f"{name}.bias": numbers.normal(outputs, deviation=0.3)}


def norm(numbers, name, channels):
    return {f"{name}.gain": numbers.normal(channels, deviation=0.3, mean=1), f"{name}.bias": numbers.normal(channels, deviation=0.3)}


class Mlp:
    """Linear, layer norm, GELU (twice, the second time added to what went in), linear."""

    def __init__(self):
        numbers = Numbers(1)
        self.x = numbers.normal(ROWS, INPUTS)
        self.labels = numbers.below(CLASSES, ROWS)
        self.buffers = {}
        self.initial = {**linear(numbers, "first", INPUTS, HIDDEN, True), **norm(numbers, "norm1", HIDDEN),
                        **linear(numbers, "second", HIDDEN, HIDDEN, True), **norm(numbers, "norm2", HIDDEN),
                        **linear(numbers, "head", HIDDEN, CLASSES, True)}

    def logits(self, torch, p, x, _training):
        f = torch.nn.functional
        h = f.linear(x, p["first.weight"], p["first.bias"])
        h = f.gelu(f.layer_norm(h, (HIDDEN,), p["norm1.gain"], p["norm1.bias"]))
        branch = f.linear(h, p["second.weight"], p["second.bias"])
        h = h + f.gelu(f.layer_norm(branch, (HIDDEN,), p["norm2.gain"], p["norm2.bias"]))
        return f.linear(h, p["head.weight"], p["head.bias"])


class Convnet:
    """Twice convolution, batch norm, ReLU; max pooling after the first, a stride of two in the second; a linear head."""

    def __init__(self):
        import numpy

        numbers = Numbers(2)
        self.x = numbers.normal(IMAGES, SIDE, SIDE, CHANNELS)
        self.labels = numbers.below(CLASSES, IMAGES)
        self.buffers = {f"norm{i}.{name}": numpy.full(WIDTH, value, numpy.float32)
                        for i in (1, 2) for name, value in (("moving_mean", 0), ("moving_variance", 1))}
        self.initial = {"conv1.weight": numbers.normal(WIDTH, CHANNELS, 3, 3, deviation=0.3), **norm(numbers, "norm1", WIDTH),
                        "conv2.weight": numbers.normal(WIDTH, WIDTH, 3, 3, deviation=0.2), **norm(numbers, "norm2", WIDTH),
                        **linear(numbers, "head", WIDTH * SIDE * SIDE // 16, CLASSES, True)}

    def logits(self, torch, p, x, training):
        f = torch.nn.functional

        def normalised(h, name):
            return f.batch_norm(h, self.buffers[f"{name}.moving_mean"], self.buffers[f"{name}.moving_variance"],
                                p[f"{name}.gain"], p[f"{name}.bias"], training)

        h = f.conv2d(x.permute(0, 3, 1, 2), p["conv1.weight"], padding=1)
        h = f.max_pool2d(f.relu(normalised(h, "norm1")), 2)
        h = f.relu(normalised(f.conv2d(h, p["conv2.weight"], stride=2, padding=1), "norm2"))
        return f.linear(h.permute(0, 2, 3, 1).flatten(1), p["head.weight"], p["head.bias"])


class Transformer:
    """Embeddings of tokens and positions, one pre-norm block with causal attention, layer norm, an untied head."""

    def __init__(self):
        numbers = Numbers(3)
        self.x = numbers.below(VOCABULARY, BATCH, TOKENS)
        self.labels = numbers.below(VOCABULARY, BATCH * TOKENS)
        self.buffers = {}
        self.initial = {"embedding.tokens": numbers.normal(VOCABULARY, MODEL, deviation=0.5),
                        "embedding.positions": numbers.normal(TOKENS, MODEL, deviation=0.5),
                        **norm(numbers, "norm1", MODEL), **linear(numbers, "attention.qkv", MODEL, 3 * MODEL, False),
                        **linear(numbers, "attention.projection", MODEL, MODEL, False), **norm(numbers, "norm2", MODEL),
                        **linear(numbers, "up", MODEL, 2 * MODEL, False), **linear(numbers, "down", 2 * MODEL, MODEL, False),
                        **norm(numbers, "norm3", MODEL), **linear(numbers, "head", MODEL, VOCABULARY, False)}

    def logits(self, torch, p, x, _training):
        f = torch.nn.functional

        def affine(h, name):
            return h @ p[f"{name}.weight"] + p[f"{name}.bias"]

        def normalised(h, name):
            return f.layer_norm(h, (MODEL,), p[f"{name}.gain"], p[f"{name}.bias"])

        h = p["embedding.tokens"][x.long()] + p["embedding.positions"]
        qkv = affine(normalised(h, "norm1"), "attention.qkv").view(BATCH, TOKENS, 3, HEADS, MODEL // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, TOKENS, MODEL)
        h = h + affine(mixed, "attention.projection")
        h = h + affine(f.gelu(affine(normalised(h, "norm2"), "up"), approximate="tanh"), "down")
        return affine(normalised(h, "norm3"), "head").flatten(0, 1)


NETS = {"mlp": Mlp, "convnet": Convnet, "transformer": Transformer}


def train(name, dtype="float64"):
    """Tensors and metadata of the file NAME, computed in `dtype`. Floats come as they were computed."""
    import torch

    net, options = NETS[name](), OPTIONS[name]
    real = getattr(torch, dtype)

    def tensor(array):
        return torch.tensor(array, dtype=real if array.dtype.kind == "f" else torch.int32)

    x, labels = tensor(net.x), torch.tensor(net.labels, dtype=torch.int64)
    found = {"x": net.x, "labels": net.labels}
    found.update({f"initial.{key}": value for key, value in net.initial.items()})
    net.buffers = {key: tensor(value) for key, value in net.buffers.items()}
    parameters = {key: tensor(value).requires_grad_() for key, value in net.initial.items()}
    groups = [{"params": [p for p in parameters.values() if p.dim() > 1], "weight_decay": options["decay"]},
              {"params": [p for p in parameters.values() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options["rate"], betas=(options["beta1"], options["beta2"]), eps=options["epsilon"])
    losses, norms = [], []
    for step in range(STEPS):
        logits = net.logits(torch, parameters, x, True)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            found["logits"] = logits.detach().numpy()
            found["loss"] = loss.detach().numpy().reshape(1)
            found.update({f"gradient.{key}": p.grad.numpy().copy() for key, p in parameters.items()})
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), options["clip"])))
        optimizer.step()
    found["losses"], found["norms"] = (torch.tensor(values, dtype=torch.float64).numpy() for values in (losses, norms))
    found.update({f"final.{key}": p.detach().numpy() for key, p in parameters.items()})
    found.update({f"final.{key}": value.numpy() for key, value in net.buffers.items()})
    found["final_logits"] = net.logits(torch, parameters, x, False).detach().numpy()
    return found, {key: repr(value) for key, value in options.items()}


def main():
    import numpy
    import safetensors.numpy

    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for name in NETS:
        tensors, metadata = train(name)
        stored = {key: value.astype(numpy.float32) if value.dtype.kind == "f" else value for key, value in tensors.items()}
        stored = {key: numpy.ascontiguousarray(value) for key, value in stored.items()}
        safetensors.numpy.save_file(stored, folder / f"{name}.safetensors", metadata)


if __name__ == "__main__":
    main()
