"""Runs of mok train as processes, by each launcher, and what is left of them: for scripts/soak.

Processes are found by a mark in their environment and never by name, and only such are signalled."""
import os
import re
import signal
import subprocess
import time

GRACE_S = 1.5  # beyond the ranks' deadline: what mok launch gives the others once a rank has failed

# How ranks come about: what stands before the command; what is added to the environment; whether the launcher itself
# ends a rank that is stopped; and whether its own code tells of a rank that failed. mpirun's does not with
# --enable-recovery, which keeps it from ending ranks that have yet to speak. "bare" has no launcher: the ranks are
# started here, and each one's code is seen.
MPIRUN = ["mpirun", "--enable-recovery", "--oversubscribe", "--allow-run-as-root", "-n", "{ranks}"]
LAUNCHERS = {
    "shm": {"command": ["{mok}", "launch", "--ranks", "{ranks}", "--grace", "{grace}", "--"], "environment": {},
            "ends_stopped": True, "tells_code": True},
    "bare": {"command": None, "environment": {}, "ends_stopped": False, "tells_code": True},
    "mpi": {"command": MPIRUN, "environment": {}, "ends_stopped": False, "tells_code": False},
    "messages": {"command": MPIRUN, "environment": {"MOK_SHARE_MEMORY": "0"}, "ends_stopped": False,
                 "tells_code": False},
}
RANK_VARIABLES = ("MOK_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")

# What every rank runs: its messages into a file of its own, and other options where it is the odd one. sh becomes mok,
# so that a signal to this process is a signal to mok.
WRAPPER = """rank=${MOK_RANK:-${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}
if [ "$rank" = "$SOAK_ODD_RANK" ]; then set -- "$@" $SOAK_ODD_OPTIONS; fi
exec "$@" 2>"$SOAK_WORK/err.$rank" """


def processes(soak_id):
    """{pid: rank or None} of what runs with this in its environment; those that have ended are none."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                pairs = file.read().split(b"\0")
        except OSError:
            continue
        if b"MOK_SOAK_ID=" + soak_id.encode() in pairs:
            ranks = dict(pair.decode(errors="replace").split("=", 1) for pair in pairs
                         if pair.partition(b"=")[0].decode(errors="replace") in RANK_VARIABLES)
            rank = next((ranks[name] for name in RANK_VARIABLES if name in ranks), None)
            found[int(entry)] = int(rank) if rank is not None and rank.isdigit() else None
    return found


def named_objects():
    return {name for name in os.listdir("/dev/shm") if name.startswith("mok.")}


class Run:
    """One run of mok train as processes."""

    def __init__(self, soak, launcher, ranks, work, environment=None, threads=1, timeout_ms=None):
        self.soak, self.launcher, self.ranks, self.work = soak, LAUNCHERS[launcher], ranks, work
        timeout_ms = timeout_ms or soak.timeout_ms
        self.id = f"{os.getpid()}-{work.name}"
        self.out = work / "out"
        self.children, self.codes = [], []
        work.mkdir(parents=True)
        env = dict(os.environ, MOK_SOAK_ID=self.id, SOAK_WORK=str(work), **self.launcher["environment"])
        env.update(environment or {})
        command = ["sh", "-c", WRAPPER, "rank", str(soak.mok), "train", *soak.options, "--out", str(self.out),
                   "--threads", str(threads), "--timeout-ms", str(timeout_ms)]
        self.stdout = open(work / "stdout", "wb")
        self.stderr = open(work / "stderr", "wb")
        self.begin = time.time()
        if self.launcher["command"] is None:
            for rank in range(ranks):
                own = dict(env, MOK_RANK=str(rank), MOK_RANKS=str(ranks), MOK_SHM=f"soak-{self.id}")
                self.start(command, own)
        else:
            fill = {"mok": str(soak.mok), "ranks": str(ranks), "grace": str(soak.timeout_ms / 1000 + GRACE_S)}
            self.start([part.format(**fill) for part in self.launcher["command"]] + command, env)

    def start(self, command, env):
        self.children.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.stdout,
                                              stderr=self.stderr))

    def over(self):
        return all(child.poll() is not None for child in self.children)

    def wait(self, seconds):
        until = time.time() + seconds
        while not self.over() and time.time() < until:
            time.sleep(0.01)
        return self.over()

    def living(self):
        for child in self.children:
            child.poll()  # buries those that have ended
        return processes(self.id)

    def digests(self):
        return re.findall(r"state digest: (\w+)", (self.work / "stdout").read_text(errors="replace"))

    def close(self):
        """Whatever is left, by its number: all of it carries this run's mark."""
        left = self.living()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for child in self.children:
            child.wait()
        self.stdout.close()
        self.stderr.close()
        return left
