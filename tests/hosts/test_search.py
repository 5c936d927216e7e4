"""bitloom train binary --search --spread on hosts with disks of their own. Run by scripts/test-hosts."""

import json
import shutil
import signal
import subprocess
import time
import unittest

from hosts import PROGRAM, Hosts, tensors

WIDTHS = "layer2.width=64,96,128,160"
EPOCHS = ("layer2.epochs=1,2", "--set", "layer1.epochs=1")  # nine steps, and eighteen after nine
HELD = 12
CHANGEABLE = {".lock", "log.txt", "progress.json"}  # of a rank alone, and of no use any more


def files_in(folder):
    return {path.name for path in folder.iterdir()}


class Search(unittest.TestCase):
    def setUp(self):
        self.hosts = Hosts(2)
        self.addCleanup(self.hosts.close)
        self.folder = self.hosts.folder
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.disks = self.hosts.give_disks()
        self.out = self.hosts.disk / "run"  # on every host a folder of its own

    def search(self, out, *options):
        return [PROGRAM, "train", "binary", "--net", "tiny", "--data", "synth", "--max-train", "400", "--validation", "100",
                "--batch", "32", "--cache", "none", "--hold", self.folder / "hold", "--out", out, "--search", *options]

    def log(self):
        return (self.folder / "log").read_text()

    def start(self, command, host_count):
        with open(self.folder / "log", "a", encoding="utf-8") as log:
            start = self.hosts.mpirun if host_count > 1 else self.hosts.start
            return start(command, stdout=log, stderr=subprocess.STDOUT)

    def spread(self, *options):
        process = self.start(self.search(self.out, *options, "--spread"), 2)
        self.assertEqual(process.wait(timeout=300), 0, self.log())

    def resume(self):
        (self.folder / "hold").unlink()
        process = self.start([PROGRAM, "train", "binary", "--resume", "--out", self.out], 2)
        self.assertEqual(process.wait(timeout=300), 0, self.log())

    def stop_when_held(self, command, host_count, begun):
        """Ends a search whose variant in the folder `begun` has made an epoch, and waits before its last steps."""
        (self.folder / "hold").write_text(str(HELD))
        process = self.start(command, host_count)
        metrics = begun / "metrics.jsonl"
        end = time.monotonic() + 120
        while not metrics.exists() or '"event":"epoch"' not in metrics.read_text():
            self.assertLess(time.monotonic(), end, self.log())
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertNotEqual(process.wait(timeout=60), 0, self.log())

    def alone(self, *options):
        out = self.folder / "alone"
        subprocess.run([str(word) for word in self.search(out, *options)], check=True, stdout=subprocess.DEVNULL,
                       env=self.hosts.environment())
        return out

    def assert_same(self, alone, rounds=("",)):
        """Rank 0's host has the files of all runs, with the bits of one process, though ranks trained half of them elsewhere."""
        self.assertEqual(json.loads((self.out / "search.json").read_text()), json.loads((alone / "search.json").read_text()))
        for name in rounds:
            runs = sorted(path.parent.relative_to(alone) for path in (alone / name).glob("layer2.*=*/model.safetensors"))
            self.assertTrue(runs)
            for run in runs:
                self.assertTrue(tensors(self.out / run) == tensors(alone / run), run)
                self.assertLessEqual(files_in(alone / run) - CHANGEABLE, files_in(self.out / run))
                self.assertLessEqual(files_in(self.out / run), files_in(alone / run) | CHANGEABLE)
                # Heads of layers that the model does without, too: they are in a file of their own.
                shown = subprocess.run([PROGRAM, "eval", self.out / run, "--layers", "layer1"], check=False, capture_output=True,
                                       text=True)
                self.assertEqual(shown.returncode, 0, shown.stderr)

    def runs_on(self, host):
        return {path.name for path in (self.disks[host] / "run").glob("layer2.*=*") if (path / "model.safetensors").exists()}

    def test_models_of_another_host_come_to_rank_0(self):
        alone = self.alone(WIDTHS, "--epochs", "1")
        self.spread(WIDTHS, "--epochs", "1")
        self.assertEqual(self.runs_on(1), {"layer2.width=96", "layer2.width=160"})
        self.assert_same(alone)

    def test_a_search_that_is_stopped_goes_on(self):
        alone = self.alone(*EPOCHS)
        # Each host has its part of the variants that are begun.
        self.stop_when_held(self.search(self.out, *EPOCHS, "--spread"), 2, self.disks[1] / "run/layer2.epochs=2")
        self.resume()
        self.assert_same(alone)

    # Checkpoints of the run that this host had begun stayed beside the model.
    def test_another_host_has_a_variant_that_was_begun_here(self):
        alone = self.alone(*EPOCHS)
        begun = self.out / "layer2.epochs=2"
        self.stop_when_held(self.search(self.out, *EPOCHS, "--spread"), 1, begun)
        self.assertTrue((begun / "checkpoint.safetensors").exists())
        self.resume()
        self.assertEqual(self.runs_on(1), {begun.name})
        self.assert_same(alone)

    def test_rounds(self):
        options = (WIDTHS, "--epochs", "2", "--search-rounds", "2")
        alone = self.alone(*options)
        self.spread(*options)
        self.assert_same(alone, ("round-1", ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
