"""Several hosts on one machine: network namespaces that a switch with a rate and a delay connects, or, for rates at which that
would take the cores away from what runs on the hosts, the kernel's bridge with a rate.

Needs root.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("BITLOOM_BIN", ROOT / "build/release/bin"))
PROGRAM = BIN / "bitloom"
AGENT = Path(__file__).resolve().parent / "agent"  # reaches a host as ssh would: AGENT HOST COMMAND...
STATE = "BITLOOM_TEST_HOSTS"  # in the environment: the folder that says which hosts there are


def run(*command):
    subprocess.run(command, check=True)


class Switch:
    """A program that forwards frames between TAP devices; each way of a link has a rate in Mbit/s (0: none), and a delay."""

    def __init__(self, names, megabits, milliseconds):
        self.program = subprocess.Popen(
            [BIN / "bitloom_test_switch", str(megabits), str(milliseconds), *names], stdout=subprocess.PIPE, text=True)
        if self.program.stdout.readline() != "ready\n":
            raise RuntimeError("the switch did not start")

    def close(self):
        self.program.kill()
        self.program.wait()
        self.program.stdout.close()


class Bridge:
    """The kernel forwards; each way of a link has a rate in Mbit/s."""

    def __init__(self, names, megabits):
        self.name = f"bl{os.getpid() % 100000}br"
        self.ports = [name + "p" for name in names]
        run("ip", "link", "add", self.name, "type", "bridge")
        run("ip", "link", "set", self.name, "up")
        for name, port in zip(names, self.ports):
            run("ip", "link", "add", name, "type", "veth", "peer", "name", port)
            run("ip", "link", "set", port, "master", self.name, "up")
            for device in (name, port):
                run("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{megabits}mbit", "burst", "128kb", "latency",
                    "200ms")

    def close(self):
        for device in (*self.ports, self.name):  # the kernel takes its time with those of a namespace
            run("ip", "link", "del", device)


class Hosts:
    """`count` hosts 10.77.0.1, 10.77.0.2, ...; the first one is where launchers run. by_kernel: without a delay."""

    def __init__(self, count=4, megabits=0, milliseconds=0, by_kernel=False):
        self.folder = Path(tempfile.mkdtemp(prefix="bitloom-hosts-"))
        self.names = [f"bl{os.getpid()}h{number + 1}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        devices = [f"bl{os.getpid() % 100000}t{number + 1}" for number in range(count)]
        self.switch = Bridge(devices, megabits) if by_kernel else Switch(devices, megabits, milliseconds)
        for name, address, device in zip(self.names, self.addresses, devices):
            run("ip", "netns", "add", name)
            run("ip", "link", "set", device, "netns", name)
            run("ip", "-n", name, "link", "set", device, "name", "net0")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "net0")
            run("ip", "-n", name, "link", "set", "net0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            (self.folder / address).write_text(name + "\n")

    @property
    def disk(self):
        """What every host calls the disk that is its own."""
        return self.folder / "disk"

    def give_disks(self):
        """A disk for each host; returns what this machine calls them. The first host's is `disk` here, too."""
        disks = [self.disk, *(self.folder / f"disk-{address}" for address in self.addresses[1:])]
        for disk in disks:
            disk.mkdir()
        return disks

    def environment(self):
        environment = dict(os.environ)
        environment.update({STATE: str(self.folder), "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
                            "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                            "XDG_CACHE_HOME": str(self.folder / "cache")})
        return environment

    def hostfile(self, first=1):
        path = self.folder / "hosts"
        path.write_text("".join(address + "\n" for address in self.addresses[first:]))
        return path

    def start(self, command, host=0, **options):
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *map(str, command)], env=self.environment(),
                                start_new_session=True, **options)

    def mpirun(self, command, slots=1, **options):
        """`slots` processes on every host."""
        mca = {"plm": "rsh", "plm_rsh_agent": AGENT, "plm_rsh_no_tree_spawn": 1, "btl": "tcp,self,vader", "pml": "ob1",
               "btl_tcp_if_include": "net0", "oob_tcp_if_include": "net0", "hwloc_base_binding_policy": "none"}
        words = [word for name, value in mca.items() for word in ("--mca", name, value)]
        hosts = ",".join(f"{address}:{slots}" for address in self.addresses)
        return self.start(["mpirun", "--host", hosts, *words, "-x", "OMP_NUM_THREADS", *command], **options)

    def processes(self, host):
        listed = subprocess.run(["ip", "netns", "pids", self.names[host]], capture_output=True, text=True, check=True)
        return [int(word) for word in listed.stdout.split()]

    def ranks(self, host):
        """The training processes there."""
        found = []
        for process in self.processes(host):
            try:
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                variables = Path(f"/proc/{process}/environ").read_bytes()
            except OSError:
                continue
            if b"train" in words and b"launch" not in words and b"OMPI_COMM_WORLD_RANK=" in variables:
                found.append(process)
        return found

    def cut(self, host):
        run("ip", "-n", self.names[host], "link", "set", "net0", "down")

    def mend(self, host):
        run("ip", "-n", self.names[host], "link", "set", "net0", "up")

    def kill(self, host):
        """The machine goes: its processes, and nobody can reach it any more. Their connections are closed, as by a shutdown."""
        (self.folder / self.addresses[host]).unlink(missing_ok=True)
        for process in self.processes(host):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.1)  # else no peer hears of it, as if a link were cut
        self.cut(host)

    def revive(self, host):
        self.mend(host)
        (self.folder / self.addresses[host]).write_text(self.names[host] + "\n")

    def close(self):
        for host in range(len(self.names)):
            for process in self.processes(host):
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.switch.close()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def cache_of(folder, address):
    return folder / f"cache-{address}"


def tensors(run):
    """Those of the model in a run folder, without its notes."""
    data = (run / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__")
    return header, data[8 + length:]
