"""The ops of bench/op_workloads.h in PyTorch: for every name a function of a type that makes tensors and returns a pass over them.

PyTorch has each op in the form and the layout that it is best in: weights as its Linear has them, images channels-last, results
written to existing memory where an op can. Backward passes are called without autograd where PyTorch has them as an op.
"""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import torch_text_to_image

# As bench/op_workloads.h and op_workloads_images.cpp.
SEQUENCES, TOKENS, WIDTH, HEADS = 4, 256, 768, 12
ROWS, HIDDEN, VOCABULARY, COLUMNS = SEQUENCES * TOKENS, 4 * WIDTH, 50257, 50304
IMAGES, SIDE, CHANNELS = 16, 32, 64

aten = torch.ops.aten
functional = torch.nn.functional


def normal(dtype, *shape):
    return torch.randn(*shape).to(dtype)


def linear(inputs, outputs, rows=ROWS, bias=True):
    """Forward, data and weights of y (R,O) = x (R,I) w (O,I)^T + b."""

    def forward(dtype):
        x, w, y = normal(dtype, rows, inputs), normal(dtype, outputs, inputs), torch.empty(rows, outputs, dtype=dtype)
        if bias:
            b = normal(dtype, outputs)
            return lambda: torch.addmm(b, x, w.t(), out=y)
        return lambda: torch.mm(x, w.t(), out=y)

    def data(dtype):
        dy, w, dx = normal(dtype, rows, outputs), normal(dtype, outputs, inputs), torch.empty(rows, inputs, dtype=dtype)
        return lambda: torch.mm(dy, w, out=dx)

    def weights(dtype):
        x, dy, dw = normal(dtype, rows, inputs), normal(dtype, rows, outputs), torch.empty(outputs, inputs, dtype=dtype)
        return lambda: torch.mm(dy.t(), x, out=dw)

    return {"forward": forward, "data": data, "weights": weights}


def linear_gelu(dtype):
    x, w, b = normal(dtype, ROWS, WIDTH), normal(dtype, HIDDEN, WIDTH), normal(dtype, HIDDEN)
    return lambda: functional.gelu(functional.linear(x, w, b))


def attention(sequences, tokens, backward, mask=None):
    def make(dtype):
        def part():
            return normal(dtype, sequences, tokens, HEADS, WIDTH // HEADS).transpose(1, 2).requires_grad_(backward)

        q, k, v, dout = part(), part(), part(), part().detach()

        def both():
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            if backward:
                torch.autograd.grad(out, (q, k, v), dout)

        return both

    return make


def gelu(approximate):
    def forward(dtype):
        x, y = normal(dtype, ROWS, HIDDEN), torch.empty(ROWS, HIDDEN, dtype=dtype)
        return lambda: aten.gelu.out(x, approximate=approximate, out=y)

    def backward(dtype):
        x, dy = normal(dtype, ROWS, HIDDEN), normal(dtype, ROWS, HIDDEN)
        dx = torch.empty(ROWS, HIDDEN, dtype=dtype)
        return lambda: aten.gelu_backward.grad_input(dy, x, approximate=approximate, grad_input=dx)

    return forward, backward


def residual_add(dtype):
    a, b, y = (normal(dtype, ROWS, WIDTH) for _ in range(3))
    return lambda: torch.add(a, b, out=y)


def dropout(dtype):
    x = normal(dtype, ROWS, WIDTH)
    return lambda: functional.dropout(x, 0.1, training=True)


def block_shapes():
    return [(WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH), (HIDDEN,), *[(WIDTH,)] * 6]


def adamw(dtype):
    parameters = [torch.nn.Parameter(0.02 * torch.randn(shape)) for shape in block_shapes()]
    for parameter in parameters:
        parameter.grad = 1e-3 * torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1, fused=True)
    if dtype == torch.float32:
        return optimizer.step
    copies = [parameter.detach().to(dtype) for parameter in parameters]

    def step():
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(copies, parameters)

    return step


