"""scripts/cluster/local-workers.sbatch under a Slurm of this machine: tasks of an array that are put back, cancelled and lose their node.
Run by scripts/test-hosts, without root too."""

import unittest

from hosts import PROGRAM, ROOT, tensors
from slurm import IS_THERE, Cluster

SCRIPT = ROOT / "scripts/cluster/local-workers.sbatch"
HELD = 104  # step after which runs wait for a test; one that is stopped then makes another, the last of a round
STEPS = 210
TEXT = "".join(f"{i % 10} and {i * 7 % 10} make {i % 10 + i * 7 % 10}\n" for i in range(400))
# A worker waits for the messages of all others that are there, however long that takes.
OPTIONS = {"gpt": ["--net", "tiny", "--layers", 2, "--width", 32, "--heads", 2, "--context", 32, "--batch", 4, "--steps", STEPS,
                   "--evaluate-every", HELD],
           "cnn": ["--data", "synth", "--net", "tiny", "--batch", 8, "--max-train", 400, "--steps", STEPS, "--evaluate-every", HELD]}


@unittest.skipUnless(IS_THERE, "SKIPPED: no Slurm here; on Debian the package slurm-wlm has it")
class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        (cls.cluster.folder / "text.txt").write_text(TEXT)

    def submit(self, name, workers, kind="gpt", held=True):
        """Number of the array."""
        self.folder = self.cluster.folder / name
        self.folder.mkdir(exist_ok=True)
        self.hold = self.folder / "hold"
        if held:
            self.hold.write_text(str(HELD))
        options = [*OPTIONS[kind], "--workers", workers, "--inner-steps", 5, "--deadline", 300, "--hold", self.hold]
        if kind == "gpt":
            options += ["--data", self.cluster.folder / "text.txt"]
        # Where it is given no kind, it trains a GPT.
        words = [SCRIPT, self.folder / "runs", *(["cnn"] if kind == "cnn" else []), *options]
        return self.cluster.call("sbatch", "--parsable", f"--array=1-{workers}", f"--output={self.folder}/log-%a", *words,
                                 BITLOOM=str(PROGRAM))

    def run_of(self, task):
        return self.folder / f"runs/worker-{task}"

    def log_of(self, task):
        return self.folder / f"log-{task}"

    def log(self, task):
        path = self.log_of(task)
        return path.read_text() if path.exists() else ""

    def wait_for(self, task, text, times=1):
        self.cluster.wait(lambda: self.log(task).count(text) >= times, f"'{text}' of task {task}", self.log_of(task))

    def wait_until_held(self, *tasks):
        for task in tasks:
            self.wait_for(task, f"step {HELD}/{STEPS}: ")

    def wait_until_back(self, array, task):
        """A task that was put back goes on where it stopped."""
        self.wait_for(task, f"going on from step {HELD + 1} ")
        self.assertEqual(self.cluster.job(f"{array}_{task}")["Restarts"], "1")

    def finish(self, array, *tasks):
        self.hold.unlink(missing_ok=True)
        for task in tasks:
            self.wait_for(task, "\ndone in ")
            self.cluster.wait(lambda name=f"{array}_{task}": self.cluster.job(name)["JobState"] == "COMPLETED", "COMPLETED")
        for task in tasks:
            self.assert_same_bits(self.run_of(task), tensors(self.run_of(tasks[0])))

    def assert_same_bits(self, run, others):
        self.assertTrue(tensors(run) == others, run)  # assertEqual would look for all differences

    def assert_undisturbed(self, array, task):
        self.assertEqual(self.cluster.job(f"{array}_{task}")["Restarts"], "0")
        self.assertNotIn("bitloom: stopped", self.log(task))

    def test_a_task_that_is_put_back_goes_on(self):
        array = self.submit("requeue", 2)
        self.wait_until_held(1, 2)
        self.cluster.call("scontrol", "requeue", f"{array}_1")
        self.wait_until_back(array, 1)
        self.finish(array, 1, 2)
        self.assert_undisturbed(array, 2)

    # Its job's number is the array's: all tasks were put back.
    def test_a_task_whose_time_is_nearly_over_puts_itself_back(self):
        array = self.submit("time", 2)
        self.wait_until_held(1, 2)
        self.assertEqual(self.cluster.job(f"{array}_2")["JobId"], array)
        self.cluster.call("scancel", "--batch", "--signal=USR1", f"{array}_2")  # as --signal=B:USR1@60 does
        self.wait_until_back(array, 2)
        self.finish(array, 1, 2)
        self.assert_undisturbed(array, 1)

    # It put itself back, so that nobody could get rid of it.
    def test_an_array_that_is_cancelled_is_over_and_goes_on_when_it_is_submitted_again(self):
        array = self.submit("cancel", 2)
        self.wait_until_held(1, 2)
        self.cluster.call("scancel", array)
        for task in (1, 2):
            self.wait_for(task, f"bitloom: stopped after step {HELD + 1} of {STEPS}")
        self.cluster.wait(lambda: not self.cluster.call("squeue", "--noheader", f"--jobs={array}", check=False), "the end")
        for task in (1, 2):
            job = self.cluster.job(f"{array}_{task}")
            self.assertEqual((job["JobState"], job["Restarts"]), ("CANCELLED", "0"))
        again = self.submit("cancel", 2, held=False)
        self.finish(again, 1, 2)
        for task in (1, 2):
            self.assertIn(f"going on from step {HELD + 1} ", self.log(task))

    def test_a_node_is_taken_away(self):
        array = self.submit("node", 2)
        self.wait_until_held(1, 2)
        node = self.cluster.job(f"{array}_2")["NodeList"]
        self.cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        self.wait_until_back(array, 2)
        self.finish(array, 1, 2)
        self.assert_undisturbed(array, 1)

    def test_a_worker_alone_that_stops_at_the_end_of_a_round_comes_to_the_bits_of_one_that_does_not(self):
        for kind in ("gpt", "cnn"):
            with self.subTest(kind=kind):
                array = self.submit(f"calm-{kind}", 1, kind, held=False)
                self.finish(array, 1)
                calm = tensors(self.run_of(1))
                array = self.submit(f"disturbed-{kind}", 1, kind)
                self.wait_until_held(1)
                self.cluster.call("scontrol", "requeue", f"{array}_1")
                self.wait_until_back(array, 1)
                self.finish(array, 1)
                self.assert_same_bits(self.run_of(1), calm)


if __name__ == "__main__":
    unittest.main(verbosity=2)
