"""Runs hawser under a real Slurm: a one-node cluster on this machine for the duration of the test.

usage: slurm_test.py --hawser BINARY --mpirun MPIRUN --model CONFIG_JSON

Starts munged, slurmctld and slurmd with their own folder, key and ports, independent of other daemons on this machine,
and stops them by process id when the test ends for any reason. Fails without the Debian packages munge, slurmctld,
slurmd and slurm-client.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client",
            "scancel": "slurm-client", "squeue": "slurm-client", "sinfo": "slurm-client"}
RECIPE = """model: {{config: {model}}}
data: {{train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}}
train: {{steps: 6, global_batch_size: 4, seed: 5}}
optimizer: {{learning_rate: 1.0e-2}}
output: run
"""


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def eventually(what, attempt, seconds=20.0):
    end = time.monotonic() + seconds
    while True:
        result = attempt()
        if result:
            return result
        check(time.monotonic() < end, f"no {what} in {seconds:.0f} s")
        time.sleep(0.05)


def free_ports(count):
    """Ports that no program has. They lie below those that the kernel gives to programs that let it choose."""
    ports = set()
    while len(ports) < count:
        port = random.randrange(10000, 30000)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            ports.add(port)
    return ports


def end_with_parent():
    """Called in a child process: requests SIGTERM if this test is killed and cannot stop the child."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Cluster:
    """One node, n1, with four CPUs. Starts and stops in less than a second."""

    def __init__(self, folder):
        self.folder = folder
        self.daemons = []
        self.environment = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"),
                                OMPI_MCA_btl="self,vader,tcp", OMPI_MCA_btl_vader_backing_directory=str(folder))

    def start(self):
        folder, user, host = self.folder, pwd.getpwuid(os.getuid()).pw_name, socket.gethostname()
        for name in ("state", "spool/n1", "tmp/n1", "munge"):
            (folder / name).mkdir(parents=True)
        for path in (folder, folder / "munge"):
            path.chmod(0o711)
        key = folder / "munge/key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        controller, node = free_ports(2)
        (folder / "slurm.conf").write_text(f"""ClusterName=hawser-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=5,socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=8
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=n1 Default=YES MaxTime=5 State=UP
""")
        # Control groups are not used, and a container may have none. Naming a plugin avoids the search for one.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.launch("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge/socket",
                    f"--pid-file={folder}/munge/pid", f"--log-file={folder}/munged.log",
                    f"--seed-file={folder}/munge/seed")
        eventually("socket of munged", (folder / "munge/socket").exists)
        self.launch("slurmctld", "-D", "-c")
        self.launch("slurmd", "-D", "-N", "n1")
        eventually("idle node", lambda: self.ask("sinfo", "-h", "-o", "%T") == "idle")

    def launch(self, program, *arguments):
        with open(self.folder / f"{program}.out", "wb") as out:
            self.daemons.append(subprocess.Popen([program, *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                                 stdout=out, stderr=out, start_new_session=True,
                                                 preexec_fn=end_with_parent))

    def ask(self, *command):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=20)
        return done.stdout.strip()

    def srun(self, folder, *arguments):
        return subprocess.Popen(["srun", "-n", "2", *arguments], cwd=folder, env=self.environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=end_with_parent)

    def jobs(self):
        return self.ask("squeue", "-h", "-o", "%A").split()

    def tasks(self):
        """Processes of all job steps by task number: those with this cluster's slurm.conf and a task number."""
        found = {}
        mine = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            task = [v for v in variables if v.startswith(b"SLURM_PROCID=")]
            if mine in variables and task:
                found[int(task[0].split(b"=")[1])] = int(process.name)
        return found

    def stop(self):
        """Cancels jobs, then stops the daemons in reverse order."""
        with contextlib.suppress(Exception):
            for job in self.jobs():
                self.ask("scancel", "--signal=KILL", "--full", job)
            eventually("empty queue", lambda: not self.jobs(), 10)
        for pid in self.tasks().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def wait_for_steps(running, folder):
    path = folder / "metrics.jsonl"

    def begun():
        check(running.poll() is None, f"ended early with {running.returncode}")
        return path.exists() and path.read_text().count("\n") >= 3
    eventually("third step", begun)


def trains_as_under_mpirun(cluster, work, options):
    done = cluster.srun(work, "--mpi=pmix", options.hawser, "fit", "recipe.yaml", "--set", "output=slurm")
    out, err = done.communicate(timeout=40)
    check(done.returncode == 0, f"srun ended with {done.returncode}: {err}")
    check("done after step 6: loss " in out + err, f"the last line is missing: {out}{err}")
    mpirun = subprocess.run([options.mpirun, "-q", "-np", "2", options.hawser, "fit", "recipe.yaml", "--set",
                             "output=mpirun"], cwd=work, capture_output=True, text=True, timeout=40)
    check(mpirun.returncode == 0, f"mpirun ended with {mpirun.returncode}: {mpirun.stderr}")
    check(len(losses(work / "slurm")) == 6, "six steps")
    check(losses(work / "slurm") == losses(work / "mpirun"), f"{losses(work / 'slurm')} and {losses(work / 'mpirun')}")
    world = json.loads(subprocess.run([options.hawser, "inspect", "slurm", "--json"], cwd=work, capture_output=True,
                                      text=True, timeout=40).stdout)["newest"]["world"]
    check(world == 2, f"saved by {world} ranks")


