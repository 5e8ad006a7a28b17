"""Equal shares of this machine's processors for the hosts of a testbed (cgroup v1, cpu.cfs_quota_us)."""

import contextlib
import os
import sys
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000  # short, because ranks that wait for each other run one after another within a period


def require_quotas(hosts, cpus):
    if not (GROUPS / "cpu.cfs_quota_us").exists():
        sys.exit(f"no cpu controller of cgroup v1 in {GROUPS}")
    if hosts * cpus > (os.cpu_count() or 1):
        sys.exit(f"{hosts} hosts with {cpus} CPUs each are more than the {os.cpu_count()} of this machine; give fewer --cpus")


def group_of(pid):
    line = next(line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if "cpu" in line.split(":")[1].split(","))
    return GROUPS / line.split(":", 2)[2].lstrip("/")


@contextlib.contextmanager
def quotas(bed, hosts, cpus):
    """Limits all processes that sign in to a host from now on to `cpus` CPUs in total per host."""
    made = []
    try:
        for number in range(1, hosts + 1):
            sshd = bed.init_pid(number)
            group = GROUPS / f"sortie-{bed.id}-{os.getpid()}-{number}"
            before = group_of(sshd)
            group.mkdir()
            made.append((group, before, sshd))
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD_US)))
            (group / "cgroup.procs").write_text(str(sshd))
        yield
    finally:
        for group, before, sshd in made:
            with contextlib.suppress(OSError):
                (before / "cgroup.procs").write_text(str(sshd))
                for pid in (group / "cgroup.procs").read_text().split():
                    (before / "cgroup.procs").write_text(pid)
                group.rmdir()
