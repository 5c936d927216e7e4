"""Processes that train when they are told to, in turns: what the comparisons of training steps with PyTorch share."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

PEERS = {"eager": "PyTorch eager", "compile": "torch.compile"}


def resident_peak():
    """In bytes; 0 where the system does not say."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


class Contender:
    """A process that answers lines by lines of JSON."""

    def __init__(self, command, threads, quiet=False):
        # Compiling writes its warnings to the error stream; they are shown if it fails.
        self.errors = tempfile.TemporaryFile("w+") if quiet else None
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        env=environment)
        self.description = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args[0]} ended: {self.last_error()}")
        return json.loads(line)

    def last_error(self):
        if self.errors is None:
            return "see above"
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return lines[-1] if lines else "without a word"

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def save_start(command, path, threads):
    """Bitloom's first weights and batches in a file. By a process of its own, whose memory would count in the peak."""
    saver = Contender(command, threads)
    saver.ask(f"save {path}")
    saver.end()


def check_losses(contenders, label, steps, apart, tolerance):
    """All take their first steps; losses whose apart(theirs, ours) exceeds the tolerance end the program. Peers of which a step
    fails, as torch.compile where no compiler is, are left out and named."""
    first, missing = {}, {}
    for kind, contender in list(contenders.items()):
        try:
            first[kind] = contender.ask(f"steps {steps}")["losses"]
        except RuntimeError as error:
            if kind == "bitloom":
                raise
            missing[kind] = str(error)
            del contenders[kind]
    for kind, losses in first.items():
        if not max(apart(theirs, ours) for theirs, ours in zip(losses, first["bitloom"])) <= tolerance:
            sys.exit(f"{label}: the losses of {kind} are {losses}, Bitloom's {first['bitloom']}")
    return first, missing


def take_turns(contenders, steps, examples, rounds, prefix=""):
    """Ends the contenders after their turns of `steps` steps of `examples` each. prefix: "processor_" for processors' time."""
    rates = {kind: [] for kind in contenders}
    peaks, memory = [], {}
    for each in range(rounds + 1):  # the first does not count
        for kind, contender in contenders.items():
            result = contender.ask(f"steps {steps}")
            memory.setdefault(kind, result["resident_peak"])
            if kind == "bitloom":
                pool = result["pool_peak"]
            if each > 0:
                rates[kind].append(examples / statistics.median(result[prefix + "seconds"]))
        peak = contenders["bitloom"].ask("peak")[prefix + "peak"]
        if each > 0:
            peaks.append(peak)
    for contender in contenders.values():
        contender.end()
    operations = contenders["bitloom"].description["operations"] / examples
    return {
        "rate": {kind: statistics.median(values) for kind, values in rates.items()},
        "ratio": {kind: statistics.median(a / b for a, b in zip(rates["bitloom"], rates[kind]))
                  for kind in rates if kind != "bitloom"},
        "share_of_peak": statistics.median(rate * operations / peak for rate, peak in zip(rates["bitloom"], peaks)),
        "peak_gflops": statistics.median(peaks) / 1e9,
        "memory": {**memory, "bitloom_pool": pool},
    }


def versions_of(contenders):
    return {kind: contender.description for kind, contender in contenders.items() if kind != "bitloom"}


def show_head(ours, versions, unit, condition):
    peer = next(iter(versions.values()), {"version": "none", "optimizer": "-"})
    print(f"{ours['cpu']}, {ours['threads']} threads; PyTorch {peer['version']}, {peer['optimizer']}{condition}")
    print(f"{unit}/s, share of the peak of matrix products, Bitloom's speed over each peer's; peak memory in MiB: Bitloom's")
    print(f"tensors, then processes: Bitloom, {', '.join(PEERS.values())}")
    titles = "".join(f"{title:>20}" for title in PEERS.values())
    print(f"\n{'net':<14}{'type':<6}{'Bitloom':>10}{'of peak':>8}{titles}   MiB")


def show_row(row, rates):
    text = f"{row['net']:<14}{row['dtype']:<6}{rates['bitloom']:>10.0f}{row['share_of_peak']:>8.0%}"
    for kind in PEERS:
        text += f"{rates[kind]:>12.0f}{row['ratio'][kind]:>7.2f}x" if kind in rates else f"{'-':>20}"
    peaks = [row["memory"].get(kind) for kind in ("bitloom_pool", "bitloom", *PEERS)]
    print(text + "   " + "/".join(f"{peak / 2**20:.0f}" if peak else "-" for peak in peaks), flush=True)
    for kind, why in row["missing"].items():
        print(f"  {PEERS[kind]} did not run: {why}", flush=True)


def parse_list(text, known, parser, option):
    names = text.split(",")
    for name in names:
        if name not in known:
            parser.error(f"{option}: unknown '{name}'; there are {', '.join(known)}")
    return names


def add_options(parser, program, nets, all_nets):
    parser.add_argument("program", help=program)
    parser.add_argument("--nets", default=nets, help=f"of {', '.join(all_nets)} (default: %(default)s)")
    parser.add_argument("--dtypes", default="f32,bf16", help="(default: %(default)s)")
    parser.add_argument("--peers", default=",".join(PEERS), help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of all (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all cores)")


def measure_all(parser, arguments, all_nets, dtypes, measure, show, head):
    """Rows of measure(net, dtype) for the nets and types that the options name, each shown; Bitloom's description and versions
    of the peers."""
    if arguments.rounds < 1 or arguments.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    nets = parse_list(arguments.nets, all_nets, parser, "--nets")
    dtypes = parse_list(arguments.dtypes, dtypes, parser, "--dtypes")
    arguments.peers = parse_list(arguments.peers, PEERS, parser, "--peers")
    rows = []
    for net in nets:
        for dtype in dtypes:
            row, ours, versions = measure(net, dtype)
            if not rows:
                head(ours, versions)
            show(row)
            rows.append(row)
    return rows, ours, versions
