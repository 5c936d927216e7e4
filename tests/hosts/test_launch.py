"""bitloom launch on four hosts that vanish, hang, lose their links and come back. Run by scripts/test-hosts."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from hosts import AGENT, PROGRAM, Hosts, cache_of, tensors

KILLS = int(os.environ.get("BITLOOM_KILLS", "12"))


def training(out, data, epochs, cache=("--cache", "none")):
    return ["train", "binary", "--net", "tiny", "--data", data, "--validation", "200", "--epochs", epochs, "--batch", "64",
            *cache, "--exchange", "sparse", "--workers", "8", "--bytes-per-update", "1000B", "--checkpoint-seconds", "0.5",
            "--watchdog-seconds", "20", "--out", out]


class Launch(unittest.TestCase):
    calm = {}  # tensors of undisturbed runs, by their options

    def setUp(self):
        self.hosts = Hosts(4)
        self.addCleanup(self.hosts.close)
        self.folder = self.hosts.folder
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.run_folder = self.folder / "run"
        self.cache = ("--cache", "none")
        # Made once: every rank would make it at every start, on the two cores of all.
        self.data = self.folder / "data"
        subprocess.run([PROGRAM, "data", "synth", "--out", self.data, "--train", "2000", "--test", "200"], check=True,
                       stdout=subprocess.DEVNULL)

    def launch(self, epochs, *options):
        with open(self.folder / "log", "a") as log:
            return self.hosts.start(
                [PROGRAM, "launch", "--hostfile", self.hosts.hostfile(), "--agent", AGENT, "--interface", "net0",
                 "--deadline", "10", "--probe-seconds", "0.5", *options, "--",
                 *training(self.run_folder, self.data, epochs, self.cache)],
                stdout=log, stderr=subprocess.STDOUT)

    def output(self):
        return (self.folder / "log").read_text()

    def events(self, name):
        path = Path(str(self.run_folder) + ".launch.jsonl")
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, self.output())
            time.sleep(0.05)

    def wait_for_steps(self, after=0):
        """Until the run has made a step in a start that is not the first `after`."""
        mark = self.run_folder / "progress.json"

        def stepped():
            return len(self.events("start")) > after and mark.exists() and mark.stat().st_mtime > self.events("start")[-1]["time"]

        self.wait(stepped)

    def undisturbed(self, epochs):
        key = (epochs, *self.cache)
        if key not in self.calm:
            out = self.folder / "calm"
            subprocess.run([PROGRAM, *map(str, training(out, self.data, epochs, self.cache))], check=True,
                           stdout=subprocess.DEVNULL, env=self.hosts.environment())
            self.calm[key] = tensors(out)
        return self.calm[key]

    def finish(self, process, epochs):
        self.assertEqual(process.wait(timeout=300), 0, self.output())
        # Notes such as the time of training differ; the tensors may not.
        self.assertEqual(tensors(self.run_folder), self.undisturbed(epochs), self.output())

    def recovered(self):
        return [event["seconds"] for event in self.events("recovered")]

    def test_ranks_die_at_random(self):
        epochs = 150
        process = self.launch(epochs)
        random.seed(1)
        kills = 0
        starts = 0
        while kills < KILLS and process.poll() is None:
            self.wait_for_steps(starts)
            starts = len(self.events("start"))
            time.sleep(random.uniform(0, 0.7))
            ranks = [rank for host in range(4) for rank in self.hosts.ranks(host)]
            if not ranks or process.poll() is not None:
                continue
            os.kill(random.choice(ranks), random.choice([signal.SIGKILL, signal.SIGTERM]))
            kills += 1
            self.wait(lambda: len(self.events("start")) > starts or process.poll() is not None)
        self.finish(process, epochs)
        self.assertGreaterEqual(kills, KILLS, "the run was done too soon")
        print(f"\n{kills} kills: back at work after", sorted(round(s, 2) for s in self.recovered()),
              "s; steps computed twice:", sum(event["steps"] for event in self.events("recompute")))

    def test_a_host_dies_and_comes_back(self):
        epochs = 60
        process = self.launch(epochs)
        self.wait_for_steps()
        self.hosts.kill(2)
        self.wait(lambda: len(self.events("start")) == 2)
        self.assertEqual(self.events("start")[1]["processes"], 3)
        self.wait_for_steps(1)
        self.hosts.revive(2)
        self.wait(lambda: len(self.events("start")) == 3)
        self.assertEqual(self.events("start")[2]["processes"], 4)
        self.finish(process, epochs)
        print("\nhost dies, host joins: back at work after", self.recovered(), "s")

    def test_a_host_that_is_about_to_be_taken_away(self):
        epochs = 60
        notice = self.folder / "notice"
        # Hosts know their names only.
        process = self.launch(epochs, "--notice-command", f"grep -qsx $(hostname) '{notice}'")
        self.wait_for_steps()
        notice.write_text("host-" + self.hosts.addresses[2].replace(".", "-") + "\n")
        self.wait(lambda: len(self.events("start")) == 2)
        self.assertEqual(self.events("start")[1]["processes"], 3)
        self.assertEqual([event["host"] for event in self.events("leaving")], [self.hosts.addresses[2]])
        self.wait_for_steps(1)
        time.sleep(3)  # it is asked again and again, and still leaves
        self.assertEqual(len(self.events("start")), 2, self.output())
        notice.unlink()
        self.wait(lambda: len(self.events("start")) == 3)
        self.assertEqual(self.events("start")[2]["processes"], 4)
        self.finish(process, epochs)
        self.assertEqual(sum(event["steps"] for event in self.events("recompute")), 0)
        print("\nhost has a notice, and keeps it for a while: back at work after", self.recovered(), "s")

    def test_a_host_that_joins_lacks_outputs_of_frozen_layers(self):
        self.cache = ("--cache", "auto", "--frozen", "cache", "--augment-copies", "2")
        epochs = 60
        process = self.launch(epochs)
        self.wait_for_steps()
        self.hosts.kill(2)
        shutil.rmtree(cache_of(self.folder, self.hosts.addresses[2]))
        self.wait(lambda: len(self.events("start")) == 2)
        self.wait_for_steps(1)
        begun = self.output().count(" epoch ")
        self.wait(lambda: self.output().count(" epoch ") >= begun + 3)  # the others have computed what the host had
        self.hosts.revive(2)
        self.wait(lambda: len(self.events("start")) == 3)
        self.finish(process, epochs)
        name = "host-" + self.hosts.addresses[2].replace(".", "-")
        told = [line for line in self.output().splitlines() if f"on host {name} lacks" in line]
        self.assertTrue(told, self.output())
        print("\n" + "\n".join(told))

    def test_a_link_is_cut(self):
        epochs = 60
        process = self.launch(epochs)
        self.wait_for_steps()
        self.hosts.cut(3)
        (self.hosts.folder / self.hosts.addresses[3]).unlink()
        self.wait(lambda: len(self.events("start")) == 2)
        self.finish(process, epochs)
        print("\nlink is cut: back at work after", self.recovered(), "s")

    def test_a_rank_is_suspended(self):
        epochs = 60
        process = self.launch(epochs)
        self.wait_for_steps()
        os.kill(self.hosts.ranks(1)[0], signal.SIGSTOP)
        self.finish(process, epochs)
        print("\nrank suspended, deadline 10 s: back at work after", self.recovered(), "s")

    def test_mpirun_and_the_supervisor_are_killed(self):
        epochs = 60
        process = self.launch(epochs)
        self.wait_for_steps()
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        self.wait_for_steps(1)
        process.kill()
        process.wait()
        self.wait(lambda: not any(self.hosts.ranks(host) for host in range(4)), 30)
        self.finish(self.launch(epochs), epochs)


if __name__ == "__main__":
    unittest.main(verbosity=2)
