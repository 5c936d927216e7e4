"""PyTorch's twins of the nets of images with captions compute what Bitloom does from its weights, and Bitloom what they do from
theirs."""
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from safetensors import safe_open
from safetensors.numpy import load_file

LIMIT = 1e-4


def run(bitloom, *arguments):
    done = bitloom(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scenes(bitloom):
    run(bitloom, "data", "synth-pairs", "--count", 40, "--side", 32, "--seed", 3, "--out", "scenes")
    return "scenes"


def exported(bitloom, model, folder):
    run(bitloom, "export", model, "--out", folder)
    return bitloom.folder / folder


def our_logits(bitloom, model, *options):
    run(bitloom, "eval", model, "--split", "train", "--logits", "logits.safetensors", "--pairs", 6, *options)
    return load_file(bitloom.folder / "logits.safetensors")


def compute(module, *arguments):
    import torch

    with torch.no_grad():
        return module(*arguments)


def shaken(module, scale=1.0):
    """The module with random weights that all matter: vectors, too, and deviations larger than initial ones."""
    import torch

    torch.manual_seed(2)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if not value.is_floating_point() or name == "log_scale":
                continue
            fan_in = value[0].numel() if value.ndim > 1 else 1
            noise = torch.randn_like(value) / fan_in**0.5
            if name.endswith("running_var"):
                value.copy_(1 + noise.abs())
            else:
                value.add_(scale * noise if value.ndim > 1 else 0.3 * noise)
    return module.eval()


def metadata_of(path):
    with safe_open(path, framework="np") as file:
        return {key: value for key, value in file.metadata().items() if key != "bitloom.xxh3"}


def save_like(module, like, path):
    """The module's state with the metadata and the tokenizer of an export."""
    import safetensors.torch

    state = dict(module.state_dict())
    state.update({name: value for name, value in safetensors.torch.load_file(like).items() if name == "tokenizer"})
    safetensors.torch.save_file(state, path, metadata=metadata_of(like))


def save_halves(encoder, decoder, folder):
    import safetensors.torch

    folder.mkdir()
    for module, name in ((encoder, "encoder"), (decoder, "decoder")):
        safetensors.torch.save_file(module.state_dict(), folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def trained(bitloom, scenes):
    """Run folders of short trainings, by kind, so that no weights are what they began with. The discrete VAE begins with random
    weights under which images have many codes, which a short training from its usual ones would not come to."""
    import torch
    import torch_text_to_image as twins

    torch.manual_seed(1)
    config = {"hidden": 8, "groups": 3, "blocks": 1, "init": 8, "codes": 32}  # those of the net "tiny"
    save_halves(shaken(twins.Encoder(config), 2), shaken(twins.Decoder(config), 2), bitloom.folder / "first")
    run(bitloom, "import", "dvae", "first", "--side", 16, "--out", "first.safetensors")
    common = ("--data", scenes, "--net", "tiny", "--batch", 12, "--average", 0)
    run(bitloom, "train", "dvae", *common, "--steps", 3, "--init", "first.safetensors", "--out", "of-dvae")
    run(bitloom, "train", "dalle", *common, "--steps", 30, "--dvae", "of-dvae", "--text-positions", 24, "--layers", 6,
        "--out", "of-dalle")
    run(bitloom, "train", "clip", *common, "--steps", 30, "--side", 16, "--learning-rate", 0.01, "--out", "of-clip")
    return {kind: f"of-{kind}" for kind in ("dvae", "dalle", "clip")}


def assert_near(ours, theirs, deviation=0.05):
    theirs = theirs.numpy()
    assert ours.shape == theirs.shape
    assert np.isfinite(ours).all() and theirs.std() > deviation, "numbers that say nothing"
    error = np.abs(ours - theirs).max()
    assert error < LIMIT, f"they differ by {error}"


def assert_same_dvae(found, encoder, decoder):
    import torch
    import torch_text_to_image as twins

    codes = torch.from_numpy(found["codes"]).long()
    logits = compute(encoder, twins.map_pixels(found["images"])).permute(0, 2, 3, 1)
    one_hot = torch.nn.functional.one_hot(codes, logits.shape[3]).permute(0, 3, 1, 2).float()
    assert_near(found["logits"], logits)
    assert_near(found["maps"], compute(decoder, one_hot).permute(0, 2, 3, 1))
    assert (found["logits"].argmax(3) == found["codes"]).all()
    assert len(np.unique(found["codes"])) > 1


def assert_same_dalle(found, module):
    import torch

    codes = torch.from_numpy(found["codes"]).long().flatten(1)
    text, image = compute(module, torch.from_numpy(found["text"]).long(), codes)
    assert (found["text"] == -1).any(), "no padding"
    assert_near(found["text_logits"], text)
    assert_near(found["image_logits"], image)


def assert_same_clip(found, module):
    import torch

    theirs = compute(module, found["images"], torch.from_numpy(found["texts"]).long())
    assert_near(found["similarities"], theirs)


@pytest.mark.torch
def test_pytorch_computes_what_a_trained_discrete_vae_does(bitloom, trained):
    import torch_text_to_image as twins

    folder = exported(bitloom, trained["dvae"], "dvae-exported")
    encoder, decoder = (twins.load(folder / f"{half}.safetensors") for half in ("encoder", "decoder"))
    assert isinstance(encoder, twins.Encoder) and isinstance(decoder, twins.Decoder)
    assert_same_dvae(our_logits(bitloom, trained["dvae"]), encoder, decoder)
    # There and back: the same model.
    run(bitloom, "import", "dvae", folder, "--out", "dvae-back.safetensors")
    again, first = (load_file(bitloom.folder / name) for name in ("dvae-back.safetensors", "of-dvae/model.safetensors"))
    assert again.keys() == first.keys()
    assert all(np.array_equal(again[name], first[name]) for name in first)


@pytest.mark.torch
def test_bitloom_computes_what_a_discrete_vae_of_pytorch_does(bitloom, scenes):
    """Files without metadata, of other sizes than any named net's: shapes tell all of them but the side of images."""
    import safetensors.torch
    import torch
    import torch_text_to_image as twins

    torch.manual_seed(1)
    config = {"hidden": 12, "groups": 3, "blocks": 3, "init": 7, "codes": 21}
    encoder, decoder = shaken(twins.Encoder(config)), shaken(twins.Decoder(config))
    folder = bitloom.folder / "theirs"
    save_halves(encoder, decoder, folder)
    for module, name in ((encoder, "encoder"), (decoder, "decoder")):
        torch.save(module, folder / f"{name}.pkl")
    both = {f"{name}.{key}": value for name, module in (("encoder", encoder), ("decoder", decoder))
            for key, value in module.state_dict().items()}
    safetensors.torch.save_file(both, folder / "both.safetensors")
    # The twins as the published modules come, pickled.
    subprocess.run([sys.executable, ROOT / "scripts/torch_text_to_image.py", "convert", folder / "encoder.pkl",
                    folder / "decoder.pkl", folder / "converted"], check=True)
    for number, source in enumerate([[folder], [folder / "encoder.safetensors", folder / "decoder.safetensors"],
                                     [folder / "both.safetensors"], [folder / "converted"]]):
        run(bitloom, "import", "dvae", *source, "--side", 24, "--out", f"dvae-{number}.safetensors")
    files = [(bitloom.folder / f"dvae-{number}.safetensors").read_bytes() for number in range(4)]
    assert files.count(files[0]) == 4
    assert_same_dvae(our_logits(bitloom, "dvae-0.safetensors", "--data", scenes), encoder, decoder)


@pytest.mark.torch
def test_the_published_size_is_the_paper_s(bitloom):
    """The parameters of openai/DALL-E's modules, counted by their published sizes."""
    import torch
    import torch_text_to_image as twins

    config = {"hidden": 256, "groups": 4, "blocks": 2, "init": 128, "codes": 8192}
    with torch.device("meta"):
        encoder, decoder = twins.Encoder(config), twins.Decoder(config)
    assert [sum(value.numel() for value in module.parameters()) for module in (encoder, decoder)] == [53786240, 43829766]


@pytest.mark.torch
def test_masks_of_the_published_size_have_as_many_pairs_as_the_paper_s(bitloom):
    """Of 32 x 32 image tokens; tests/nn/test_attention_mask.cpp has the same numbers."""
    import torch_text_to_image as twins

    pairs = {kind: twins.image_mask(kind, 256, 32, 11)[256:, 256:].sum().item() for kind in ("row", "column", "convolutional")}
    assert pairs == {"row": 33264, "column": 16896, "convolutional": 57169}


@pytest.mark.torch
def test_pytorch_computes_what_a_trained_transformer_does(bitloom, trained):
    import torch_text_to_image as twins

    folder = exported(bitloom, trained["dalle"], "dalle-exported")
    module = twins.load(folder / "model.safetensors")
    assert_same_dalle(our_logits(bitloom, trained["dalle"]), module)


@pytest.mark.torch
def test_bitloom_computes_what_a_transformer_of_pytorch_does(bitloom, scenes, trained):
    import torch_text_to_image as twins

    like = exported(bitloom, trained["dalle"], "dalle-like") / "model.safetensors"
    module = shaken(twins.load(like), 2)
    save_like(module, like, bitloom.folder / "dalle-theirs.safetensors")
    run(bitloom, "import", "dalle", "dalle-theirs.safetensors", "--out", "dalle-imported.safetensors")
    found = our_logits(bitloom, "dalle-imported.safetensors", "--data", scenes, "--dvae", trained["dvae"])
    assert_same_dalle(found, module)
    # Other masks would be noticed.
    module.mask_of = lambda layer: twins.image_mask("row", module.text, module.grid, 3)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_dalle(found, module)


@pytest.mark.torch
def test_pytorch_computes_what_a_trained_contrastive_model_does(bitloom, trained):
    import torch_text_to_image as twins

    folder = exported(bitloom, trained["clip"], "clip-exported")
    assert_same_clip(our_logits(bitloom, trained["clip"]), twins.load(folder / "model.safetensors"))


@pytest.mark.torch
def test_bitloom_computes_what_a_contrastive_model_of_pytorch_does(bitloom, scenes, trained):
    import torch_text_to_image as twins

    like = exported(bitloom, trained["clip"], "clip-like") / "model.safetensors"
    module = shaken(twins.load(like), 2)
    save_like(module, like, bitloom.folder / "clip-theirs.safetensors")
    run(bitloom, "import", "clip", "clip-theirs.safetensors", "--out", "clip-imported.safetensors")
    assert_same_clip(our_logits(bitloom, "clip-imported.safetensors", "--data", scenes), module)
