"""What scripts/repro-emoji runs: text to image with `bitloom` alone, on captioned emoji and on made-up scenes.

emoji.py --data FOLDER [--out FOLDER] [--parts dvae,memory,captions,scenes,clip] [--threads N]: trains what is not there yet, prints a
table of figures and, in the last line, JSON. FOLDER/*.png: reconstructions and samples. Parts: the discrete VAE; a transformer that
learns all pairs by heart; transformers that have not seen 100 captions, of three seeds and with few-bit activations; scenes, whose
pictures are judged exactly; a contrastive model of emoji."""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import earlier_runs
import line_chart
import numpy
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = pathlib.Path(os.environ.get("BITLOOM", ROOT / "build/release/bin/bitloom"))
PARTS = ["dvae", "memory", "captions", "scenes", "clip"]
GAP = 4  # of pictures of many images (src/cli/image_sheet.cpp)

# Trainings. The discrete VAE of emoji has 922 of 1,025 images, the transformers all or 925.
EMOJI_DVAE = "--net emoji --steps 1500 --batch 32 --average 0.995 --kl-weight 16 --learning-rate 0.0045"
MEMORY = "--net emoji --layers 4 --steps 1500 --batch 32 --validation 0 --dropout 0 --merge-dropout 0 --weight-decay 0.01 --learning-rate 0.002"
CAPTIONS = "--net emoji --layers 4 --width 128 --steps 400 --batch 32 --validation 0 --dropout 0.2"
EMOJI_CLIP = "--net emoji --steps 800 --batch 64"
SCENES = 8000
SCENE_SIDE = 64
# 16 x 16 tokens, as 8 x 8 leave too little of small shapes. Of scenes, which are ground for nine tenths, a codebook collapses: it begins
# with emoji among the pictures, and those are mosaics of the scenes' shapes.
SCENE_DVAE_START = "--net emoji-16 --steps 600 --batch 32 --average 0.99 --kl-weight 6 --learning-rate 0.0045"
SCENE_DVAE = "--net emoji-16 --steps 700 --batch 32 --average 0.98 --kl-weight 2 --learning-rate 0.003 --temperature-steps 1"
MOSAICS = 3000
SCENE_DALLE = "--net emoji --layers 4 --width 128 --text-positions 16 --steps 5000 --batch 32 --dropout 0.05"
SCENE_CLIP = "--net emoji --steps 600 --batch 64"
# The net in whose features distances of sets of scenes are told: a classifier of colour and shape that has seen all combinations.
JUDGE = "--net tiny --epochs 40"
SCENE_COUNTS = [1, 2, 4, 8, 16, 32]
BLURS = [1, 2, 4]


class Work:
    def __init__(self, options):
        self.options = options
        self.out = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
        self.seconds = {}
        self.aims = {}
        self.figures = {}

    def run(self, *arguments):
        """What the program prints; its progress stays on the screen."""
        command = [str(PROGRAM), *map(str, arguments)]
        result = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        if result.returncode != 0:
            sys.exit(f"emoji.py: `{' '.join(command)}` ended with code {result.returncode}\n{result.stdout}")
        return result.stdout

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json"))

    def train(self, kind, name, options, *more):
        folder = self.out / name
        log = folder.with_suffix(".seconds")
        if not log.exists():
            print(f"training {name}: train {kind} {options}", flush=True)
            start = time.perf_counter()
            going_on = (folder / "options.ini").exists()
            self.run("train", kind, *(["--resume"] if going_on else [*options.split(), *more]), "--out", folder)
            log.write_text(f"{time.perf_counter() - start:.0f}")
        self.seconds[name] = float(log.read_text())
        return folder

    def draw(self, name, run, prompts, *more):
        """A folder of images that a transformer draws for the prompts of a file."""
        folder = self.out / name
        if not (folder / "captions.jsonl").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a call that was interrupted
            self.run("sample", run, "--prompts", prompts, "--folder", folder, *more)
        return folder

    def figure(self, name, value):
        self.figures[name] = value
        print(f"  {name:<58}{value:.4g}" if isinstance(value, float) else f"  {name:<58}{value}", flush=True)

    def aim(self, name, value, aim, at_least=True):
        met = bool(value >= aim if at_least else value <= aim)
        self.aims[name] = {"value": value, "aim": aim, "met": met}
        print(f"  {name:<58}{value:<10.4g} aim {'>=' if at_least else '<='} {aim:g}{'' if met else '   MISSED'}", flush=True)