def gradient_norm(_dtype):
    gradients = [torch.randn(shape) for shape in block_shapes()]
    return lambda: float(torch.nn.utils.get_total_norm(gradients))


def layer_norm(dtype):
    x, gain, bias = normal(dtype, ROWS, WIDTH), normal(dtype, WIDTH), normal(dtype, WIDTH)
    return lambda: functional.layer_norm(x, (WIDTH,), gain, bias)


def layer_norm_backward(dtype):
    x, dy, gain, bias = normal(dtype, ROWS, WIDTH), normal(dtype, ROWS, WIDTH), normal(dtype, WIDTH), normal(dtype, WIDTH)
    _, mean, rstd = aten.native_layer_norm(x, (WIDTH,), gain, bias, 1e-5)
    return lambda: aten.native_layer_norm_backward(dy, x, (WIDTH,), mean, rstd, gain, bias, [True] * 3)


def softmax(dtype):
    x = normal(dtype, HEADS * ROWS, TOKENS)
    y = torch.empty_like(x)
    return lambda: aten._softmax.out(x, -1, False, out=y)


def softmax_backward(dtype):
    y, dy = normal(dtype, HEADS * ROWS, TOKENS).softmax(-1), normal(dtype, HEADS * ROWS, TOKENS)
    dx = torch.empty_like(y)
    return lambda: aten._softmax_backward_data.out(dy, y, -1, dtype, grad_input=dx)


def cross_entropy(dtype):
    """What functional.cross_entropy and its backward pass call, in existing memory; PyTorch has no padded columns."""
    logits, targets = 3 * normal(dtype, ROWS, VOCABULARY), torch.randint(0, VOCABULARY, (ROWS,))
    logarithms, dlogarithms, dlogits = (torch.empty_like(logits) for _ in range(3))
    loss, weight, one = (torch.ones((), dtype=dtype) for _ in range(3))
    mean, ignored = 1, -100

    def both():
        aten._log_softmax.out(logits, 1, False, out=logarithms)
        aten.nll_loss_forward.output(logarithms, targets, None, mean, ignored, output=loss, total_weight=weight)
        aten.nll_loss_backward.grad_input(one, logarithms, targets, None, mean, ignored, weight, grad_input=dlogarithms)
        aten._log_softmax_backward_data.out(dlogarithms, logarithms, 1, dtype, out=dlogits)

    return both


def bias_gradient(dtype):
    dy, sums = normal(dtype, ROWS, HIDDEN), torch.empty(HIDDEN, dtype=dtype)
    return lambda: torch.sum(dy, 0, out=sums)


def embedding(dtype):
    table, tokens = normal(dtype, VOCABULARY, WIDTH), torch.randint(0, VOCABULARY, (ROWS,))
    return lambda: functional.embedding(tokens, table)


def embedding_backward(dtype):
    """Adds to the gradient, as ours; embedding_dense_backward would fill the table with zeros first."""
    dtable, tokens, dy = torch.zeros(VOCABULARY, WIDTH, dtype=dtype), torch.randint(0, VOCABULARY, (ROWS,)), normal(dtype, ROWS, WIDTH)
    return lambda: dtable.index_add_(0, tokens, dy)


def maps(dtype, side=SIDE):
    return normal(dtype, IMAGES, CHANNELS, side, side).to(memory_format=torch.channels_last)


def kernels(dtype):
    return normal(dtype, CHANNELS, CHANNELS, 3, 3).to(memory_format=torch.channels_last)


def convolution(dtype):
    x, w, b = maps(dtype), kernels(dtype), normal(dtype, CHANNELS)
    return lambda: functional.conv2d(x, w, b, padding=1)


def convolution_backward(data):
    def make(dtype):
        x, dy, w = maps(dtype), maps(dtype), kernels(dtype)
        wanted = [data, not data, False]
        return lambda: aten.convolution_backward(dy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, wanted)

    return make


