"""`testbed exec`, `ps`, `list`, `link`, `shape`: the commands for a bed that is up."""

import os
import pwd
import subprocess

from bed import HOME, USER, fail, output

SSHD = "/usr/sbin/sshd"
ENGINES = ("/usr/sbin/dockerd", "/usr/bin/containerd")  # not listed by `ps`, like the host's sshd; their children are


def enter_argv(bed, host, argv, as_root=False):
    """Returns the argv that runs `argv` inside the host, as the test user with a minimal environment, or as root."""
    number = bed.number(host)
    pid = bed.init_pid(number)
    user = pwd.getpwnam(USER)
    name, home = ("root", "/root") if as_root else (USER, HOME)
    environment = [f"HOME={home}", f"USER={name}", f"LOGNAME={name}", "SHELL=/bin/sh",
                   "PATH=/usr/local/bin:/usr/bin:/bin" + (":/usr/sbin:/sbin" if as_root else ""), "LANG=C.UTF-8"]
    drop = [] if as_root else ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", f"--wdns={home}", *drop,
            "env", "-i", *environment, *argv]


def join_cgroup(bed, host):
    """Moves this process to the cgroup of the host's logins, if `up --cgroup` made one."""
    procs = bed.cgroup / bed.host_name(bed.number(host)) / "cgroup.procs"
    if procs.exists():
        procs.write_text(str(os.getpid()))


def processes(bed, host):
    """Returns every process of the host except sshd and its engine: [(pid on the bastion, pid inside, uid, state, command line)]."""
    number = bed.number(host)
    init = bed.init_pid(number)
    found = []
    for pid in bed.pids_by_netns().get(bed.netns(number), []):
        try:
            if pid == init or os.readlink(f"/proc/{pid}/exe") in (SSHD, *ENGINES):
                continue
        except OSError:
            pass  # a zombie has no exe; it is listed, because it was not reaped. EACCES: the process has just exited
        try:
            with open(f"/proc/{pid}/status") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if command == "podman":
            continue  # rootless podman keeps a process that holds its user namespace
        inside = int(status["NSpid"].split()[-1])
        state = status["State"].split()[0]
        if not command:
            command = f"[{status['Name']}]"
            if status["Name"] == "sshd":
                continue  # an sshd session that is just ending
        found.append((pid, inside, int(status["Uid"].split()[0]), state, command))
    return found


def set_link(bed, host, state):
    if state not in ("up", "down"):
        fail(f"link {host} {state}: the state is up or down")
    output("ip", "link", "set", bed.netns(bed.number(host)), state)


def shape(bed, host, rate):
    """Limits both directions of the host's link to `rate` (tc syntax, e.g. 100mbit); 'off' removes the limits."""
    name = bed.netns(bed.number(host))
    for prefix, device in (([], name), (["ip", "netns", "exec", name], "eth0")):
        if rate == "off":
            subprocess.run([*prefix, "tc", "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL)
        else:
            output(*prefix, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate,
                   "burst", "64kb", "latency", "50ms")


def hostlist(bed):
    count = bed.count()
    return "h01" if count == 1 else f"h[01-{count:02d}]"


def environment(bed):
    """Returns the variables that make other launchers use the bed."""
    return {
        "SORTIE_TESTBED_SSH_CONFIG": str(bed.ssh_config),
        "SORTIE_TESTBED_HOSTS": hostlist(bed),
        # pdsh adds -l<local user> to its ssh arguments; with PDSH_SSH_ARGS the User of the ssh_config is used.
        "PDSH_RCMD_TYPE": "ssh",
        "PDSH_SSH_ARGS": f"-F {bed.ssh_config} -2 -a -x %h",
        "OMPI_MCA_plm_rsh_agent": f"ssh -F {bed.ssh_config}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