def rows_of(folder):
    return earlier_runs.objects_in(folder / "captions.jsonl")


def write_captions(folder, rows):
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_pairs(folder, images, rows):
    """A set of pairs whose images lie in the folder `images`."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "png"
    if not link.is_symlink():
        link.symlink_to(images)
    write_captions(folder, rows)
    return folder


def read_image(path):
    image = Image.open(path).convert("RGB")
    return numpy.asarray(image, dtype=numpy.float64) / 255


def psnr(a, b):
    return -10 * numpy.log10(max(numpy.mean((a - b) ** 2), 1e-10))


def reconstructions(work, dvae, data, count, side):
    """The images of a set as the discrete VAE gives them back."""
    sheet_file = work.out / "all-reconstructions.png"
    columns = 16
    work.run("reconstruct", dvae, "--data", data, "--split", "all", "--count", count, "--columns", columns, "--out", sheet_file)
    sheet = read_image(sheet_file)
    images = []
    for i in range(count):
        top = i // columns * (side + GAP) + GAP
        left = i % columns * (2 * side + GAP) + GAP + side
        images.append(sheet[top : top + side, left : left + side])
    return images


def coarse(image, cell=8):
    """Means of cells, as large as the image."""
    side = image.shape[0]
    means = image.reshape(side // cell, cell, side // cell, cell, 3).mean(axis=(1, 3))
    return means.repeat(cell, axis=0).repeat(cell, axis=1)


def train_dvae(work):
    return work.train("dvae", "dvae", EMOJI_DVAE, "--data", work.options.data)


def part_dvae(work):
    print("discrete VAE of emoji, 64 x 64 pixels as 8 x 8 tokens of 512 codes")
    dvae = train_dvae(work)
    work.run("reconstruct", dvae, "--count", 32, "--out", work.out / "reconstructions.png")
    cold = work.json("eval", dvae, "--split", "validation", "--temperature", 0.0625)
    warm = work.json("eval", dvae, "--split", "validation", "--temperature", 1)
    images = [read_image(work.options.data / "png" / row["image"]) for row in rows_of(work.options.data)]
    errors = [numpy.mean((image - coarse(image)) ** 2) for image in images]
    work.figure("PSNR of the means of 8 x 8 pixels, all images, dB", float(-10 * numpy.log10(numpy.mean(errors))))
    work.aim("held-out PSNR, dB", cold["psnr"], 18.3)
    work.aim("perplexity of the codes", cold["perplexity"], 128)
    work.figure("codes in use, held-out images", cold["codes_in_use"])
    gap = abs(cold["relaxed_elb"] - cold["hard_elb"]) / abs(warm["relaxed_elb"] - warm["hard_elb"])
    work.aim("relaxed minus hard lower bound, at 1/16 by that at 1", gap, 0.1, False)


def part_memory(work):
    print("transformer of emoji, on the captions that it was trained with")
    dvae = train_dvae(work)
    data = work.options.data
    run = work.train("dalle", "memory", MEMORY, "--data", data, "--dvae", dvae)
    rows = rows_of(data)
    drawn = work.draw("memory-drawn", run, data / "captions.jsonl", "--temperature", 0, "--at-once", 64)
    again = reconstructions(work, dvae, data, len(rows), 64)
    near = 0
    for row, own, reconstruction in zip(rows, rows_of(drawn), again, strict=True):
        image = read_image(data / "png" / row["image"])
        near += psnr(read_image(drawn / "png" / own["image"]), image) >= psnr(reconstruction, image) - 1
    work.aim("greedy images within 1 dB of the reconstruction", near / len(rows), 0.9)
    prompts = ["ear of maize", "crescent moon", "red apple", "cat face", "sunflower", "rocket", "umbrella with rain drops", "cherries"]
    (work.out / "prompts.txt").write_text("\n".join(prompts) + "\n")
    work.run("sample", run, "--prompts", work.out / "prompts.txt", "--count", 8, "--top-k", 32, "--out", work.out / "samples.png")


def held_out_captions(rows, count):
    """Numbers of captions whose every word stands in two captions at least that stay."""
    words = [set(row["caption"].lower().split()) for row in rows]
    uses = collections.Counter(word for each in words for word in each)
    order = list(range(len(rows)))
    random.Random(1).shuffle(order)
    chosen = []
    for i in order:
        if len(chosen) < count and all(uses[word] > 2 for word in words[i]):
            chosen.append(i)
            uses.subtract(words[i])
    return set(chosen)


def part_captions(work):
    print("transformers of emoji, on 100 captions that they have not seen")
    dvae = train_dvae(work)
    rows = rows_of(work.options.data)
    held_out = held_out_captions(rows, 100)
    images = work.options.data / "png"
    train = write_pairs(work.out / "seen", images, [row for i, row in enumerate(rows) if i not in held_out])
    test = write_pairs(work.out / "unseen", images, [row for i, row in enumerate(rows) if i in held_out])
    losses, gains = {}, []
    for name, more in [("1", ""), ("2", "--seed 2"), ("3", "--seed 3"), ("4bit", "--activation-bits 4"), ("3bit", "--activation-bits 3")]:
        run = work.train("dalle", f"captions-{name}", f"{CAPTIONS} {more}".strip(), "--data", train, "--dvae", dvae)
        found = work.json("eval", run, "--data", test, "--split", "all")
        losses[name] = found["image_loss"]
        if name in "123":
            gains.append(found["image_loss_of_other_captions"] - found["image_loss"])
            work.figure(f"seed {name}: image loss, nats per token", found["image_loss"])
            work.figure(f"seed {name}: the same under another caption", found["image_loss_of_other_captions"])
            work.figure(f"seed {name}: images likelier under their own", found["own_caption_better"])
    work.aim("least that an image's own caption gains, nats per token", min(gains), 0.0)
    seeds = [losses[name] for name in "123"]
    spread = max(seeds) - min(seeds)
    for name in ("4bit", "3bit"):
        work.aim(f"{name}: image loss above the worst seed's", losses[name] - max(seeds), spread, False)


def reconstruct_all(work, dvae, data):
    """A set of pairs with the images of `data` as the discrete VAE gives them back."""
    folder = work.out / "scenes-again"
    rows = rows_of(data)
    (folder / "png").mkdir(parents=True, exist_ok=True)
    for row, image in zip(rows, reconstructions(work, dvae, data, len(rows), SCENE_SIDE), strict=True):
        Image.fromarray((image * 255).round().astype(numpy.uint8)).save(folder / "png" / row["image"])
    write_captions(folder, rows)
    return folder


def scores_of(work, folder):
    facts = work.json("data", "pairs", folder, "--check-scenes", "--any-language", "--boilerplate")
    return facts["scenes"]


def make_scenes(work, name, *more):
    folder = work.out / name
    if not (folder / "captions.jsonl").exists():
        work.run("data", "synth-pairs", "--out", folder, "--force", *more)
    return folder


def shapes_of(scenes, side):
    """Squares of scenes around their shapes, a little off their middles."""
    rng = random.Random(1)
    tiles = []
    for row in rows_of(scenes):
        image = numpy.asarray(Image.open(scenes / "png" / row["image"]).convert("RGB"))
        shape = numpy.abs(image.astype(int) - image[0, 0]).max(axis=2) > 12
        corner = []
        for axis in (1, 0):
            at = numpy.flatnonzero(shape.any(axis=axis))
            corner.append(min(max((at[0] + at[-1] - side) // 2 + rng.randint(-3, 3), 0), len(image) - side))
        tiles.append(image[corner[0] : corner[0] + side, corner[1] : corner[1] + side])
    return tiles


def make_mosaics(work, scenes):
    """Pictures of four shapes each, cut out of scenes: the discrete VAE's training set."""
    folder = work.out / "mosaics"
    if (folder / "captions.jsonl").exists():
        return folder
    (folder / "png").mkdir(parents=True, exist_ok=True)
    tiles = shapes_of(scenes, SCENE_SIDE // 2)
    rng = random.Random(2)
    names = [f"{i:06}.png" for i in range(MOSAICS)]
    for name in names:
        a, b, c, d = rng.sample(tiles, 4)
        Image.fromarray(numpy.block([[[a], [b]], [[c], [d]]])).save(folder / "png" / name)
    write_captions(folder, [{"image": name, "caption": "four shapes"} for name in names])
    return folder


def train_scene_dvae(work, mosaics):
    emoji = work.options.data
    rows = [(emoji, row) for row in rows_of(emoji)]
    rows += [(mosaics, row) for row in rows_of(mosaics)[: len(rows)]]
    folder = work.out / "emoji-and-mosaics"
    (folder / "png").mkdir(parents=True, exist_ok=True)
    captions = []
    for i, (source, row) in enumerate(rows):
        name = f"{i:06}.png"
        if not (folder / "png" / name).is_symlink():
            (folder / "png" / name).symlink_to(source / "png" / row["image"])
        captions.append({"image": name, "caption": row["caption"]})
    write_captions(folder, captions)
    start = work.train("dvae", "scene-dvae-start", SCENE_DVAE_START, "--data", folder)
    return work.train("dvae", "scene-dvae", SCENE_DVAE, "--init", start, "--data", mosaics)


def train_judge(work):
    """A classifier of colour and shape, whose features tell how far sets of scenes are apart."""
    pictures = make_scenes(work, "scenes-of-all-combinations", "--count", 3000, "--side", 32, "--hold-out", 0, "--seed", 7)
    classes = work.out / "scene-classes"
    for row in rows_of(pictures):
        link = classes / f"{row['colour']} {row['shape']}" / row["image"]
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(pictures / "png" / row["image"])
    return work.train("cnn", "scene-judge", JUDGE, "--data", classes)


def draw_distances(work, truth, best_of):
    """As figure 9 of Ramesh et al. 2021: distances of drawn scenes from true ones of the same combinations, by the number of pictures
    of which the best is taken, and by how much both sets are blurred. best_of(order, count): a folder of drawn scenes."""
    judge = train_judge(work)

    def distance(drawn, blur=0):
        return work.json("compare", drawn, truth, "--features", judge, "--blur", blur)["frechet_distance"]

    by_count = {order: [(count, distance(best_of(order, count))) for count in SCENE_COUNTS] for order in ("clip", "likelihood")}
    first, last = by_count["clip"][0], by_count["clip"][-1]
    by_blur = {name: [(0, unblurred), *((blur, distance(best_of("clip", count), blur)) for blur in BLURS)]
               for name, (count, unblurred) in (("first", first), ("best of 32 by clip", last))}
    for order, points in by_count.items():
        for count, value in points:
            work.figure(f"Frechet distance, best of {count} by {order}", value)
    for name, points in by_blur.items():
        for blur, value in points[1:]:
            work.figure(f"Frechet distance, {name}, blurred by {blur} pixels", value)
    line_chart.draw(work.out / "distance-by-count.svg", "pictures of which the best is taken", "Frechet distance", by_count, from_zero=True)
    line_chart.draw(work.out / "distance-by-blur.svg", "blur, pixels", "Frechet distance", by_blur, from_zero=True)


def part_scenes(work):
    print("scenes: combinations of colour and shape that no training picture has")
    scenes = make_scenes(work, "scenes", "--count", SCENES, "--side", SCENE_SIDE)
    truth = make_scenes(work, "scenes-held-out", "--count", 432, "--side", SCENE_SIDE, "--part", "held-out")
    dvae = train_scene_dvae(work, make_mosaics(work, scenes))
    found = work.json("eval", dvae, "--data", truth, "--split", "all")
    work.figure("discrete VAE, held-out combinations: PSNR, dB", found["psnr"])
    work.figure("discrete VAE: perplexity of 512 codes", found["perplexity"])
    work.figure("discrete VAE: colour and shape right in what it gives back", scores_of(work, reconstruct_all(work, dvae, truth))["colour_and_shape"])
    work.run("reconstruct", dvae, "--data", truth, "--split", "all", "--count", 32, "--out", work.out / "scene-reconstructions.png")
    run = work.train("dalle", "scene-dalle", SCENE_DALLE, "--data", scenes, "--dvae", dvae)
    clip = work.train("clip", "scene-clip", SCENE_CLIP, "--data", scenes, "--side", SCENE_SIDE)
    prompts = scenes / "held-out.jsonl"

    # Best of the first `count` pictures, which are the same whichever net ranks them.
    def best_of(order, count):
        net = ["--clip", clip] if order == "clip" else []
        drawn = work.draw(f"scenes-by-{order}", run, prompts, "--count", SCENE_COUNTS[-1], "--rerank", order, *net)
        best = {}
        for row in sorted(rows_of(drawn), key=lambda row: row["score"]):
            if row["number"] < count:
                best[row["prompt"]] = row
        return write_pairs(work.out / f"scenes-best-of-{count}-by-{order}", drawn / "png", best.values())

    plain = scores_of(work, best_of("clip", 1))
    best = scores_of(work, best_of("clip", 32))
    likely = scores_of(work, best_of("likelihood", 32))
    cool = scores_of(work, work.draw("scenes-cool", run, prompts, "--temperature", 0.5))
    for name, score in [("temperature 1", plain), ("temperature 0.5", cool), ("best of 32 by clip", best), ("best of 32 by likelihood", likely)]:
        work.figure(f"{name}: colour and shape", score["colour_and_shape"])
        work.figure(f"{name}: size and place, too", score["all"])
    work.aim("colour and shape", cool["colour_and_shape"], 0.9)
    work.aim("place", cool["place"], 0.8)
    work.aim("best of 32 by clip less first, all right", best["all"] - plain["all"], 0.0)
    work.run("sample", run, "--prompts", prompts, "--temperature", 0.5, "--columns", 18, "--out", work.out / "scene-samples.png")
    draw_distances(work, truth, best_of)


def part_clip(work):
    print("contrastive model of emoji")
    run = work.train("clip", "clip", EMOJI_CLIP, "--data", work.options.data)
    found = work.json("eval", run, "--split", "validation")
    work.figure("chance", found["texts_by_chance"])
    work.aim("caption of a held-out image is the nearest, by chance", found["texts_at_1"] / found["texts_by_chance"], 10)
    work.aim("image of a held-out caption is the nearest, by chance", found["images_at_1"] / found["images_by_chance"], 10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/emoji")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    options.data, options.out = options.data.resolve(), options.out.resolve()
    wanted = options.parts.split(",")
    for part in wanted:
        if part not in PARTS:
            parser.error(f"--parts: '{part}'; expected some of {', '.join(PARTS)}")
    work = Work(options)
    earlier_runs.require_same_settings(options.out, {"data": str(options.data)})
    for part in wanted:
        {"dvae": part_dvae, "memory": part_memory, "captions": part_captions, "scenes": part_scenes, "clip": part_clip}[part](work)
    print(f"pictures: {', '.join(str(path) for path in sorted(options.out.glob('*.png')))}")
    print(json.dumps({"figures": work.figures, "seconds": work.seconds, "aims": work.aims}))


if __name__ == "__main__":
    main()
