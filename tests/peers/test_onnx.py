"""onnxruntime, and the standard's own reference in numpy, compute from exported binary nets what Bitloom does: logits bit by bit,
against scripts/read_model.py."""
import json

import numpy as np
import onnx.reference
import onnxruntime
import pytest
from conftest import train
from read_model import Model

TERNARY = ["layer1.weights=ternary", "layer2.weights=ternary"]
SETTINGS = {
    "hidden": [],
    "class_conv": ["head.kind=class_conv", "layer2.pool=majority", "net.mirror=false"],
    # Channels that do not fill words, cells of several sizes, weights and masks that do not fill bytes.
    "ternary": [*TERNARY, "layer1.width=80", "layer2.width=69", "head.kind=linear", "head.grid=3", "encoder.kind=thermometer",
                "layer2.pool=and"],
    "thresholds": ["layer1.thresholds=2", "layer2.thresholds=3", "layer1.width=40"],
    "thresholds in depth": ["layer1.width=40", "layer1.thresholds=3", "layer2.pool=space_to_depth"],
    "thresholds and zeros": ["layer1.thresholds=2", "layer2.thresholds=2", "layer2.weights=ternary", "layer2.pool=majority"],
    "shifted": ["net.shift=3", "layer1.width=70", "layer2.pool=space_to_depth", "layer2.stride=2", "layer2.kernel=5",
                "encoder.contrast=0"],
    # Sums of its filters exceed 2^24, those of squares too.
    "large_patches": ["encoder.patch=11", "encoder.filters=33", "head.kind=class_conv", "head.kernel=5", "layer1.width=33"],
}
# Skip connections: maps reduced by 4, 2 and 1 meet.
SKIPS = {"name": "skips", "shift": 1,
         "layers": [{"name": "a", "inputs": ["input"], "width": 65, "padding": 0, "kernel": 1},
                    {"name": "b", "inputs": ["a", "input"], "pool": "%s", "width": 130},
                    {"name": "c", "inputs": ["b", "a", "input"], "pool": "%s", "width": 40},
                    {"name": "d", "inputs": ["c", "input"], "width": 64, "padding": 3, "kernel": 4, "stride": 3}],
         "stages": [{"name": "a", "train": ["a", "b"], "heads": ["a", "b"], "head": {"kind": "linear"}},
                    {"name": "c", "train": ["c"], "head": {"kind": "class_conv"}},
                    {"name": "d", "train": ["d"], "head": {"kind": "hidden", "grid": 2, "hidden": 16}}],
         "classifier": ["b", "c", "d"]}


def export(bitloom, model, out):
    done = bitloom("export", model, "--to", "onnx", "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out}: ONNX"), done.stdout
    return bitloom.folder / out


def session(path, optimised=True):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def forms_of(model, images):
    """The forms of images in the order of FORMAT.md's section 7."""
    far = model.net.get("shift", 0)
    height, width = images.shape[2:]
    padded = np.pad(images, ((0, 0), (0, 0), (far, far), (far, far)), mode="reflect")
    for down, across in [(0, 0), (far, 0), (-far, 0), (0, far), (0, -far)][:5 if far else 1]:
        moved = padded[:, :, far + down:far + down + height, far + across:far + across + width]
        yield from [moved, moved[..., ::-1]][:2 if model.net["mirror"] else 1]


def hard_images(images):
    """Also noise, which has the largest sums, and images without contrast."""
    shape = images.shape[1:]
    noise = np.random.default_rng(5).integers(0, 2, (3, *shape), np.uint8) * np.uint8(255)
    flat = np.broadcast_to(np.array([0, 77, 255], np.uint8).reshape(3, 1, 1, 1), (3, *shape))
    return np.concatenate([images, noise, flat])


def compare(path, model_file, images, reference=False):
    """The reference of the standard is slow: it sees a few images."""
    model = Model(model_file)
    images = hard_images(images)
    expected = np.stack([model.head(name, maps[name])
                         for form in forms_of(model, images) for maps in [model.maps(form)] for name in model.net["classifier"]],
                        axis=1)
    scores = model.scores(images)
    assert expected.std() > 0.1 and len(np.unique(scores.argmax(axis=1))) > 1, "the logits say nothing"
    every = slice(None)
    runs = [(session(path).run, every), (session(path, optimised=False).run, every)]
    if reference:
        runs.append((onnx.reference.ReferenceEvaluator(onnx.load(path)).run, slice(0, None, 7)))
    for run, some in runs:
        found_scores, found = run(["scores", "logits"], {"image": images[some]})
        assert found.dtype == np.float32 and found.shape == expected[some].shape
        assert (found == expected[some]).all(), f"{(found != expected[some]).mean():.2%} of the logits differ"
        assert found_scores.dtype == np.float32 and np.allclose(found_scores, scores[some], rtol=1e-6, atol=1e-6)
        assert (found_scores.argmax(axis=1) == scores[some].argmax(axis=1)).all()


