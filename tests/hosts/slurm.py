"""Slurm on this machine: a controller and nodes that are daemons of it, with a key, settings and ports of their own. Needs the package
slurm-wlm, but not root: who starts them is the one whose jobs they run."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

SBIN = os.environ["PATH"] + ":/usr/sbin:/sbin"  # where its daemons are, which users have no need of
IS_THERE = all(shutil.which(name, path=SBIN) for name in ("munged", "slurmctld", "slurmd", "sbatch"))

# Without cgroups and accounts. A task that is put back waits for cred_expire, which is two minutes by default, and 5 s at least.
SETTINGS = """ClusterName=bitloom
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4\n"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """Nodes n1, n2, ... of four processors each, whatever the machine has."""

    def __init__(self, nodes=2):
        self.folder = Path(tempfile.mkdtemp(prefix="bitloom-slurm-"))
        self.daemons = []
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        ports = free_ports(nodes + 1)
        host = socket.gethostname().split(".")[0]
        (self.folder / "munge").mkdir(mode=0o700)
        (self.folder / "state").mkdir()
        key = self.folder / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        settings = SETTINGS.format(host=host, folder=self.folder, user=getpass.getuser(), ports=ports)
        for name, port in zip(self.nodes, ports[1:]):
            (self.folder / f"spool-{name}").mkdir()
            settings += NODE.format(name=name, host=host, port=port)
        (self.folder / "slurm.conf").write_text(settings)
        files = [f"--{kind}={self.folder}/munge/{name}" for kind, name in
                 (("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]
        self.start("munged", "--foreground", "--force", *files)
        self.wait((self.folder / "munge/socket").exists, "munged")
        self.start("slurmctld", "-D")
        for name in self.nodes:
            self.start("slurmd", "-D", "-N", name)
        self.wait(lambda: self.call("sinfo", "--noheader", "--format=%t %D", check=False).split() == ["idle", str(nodes)], "Slurm")

    def environment(self, **more):
        return dict(os.environ, SLURM_CONF=str(self.folder / "slurm.conf"), PATH=SBIN, OMP_NUM_THREADS="1", **more)

    def start(self, name, *options):
        with open(self.folder / "daemons.log", "a", encoding="utf-8") as log:
            self.daemons.append(subprocess.Popen([name, *options], env=self.environment(), stdout=log, stderr=log))

    def call(self, *command, check=True, **environment):
        done = subprocess.run([str(word) for word in command], env=self.environment(**environment), check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stdout}")
        return done.stdout.strip()

    def wait(self, condition, what, log=None, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                log = log or self.folder / "daemons.log"
                raise RuntimeError(f"{what}: not within {seconds} s; {log}:\n{log.read_text() if log.exists() else ''}")
            time.sleep(0.1)

    def job(self, task):
        """What Slurm knows of a task, "17_1" say, by name."""
        words = self.call("scontrol", "--oneliner", "show", "job", task).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def close(self):
        deadline = time.monotonic() + 30
        while self.call("squeue", "--noheader", check=False) and time.monotonic() < deadline:
            self.call("scancel", "--user", getpass.getuser(), check=False)
            time.sleep(0.5)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            daemon.wait()
        shutil.rmtree(self.folder, True)