def is_rejected_without_pmix(cluster, work, options):
    done = cluster.srun(work, "--mpi=none", options.hawser, "fit", "recipe.yaml", "--set", "output=none")
    out, err = done.communicate(timeout=40)
    lines = [line for line in err.splitlines() if line.startswith("hawser: ")]
    check(done.returncode == 2, f"ended with {done.returncode}: {out}{err}")
    check(lines == ["hawser: srun started 2 tasks without PMIx, which MPI needs; try srun --mpi=pmix"],
          f"{out}{err}")
    check(not (work / "none").exists(), "nothing is written")


def saves_when_it_is_cancelled(cluster, work, options):
    running = cluster.srun(work, "--mpi=pmix", options.hawser, "fit", "recipe.yaml", "--set", "output=cancelled",
                           "--set", "train.steps=1000000")
    wait_for_steps(running, work / "cancelled")
    for job in cluster.jobs():
        cluster.ask("scancel", job)
    out, err = running.communicate(timeout=40)
    check(running.returncode != 0, "a cancelled job must not succeed")
    last = [line for line in (out + err).splitlines() if line.startswith("stopped after step ")]
    check(len(last) == 1, f"the last line is missing: {out}{err}")
    eventually("end of all tasks", lambda: not cluster.tasks())
    saved = subprocess.run([options.hawser, "inspect", "cancelled", "--verify", "--json"], cwd=work, capture_output=True,
                           text=True, timeout=40)
    check(saved.returncode == 0, f"the checkpoint is incomplete: {saved.stderr}")
    check(f"stopped after step {json.loads(saved.stdout)['newest']['step']}" in last[0], f"{last} {saved.stdout}")


def ends_when_a_rank_is_killed(cluster, work, options):
    running = cluster.srun(work, "--mpi=pmix", "--kill-on-bad-exit", options.hawser, "fit", "recipe.yaml", "--set",
                           "output=killed", "--set", "train.steps=1000000")
    wait_for_steps(running, work / "killed")
    os.kill(cluster.tasks()[1], signal.SIGKILL)
    begin = time.monotonic()
    out, err = running.communicate(timeout=40)
    check(time.monotonic() - begin < 25, "the other rank ran longer than KillWait")
    check(running.returncode != 0, "a job that lost a rank must not succeed")
    check(re.search(r"^srun: error: n1: task 1: Killed$", err, re.M), f"the rank is not named: {out}{err}")
    eventually("end of all tasks", lambda: not cluster.tasks())
    eventually("empty queue", lambda: not cluster.jobs())


def main():
    parser = argparse.ArgumentParser()
    for name in ("--hawser", "--mpirun", "--model"):
        parser.add_argument(name, required=True, type=lambda path: os.path.abspath(shutil.which(path) or path))
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if missing:
        sys.exit(f"slurm_test: missing packages: {' '.join(missing)}; try scripts/install-packages --for tests")
    # A short path, since it contains sockets.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hawser-slurm-", dir="/tmp"))
    cluster = Cluster(folder)
    for number in (signal.SIGTERM, signal.SIGALRM):  # so that stop() is called
        signal.signal(number, lambda *_: sys.exit("slurm_test: interrupted, or not over in 75 s"))
    signal.alarm(75)
    failed, succeeded = 0, False
    try:
        work = folder / "work"
        work.mkdir()
        (work / "recipe.yaml").write_text(RECIPE.format(model=options.model))
        with open(work / "text.jsonl", "w") as text:
            for line in range(40):
                ids = [(line * 31 + i * i * 7) % 96 for i in range(5 + line % 23)]
                text.write(json.dumps({"input_ids": ids}) + "\n")
        cluster.start()
        for test in (trains_as_under_mpirun, is_rejected_without_pmix, saves_when_it_is_cancelled,
                     ends_when_a_rank_is_killed):
            begin = time.monotonic()
            try:
                test(cluster, work, options)
                print(f"ok      {test.__name__} ({time.monotonic() - begin:.1f} s)")
            except Exception:
                failed += 1
                print(f"FAILED  {test.__name__}\n{traceback.format_exc()}")
        succeeded = failed == 0
    finally:
        signal.alarm(0)
        cluster.stop()
        if not succeeded:
            for log in sorted(folder.glob("*.out")):
                print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
