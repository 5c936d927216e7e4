"""Event files that `bitloom report --tensorboard` writes, read by TensorBoard's own package."""
import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    return events


def metrics_of(bitloom, run, event):
    lines = (bitloom.folder / run / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


def test_a_binary_net(bitloom, model_file):
    done = bitloom("report", "run", "--tensorboard", "board")
    assert done.returncode == 0, done.stderr
    events = read(bitloom.folder / "board/run")
    epochs = metrics_of(bitloom, "run", "epoch")
    losses = [(head["layer"], head["loss"]) for epoch in epochs for head in epoch["heads"]]
    assert losses
    for layer, loss in losses:
        points = events.Scalars(f"epoch/heads/{layer}/loss")
        assert loss in [pytest.approx(point.value, rel=1e-6) for point in points]
    assert events.Scalars("result/test_accuracy")[0].value == pytest.approx(metrics_of(bitloom, "run", "result")[0]["test_accuracy"])
    # Numbers of single images are no curves.
    assert metrics_of(bitloom, "run", "result")[0]["mistakes"]
    assert not [tag for tag in events.Tags()["scalars"] if "mistakes" in tag]
    # Steps go on from stage to stage, and time with them.
    steps = [point.step for layer in sorted({layer for layer, _ in losses}) for point in events.Scalars(f"epoch/heads/{layer}/loss")]
    assert steps == sorted(steps) and len(set(steps)) == len(steps)
    assert events.Scalars("result/test_accuracy")[0].step >= steps[-1]
    assert events.Scalars("result/test_accuracy")[0].wall_time > 1.6e9


def test_texts_of_a_gpt(bitloom):
    (bitloom.folder / "text.txt").write_text("one and two and three\n" * 400)
    done = bitloom("train", "gpt", "--data", "text.txt", "--net", "tiny", "--layers", 1, "--width", 16, "--heads", 1, "--context", 16, "--batch", 4,
                   "--steps", 10, "--sample-every", 5, "--sample-tokens", 8, "--out", "gpt")
    assert done.returncode == 0, done.stderr
    assert bitloom("report", "gpt", "run", "--tensorboard", "both").returncode == 0
    events = read(bitloom.folder / "both/gpt")
    expected = [(line["step"], line["text"]) for line in metrics_of(bitloom, "gpt", "samples")]
    found = [(event.step, tensor_util.make_ndarray(event.tensor_proto)[0].decode()) for event in events.Tensors("samples")]
    assert found == expected and len(found) == 2
    steps = metrics_of(bitloom, "gpt", "step")
    assert [point.step for point in events.Scalars("step/loss")] == [line["step"] for line in steps]
    assert (bitloom.folder / "both/run").is_dir()


def test_pictures_of_a_discrete_vae(bitloom):
    done = bitloom("data", "synth-pairs", "--out", "scenes", "--count", 32, "--side", 32)
    assert done.returncode == 0, done.stderr
    done = bitloom("train", "dvae", "--data", "scenes", "--net", "tiny", "--batch", 4, "--steps", 4, "--sample-every", 2, "--out", "dvae")
    assert done.returncode == 0, done.stderr
    assert bitloom("report", "dvae", "--tensorboard", "board").returncode == 0
    pictures = read(bitloom.folder / "board/dvae").Images("samples")
    assert [picture.step for picture in pictures] == [2, 4]
    for picture in pictures:
        file = bitloom.folder / f"dvae/samples/step-{picture.step}.png"
        assert picture.encoded_image_string == file.read_bytes() and picture.width > picture.height > 0
