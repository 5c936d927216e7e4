"""Trainings in local steps for scripts: workers that are processes of their own, with a folder in common, killed now and then."""

import os
import random
import subprocess
import sys
import time

import earlier_runs


def train(program, folder, workers, arguments, kills=0, pause=0.0):
    """Trains `workers` runs FOLDER/w0, w1, ... with FOLDER/shared in common, until all are done; while there are kills left, one of them
    is killed every `pause` seconds and started again at once. Returns the kills that there were."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")

    def start(w):
        run = folder / f"w{w}"
        words = ["--resume"] if (run / "options.ini").exists() else [*arguments, "--exchange", "local", "--through", folder / "shared",
                                                                    "--worker", f"w{w}", "--workers", workers]
        command = [str(word) for word in [program, "train", "gpt", *words, "--out", run]]
        with open(folder / f"w{w}.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    # Killed ones draw lots by a seed of their own, so that a script is the same every time but for time itself.
    draw = random.Random(1)
    running = {w: start(w) for w in range(workers)}
    killed, last = 0, time.monotonic()
    while running:
        time.sleep(0.05)
        for w, process in list(running.items()):
            code = process.poll()
            if code == 0:
                del running[w]
            elif code is not None:
                for other in running.values():
                    other.kill()
                sys.exit(f"worker {w} ended with code {code}: {folder}/w{w}.log")
        if running and killed < kills and time.monotonic() - last >= pause:
            w = draw.choice(sorted(running))
            if (folder / f"w{w}" / "options.ini").exists():
                running[w].kill()
                if running[w].wait() < 0:
                    killed += 1
                running[w] = start(w)
            last = time.monotonic()
    return killed


def figures(folder, workers, steps):
    """Loss and bytes of a step, sent and received, of the worker that has most of these; and how long the last one took."""
    runs = [folder / f"w{w}" for w in range(workers)]
    rounds = [earlier_runs.events_of(run, "exchange") for run in runs]
    sent, received = (max(sum(line[key] for line in each) for each in rounds) / steps for key in ("sent_bytes", "received_bytes"))
    results = [earlier_runs.events_of(run, "result")[-1] for run in runs]
    return {"loss": results[0]["validation_loss"], "seconds": max(result["seconds"] for result in results), "bytes": max(sent, received),
            "sent": sent, "received": received, "losses": sorted({round(result["validation_loss"], 4) for result in results})}