def check_file(path, model_file):
    """Standard operators, names of classes, one vote for each row of logits, weights in bits."""
    net = onnx.load(path)
    onnx.checker.check_model(net, full_check=True)
    assert net.ir_version == 8 and [(each.domain, each.version) for each in net.opset_import] == [("", 17)]
    assert net.producer_name == "bitloom" and {node.domain for node in net.graph.node} == {""}
    model = Model(model_file)
    height, width, colours = model.image_shape
    metadata = {each.key: json.loads(each.value) for each in net.metadata_props}
    assert metadata["classes"] == model.classes
    shapes = {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
              for value in [*net.graph.input, *net.graph.output]}
    votes = metadata["votes"]
    assert [vote["layer"] for vote in votes[:len(model.net["classifier"])]] == model.net["classifier"]
    assert [each.name for each in net.graph.output] == ["scores", "logits"]
    assert shapes == {"image": ["N", colours, height, width], "scores": ["N", len(model.classes)],
                      "logits": ["N", len(votes), len(model.classes)]}
    rounded = sum(model.tensors[name.removesuffix("_step")].size for name in model.tensors if name.endswith("_step"))
    bits = model.net.get("head_bits", 4)
    grown = rounded * ((8 if bits <= 8 else 16) - bits) // 8  # weights of heads have whole bytes here
    assert path.stat().st_size < 1.3 * (model_file.stat().st_size + grown) + 16384


@pytest.mark.parametrize("which", SETTINGS)
def test_nets(bitloom, images, which):
    options = [part for setting in SETTINGS[which] for part in ("--set", setting)]
    model_file = train(bitloom, "onnx-" + which, *options)
    if which == "large_patches":
        filters = Model(model_file).tensors["encoder.filters"].astype(int)
        assert 255 * np.abs(filters).sum(axis=(1, 2, 3)).max() > 2**24 and 65025 * filters[0].size > 2**24
    path = export(bitloom, "onnx-" + which, which + ".onnx")
    check_file(path, model_file)
    compare(path, model_file, images[0], reference=True)


@pytest.mark.parametrize("pool", ["or", "and", "majority", "space_to_depth"])
@pytest.mark.parametrize("thresholds", [1, 2])
def test_skip_connections(bitloom, images, pool, thresholds):
    name = f"skips-{pool}-{thresholds}"
    net = json.loads(json.dumps(SKIPS).replace("%s", pool))
    net["layers"][0]["thresholds"] = thresholds
    (bitloom.folder / f"{name}.json").write_text(json.dumps(net))
    model_file = train(bitloom, name, net=f"./{name}.json")
    path = export(bitloom, name, name + ".onnx")
    check_file(path, model_file)
    compare(path, model_file, images[0])


def test_channels_without_counts_have_a_centre(bitloom, images, ternary_model_file):
    """A file may say so, though training leaves it at 0: the sums of a head have it, too."""
    import safetensors  # the header has to stay as it is but for the checksum, which then is gone
    from safetensors.numpy import load_file, save_file
    tensors = load_file(ternary_model_file)
    with safetensors.safe_open(ternary_model_file, framework="numpy") as file:
        metadata = file.metadata()
    metadata.pop("bitloom.xxh3")
    centre = tensors["layer2.head.centre"].copy()
    assert len(centre) == 16 * 128 and (centre.reshape(16, 128)[:, 80:] == 0).all()
    centre += np.arange(len(centre), dtype=np.int16) % 7
    tensors["layer2.head.centre"] = centre
    changed = bitloom.folder / "centre.safetensors"
    save_file(tensors, changed, metadata)
    compare(export(bitloom, changed, "centre.onnx"), changed, images[0])


def test_as_the_program_classifies(bitloom, images, model_file):
    pixels, files = images
    scores, = session(export(bitloom, model_file, "run.onnx")).run(["scores"], {"image": pixels})
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    classes = Model(model_file).classes
    for line, row in zip(bitloom.lines_of_json("predict", model_file, *files, "--jsonl"), probabilities, strict=True):
        assert [line["probabilities"][name] for name in classes] == pytest.approx(row.tolist(), abs=1e-5)


def test_the_same_file_every_time_and_any_batch(bitloom, images, model_file):
    first, second = (export(bitloom, model_file, name) for name in ("first.onnx", "second.onnx"))
    assert first.read_bytes() == second.read_bytes()
    net = session(first)
    together, = net.run(["scores"], {"image": images[0]})
    alone = [net.run(["scores"], {"image": image[None]})[0][0] for image in images[0]]
    assert (together == np.stack(alone)).all()


def test_refusals(bitloom, model_file):
    def refuses(code, text, *options):
        done = bitloom("export", model_file, *options)
        assert done.returncode == code and text in done.stderr, done.stderr

    refuses(2, "--to: 'tensorflow'; expected c or onnx or qonnx", "--to", "tensorflow", "--out", "a.onnx")
    refuses(2, "--out: missing", "--to", "onnx")
    refuses(5, "nowhere/a.onnx", "--to", "onnx", "--out", "nowhere/a.onnx")