def batch_norm(dtype):
    x, gain, bias = maps(dtype), torch.randn(CHANNELS), torch.randn(CHANNELS)
    return lambda: aten.native_batch_norm(x, gain, bias, None, None, True, 0.1, 1e-5)


def batch_norm_backward(dtype):
    x, dy, gain, bias = maps(dtype), maps(dtype), torch.randn(CHANNELS), torch.randn(CHANNELS)
    _, mean, rstd = aten.native_batch_norm(x, gain, bias, None, None, True, 0.1, 1e-5)
    return lambda: aten.native_batch_norm_backward(dy, x, gain, None, None, mean, rstd, True, 1e-5, [True] * 3)


def max_pool(dtype):
    x = maps(dtype)
    return lambda: aten.max_pool2d_with_indices(x, [2, 2])


def max_pool_backward(dtype):
    x, dy = maps(dtype), maps(dtype, SIDE // 2)
    _, which = aten.max_pool2d_with_indices(x, [2, 2])
    return lambda: aten.max_pool2d_with_indices_backward(dy, x, [2, 2], [2, 2], [0, 0], [1, 1], False, which)


def upsample(dtype):
    x = maps(dtype, SIDE // 2)
    return lambda: aten.upsample_nearest2d(x, [SIDE, SIDE])


def upsample_backward(dtype):
    dy = maps(dtype)
    return lambda: aten.upsample_nearest2d_backward(dy, [SIDE, SIDE], [IMAGES, CHANNELS, SIDE // 2, SIDE // 2])


def passes():
    """Name of the op -> function of a type."""
    exact, by_tanh, logits = gelu("none"), gelu("tanh"), linear(WIDTH, COLUMNS, bias=False)
    all_passes = {f"{inputs}->{outputs} {what}": make
                  for inputs, outputs in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
                  for what, make in linear(inputs, outputs).items()}
    all_passes |= {f"logits {what}": make for what, make in logits.items()}
    all_passes |= {f"attention {sequences}x{tokens}, {what}": attention(sequences, tokens, what == "both")
                   for sequences, tokens in ((SEQUENCES, TOKENS), (1, 1024)) for what in ("forward", "both")}
    # Masks of 256 text and 32 x 32 image tokens. Columns one after the other are the same pairs in another order, by which
    # PyTorch, which looks at all of them, gains nothing.
    masks = {kind: torch_text_to_image.image_mask(kind, 256, 32, 11) for kind in ("row", "column", "convolutional")}
    masks |= {"causal": None, "column by column": masks["column"]}
    all_passes |= {f"attention 256+32x32 {kind}, both": attention(1, 1280, True, mask) for kind, mask in masks.items()}
    return all_passes | {
        f"{WIDTH}->{HIDDEN} forward, GELU": linear_gelu,
        "GELU, forward": exact[0], "GELU, backward": exact[1],
        "GELU tanh, forward": by_tanh[0], "GELU tanh, backward": by_tanh[1],
        "GELU 3 bits, forward": exact[0], "GELU 3 bits, backward": exact[1],  # PyTorch keeps all bits
        "residual add": residual_add, "dropout": dropout, "AdamW": adamw, "gradient norm": gradient_norm,
        "layer norm, forward": layer_norm, "layer norm, backward": layer_norm_backward,
        "softmax, forward": softmax, "softmax, backward": softmax_backward, "cross-entropy, both": cross_entropy,
        "bias gradient": bias_gradient, "embedding, forward": embedding, "embedding, backward": embedding_backward,
        "convolution forward": convolution, "convolution data": convolution_backward(True),
        "convolution weights": convolution_backward(False),
        "batch norm, forward": batch_norm, "batch norm, backward": batch_norm_backward,
        "max pooling, forward": max_pool, "max pooling, backward": max_pool_backward,
        "upsampling, forward": upsample, "upsampling, backward": upsample_backward,
    }
