"""A step of PowerSGD with a warm start is that of PyTorch's hook, told by the checkpoints before and after it."""
import numpy as np
import pytest
from gpts import TEXT
from safetensors.numpy import load_file

RANK = 4
# Its means are the gradients then.
NET = ["--tokenizer", "bytes", "--layers", 2, "--heads", 2, "--width", 32, "--context", 32, "--batch", 4, "--dropout", 0, "--beta1", 0,
       "--clip", 0]


@pytest.fixture(scope="module")
def checkpoint_of(bitloom):
    (bitloom.folder / "power-sgd.txt").write_text(TEXT * 20, encoding="utf-8")

    def train(name, *options):
        done = bitloom("train", "gpt", "--out", name, *options)
        assert done.returncode == 0, done.stderr
        return load_file(bitloom.folder / name / "checkpoint.safetensors")

    return train


@pytest.fixture(scope="module")
def steps(checkpoint_of):
    """The checkpoints after a first step by whole gradients, by factors, and after two more steps by these."""
    begin = ["--data", "power-sgd.txt", *NET, "--steps", 1]
    whole = checkpoint_of("whole-gradients", *begin)
    factors = ["--compress-rank", RANK, "--compress-start", "warm"]
    return [whole, checkpoint_of("factors", *begin, *factors),
            *(checkpoint_of("factors", "--resume", "--steps", count) for count in (2, 3))]


def matrices(checkpoint):
    """By the names of those that go by factors: the gradient that the last step took, the error buffer and the last Q."""
    prefix = "power_sgd.query."
    names = [name.removeprefix(prefix) for name in checkpoint if name.startswith(prefix)]
    assert len(names) == 2 * 4
    return {name: [checkpoint[kind + name] for kind in ("optimizer.mean.", "power_sgd.error.", prefix)] for name in names}


def relative(difference, size):
    return np.linalg.norm(difference) / np.linalg.norm(size)


def test_buffers_keep_what_factors_lack(steps):
    whole, first = steps[:2]
    for name, (taken, error, _) in matrices(first).items():
        gradient = whole["optimizer.mean." + name]
        assert relative(error, gradient) > 0.1, f"{name} has a rank that says nothing"
        assert relative(taken + error - gradient, gradient) < 1e-5, name


@pytest.fixture(scope="module")
def group():
    """A process alone."""
    import torch.distributed

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Bucket:
    """One gradient, as DistributedDataParallel hands it to the hook."""

    def __init__(self, gradient):
        import torch

        self.gradient = torch.tensor(gradient)

    def buffer(self):
        return self.gradient.view(-1)

    def gradients(self):
        return [self.gradient]

    def index(self):
        return 0

    def is_last(self):
        return True


def step_by_torch(gradient, error, query):
    """The gradient, error buffer, P and Q that its hook makes of them."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    state.iter = state.start_powerSGD_iter
    state.error_dict[0] = torch.tensor(error).view(-1)
    state.p_memory_dict[0] = torch.empty(len(gradient) * RANK)
    state.q_memory_dict[0] = torch.tensor(query).view(-1)
    bucket = Bucket(gradient)
    taken = powerSGD_hook.powerSGD_hook(state, bucket).wait().view(gradient.shape)
    factors = [memory[0].view(-1, RANK).numpy() for memory in (state.p_memory_dict, state.q_memory_dict)]
    return taken.numpy(), state.error_dict[0].view(gradient.shape).numpy(), *factors


@pytest.mark.torch
@pytest.mark.parametrize("number", [2, 3])
def test_a_step_is_that_of_torch(steps, group, number):
    before, after = matrices(steps[number - 1]), matrices(steps[number])
    for name, (taken, error, query) in after.items():
        _, old_error, old_query = before[name]
        gradient = taken + error - old_error
        their_taken, their_error, their_p, their_query = step_by_torch(gradient, old_error, old_query)
        # Their P is of a QR decomposition, which leaves signs of columns open.
        signs = np.sign(np.sum(query * their_query, axis=0))
        p = np.linalg.lstsq(query, taken.T, rcond=None)[0].T  # of P Q^T
        for kind, ours, theirs in (("gradient", taken, their_taken), ("error", error, their_error), ("P", p, signs * their_p),
                                   ("Q", query, signs * their_query)):
            assert relative(ours - theirs, theirs) < 1e-5, f"{kind} of {name}"
