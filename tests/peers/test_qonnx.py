"""The package qonnx takes exported binary nets through its transformations and computes from them what Bitloom does: logits bit by bit,
against scripts/read_model.py."""
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import train
from qonnx.core.datatype import DataType
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.core.onnx_exec import execute_onnx
from qonnx.transformation.infer_datatypes import InferDataTypes
from qonnx.transformation.infer_shapes import InferShapes
from qonnx.util.cleanup import cleanup_model
from read_model import Model
from test_onnx import SETTINGS, SKIPS, TERNARY, forms_of, hard_images

DOMAIN = "qonnx.custom_op.general"
CASES = {**SETTINGS, "ternary_majority": [*TERNARY, "layer2.pool=majority", "layer2.padding=0", "net.mirror=false"]}


def export(bitloom, model, out, *options):
    done = bitloom("export", model, "--to", "qonnx", "--out", out, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out}: QONNX"), done.stdout
    return bitloom.folder / out


def inferred(path):
    return ModelWrapper(str(path)).transform(InferShapes())


def expected_logits(model, images):
    return np.stack([model.head(name, maps[name])
                     for form in forms_of(model, images) for maps in [model.maps(form)] for name in model.net["classifier"]],
                    axis=1)


def compare(path, model_file, images):
    """Before and after the package's own cleanup."""
    model = Model(model_file)
    images = hard_images(images)[[0, -4]]  # one of noise
    expected, scores = expected_logits(model, images), model.scores(images)
    assert expected.std() > 0.1, "the logits say nothing"
    first = inferred(path)
    for net in [first, cleanup_model(ModelWrapper(str(path)))]:
        given, = net.graph.input
        for image, logits, score in zip(images, expected, scores, strict=True):
            found = list(execute_onnx(net, {given.name: image[None]}).values())
            assert np.array_equal(found[1], logits[None]) and found[1].dtype == np.float32
            assert np.allclose(found[0], score[None], rtol=1e-6, atol=1e-6)


def check_file(path, model_file):
    net = onnx.load(path)
    assert {(each.domain, each.version) for each in net.opset_import} == {("", 17), (DOMAIN, 1)}
    quantized = {node.op_type for node in net.graph.node if node.domain == DOMAIN}
    ternary = any(layer["weights"] == "ternary" for layer in Model(model_file).net["layers"])
    assert quantized == ({"BipolarQuant", "Quant"} if ternary else {"BipolarQuant"})
    # Every convolution of a layer is one of numbers that the package knows to be 1 and -1, or integers of two bits.
    typed = inferred(path).transform(InferDataTypes())
    weights = [typed.get_tensor_datatype(node.input[1]) for node in typed.graph.node
               if node.op_type == "Conv" and "encoder" not in node.name]
    assert len(weights) >= 2 and set(weights) <= {DataType["BIPOLAR"], DataType["INT2"]}
    maps = [typed.get_tensor_datatype(node.output[0]) for node in typed.graph.node
            if node.op_type == "BipolarQuant" and typed.get_initializer(node.input[0]) is None]
    assert len(maps) > len(weights) and set(maps) == {DataType["BIPOLAR"]}


@pytest.mark.parametrize("which", CASES)
def test_nets(bitloom, images, which):
    options = [part for setting in CASES[which] for part in ("--set", setting)]
    model_file = train(bitloom, "qonnx-" + which, *options)
    path = export(bitloom, "qonnx-" + which, which + ".qonnx")
    check_file(path, model_file)
    compare(path, model_file, images[0])


@pytest.mark.parametrize("pool", ["or", "and", "majority", "space_to_depth"])
def test_skip_connections(bitloom, images, pool):
    """Without views, which make the package slow."""
    name = "qonnx-skips-" + pool
    (bitloom.folder / f"{name}.json").write_text(json.dumps({**SKIPS, "shift": 0, "mirror": False}).replace("%s", pool))
    model_file = train(bitloom, name, net=f"./{name}.json")
    path = export(bitloom, name, name + ".qonnx")
    check_file(path, model_file)
    compare(path, model_file, images[0])


def test_as_onnx_computes_without_views(bitloom, images, model_file):
    """For one image at a time; both files have the same names of inputs and outputs."""
    net = inferred(export(bitloom, model_file, "single.qonnx", "--mirror", "off"))
    assert [dim.dim_value for dim in net.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 32, 32]
    assert bitloom("export", model_file, "--mirror", "off", "--out", "single.onnx").returncode == 0
    theirs = onnxruntime.InferenceSession(bitloom.folder / "single.onnx", providers=["CPUExecutionProvider"])
    classes = set()
    for image in images[0]:
        found = execute_onnx(net, {"image": image[None]})
        for name, value in zip(["scores", "logits"], theirs.run(["scores", "logits"], {"image": image[None]}), strict=True):
            assert np.array_equal(found[name], value)
        classes.add(int(found["scores"].argmax()))
    assert len(classes) > 1


def test_the_same_file_every_time(bitloom, model_file):
    assert export(bitloom, model_file, "a.qonnx").read_bytes() == export(bitloom, model_file, "b.qonnx").read_bytes()
