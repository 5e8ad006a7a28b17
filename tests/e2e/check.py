"""`sortie check`: sound hosts pass, and each fault is reported for its host and for no other."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import look
from harness import BUILD, HOSTS, PATIENCE, ROOT, SORTIE, TRAINER, check, equal, run_to_end, wait_until
from machine_clock import now

CONFIG = ROOT / "tests/e2e/tiny.toml"
PREFIX = "/tmp/tokens"  # every host has its own /tmp
SAVE = "/tmp/checkpoints"
PORT = 29517


def is_sound(network):
    """Whether a host's network check is good. Slow round trips are accepted, because the host may only have been busy."""
    return network["verdict"] == "pass" or network["verdict"] == "warn" and network["reason"].startswith("slow to ")


class Checked:
    """One `sortie check --json`."""

    def __init__(self, bed, *arguments, hosts="h[01-04]", seconds=60, ssh_config=None):
        argv = [SORTIE, "check", *arguments, "--ssh-config", ssh_config or bed.ssh_config, "--json"]
        argv += ["--hosts", hosts] if hosts else []
        started = now()
        done = run_to_end(*argv, seconds=seconds)
        self.seconds = now() - started
        self.code = done.returncode
        check(done.stdout.startswith("{"), f"{argv}: {done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}")
        self.json = json.loads(done.stdout)
        equal(self.json["schema"], "sortie/check/1", "schema")
        self.hosts = {host["host"]: host for host in self.json["hosts"]}

    def finding(self, host, name):
        return next(one for one in self.hosts[host]["checks"] if one["check"] == name)

    def expect(self, host, name, verdict, words=""):
        found = self.finding(host, name)
        if name == "network" and verdict == "pass" and found["verdict"] != "pass" and is_sound(found):
            return
        equal(found["verdict"], verdict, f"{name} of {host} ({found['reason']})")
        check(words in found["reason"], f"{name} of {host}: no {words!r} in {found['reason']!r}")
        check(verdict == "pass" or not words or found["fix"], f"{name} of {host}: no fix")

    def failed(self):
        return {(host, one["check"]) for host, all_of_it in self.hosts.items()
                for one in all_of_it["checks"] if one["verdict"] == "fail"}


def job(*more):
    return [CONFIG, "--slots", "2", "--set", f'data.data_prefixes=["{PREFIX}"]', "--set", f"trainer.save_dir={SAVE}",
            "--set", f"runner.master_port={PORT}", *more]


@contextlib.contextmanager
def data_on(bed):
    for host in HOSTS:
        bed.run_in(host, "sh", "-c", f"head -c 300000 /dev/zero > {PREFIX}.bin; head -c 800 /dev/zero > {PREFIX}.idx")
    try:
        yield
    finally:
        for host in HOSTS:
            bed.run_in(host, "rm", "-rf", f"{PREFIX}.bin", f"{PREFIX}.idx", SAVE, as_root=True)


@contextlib.contextmanager
def undone(bed, host, do, undo):
    """Runs `do` as root on the host, and `undo` at the end in any case."""
    bed.run_in(host, "sh", "-c", do, as_root=True)
    try:
        yield
    finally:
        bed.run_in(host, "sh", "-c", undo, as_root=True)


@contextlib.contextmanager
def listener(bed, host):
    program = (f"import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
               f"s.bind(('0.0.0.0', {PORT})); s.listen(); time.sleep(60)")
    child = subprocess.Popen(look.enter_argv(bed.bed, host, ["/usr/bin/python3", "-c", program]),
                             stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: f":{PORT} " in bed.run_in(host, "ss", "-tln"), 10, f"a listener on {host}")
        yield
    finally:
        for pid, *_, command in bed.processes(host):
            if str(PORT) in command:
                subprocess.run(["kill", "-9", str(pid)], check=False)
        child.wait(10)


def scenario_sound_hosts_and_a_job(bed):
    with data_on(bed):
        result = Checked(bed, *job())
        equal(result.failed(), set(), "failures")
        equal(result.code, {"pass": 0, "warn": 1}[result.json["verdict"]], "exit code")
        for host in HOSTS:
            for name in ("ssh", "clock", "kernel", "save_dir", "data", "program", "mpi", "network", "leftovers"):
                result.expect(host, name, "pass")
            equal([stage["stage"] for stage in result.hosts[host]["stages"]],
                  ["resolve", "connect", "handshake", "auth", "runner"], "stages")
            links = result.hosts[host]["links"]
            equal(sorted(link["to"] for link in links), sorted(set(HOSTS) - {host}), f"links of {host}")
            for link in links:
                check(link["ok"] and link["round_trip_us"] > 0 and link["path_mtu"] == 1500, f"{host}: {link}")
        result.expect("h01", "port", "pass")
        result.expect("h02", "port", "none")
        equal(bed.run_in("h01", "sh", "-c", f"ls -A {SAVE} 2>/dev/null | wc -l").strip(), "0", "files left in save_dir")
        equal(bed.run_in("h01", "sh", "-c", "ls -d /tmp/.sortie* 2>/dev/null | wc -l").strip(), "0", "files left")


def scenario_gpus_and_libraries_are_shown_and_a_module_that_is_missing_fails(bed):
    """GPUs are emulated; every host has its own /tmp, and so its own module there."""
    module = "/tmp/libsortie-cuda.so"
    gpus = ["--set", "trainer.device=cuda", "--set", f"runner.env.SORTIE_CUDA_MODULE={module}"]
    install = f"ln -s {BUILD}/emulated/libsortie-cuda-emulated.so {module}"
    with data_on(bed), undone(bed, "h01", install, f"rm {module}"):
        with undone(bed, "h02", install, f"rm {module}"):
            result = Checked(bed, *job(*gpus), hosts="h[01-02]")
            equal(result.failed(), set(), "failures")
            for host in ("h01", "h02"):
                result.expect(host, "gpus", "pass", "x emulated GPU")
                result.expect(host, "trainer", "pass", "NCCL 2.28.9")
                equal(result.hosts[host]["trainer"]["driver_cuda"], "13.0", "CUDA of the driver")
        result = Checked(bed, *job(*gpus), hosts="h[01-02]")
        result.expect("h01", "trainer", "pass")
        result.expect("h02", "trainer", "fail", f"{module}: can not be loaded")
        equal(result.code, 2, "exit code")


def scenario_staged_files_are_looked_for_here(bed):
    """Files below {stage} are on no host before the job runs: `check` looks for them on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        for name, size in (("books.bin", 300000), ("books.idx", 800)):
            Path(folder, name).write_bytes(bytes(size))
        options = [CONFIG, "--set", f"trainer.save_dir={SAVE}", "--set", 'data.data_prefixes=["{stage}/books"]',
                   "--set", f'runner.stage=["{folder}/books.bin", "{folder}/books.idx", "{TRAINER}"]']
        result = Checked(bed, *options)
        equal(result.failed(), set(), "failures")
        for host in HOSTS:
            result.expect(host, "staged", "pass", "on this machine")
            equal({one["check"] for one in result.hosts[host]["checks"]} & {"data"}, set(), "files asked of hosts")
        Path(folder, "books.idx").unlink()
        result = Checked(bed, *options)
        equal(result.failed(), {(host, "staged") for host in HOSTS}, "failures")
        result.expect("h02", "staged", "fail", "{stage}/books.idx: ")


def scenario_host_down_data_differs_shm_small(bed):
    with data_on(bed), undone(bed, "h03", "mount -o remount,size=1m /dev/shm", "mount -o remount,size=50% /dev/shm"):
        bed.run_in("h02", "sh", "-c", f"printf x | dd of={PREFIX}.bin bs=1 seek=299999 conv=notrunc 2>/dev/null")
        bed.link("h04", "down")
        result = Checked(bed, *job("--timeout", "6"))  # also for the living hosts
        equal(result.code, 2, "exit code")
        equal(result.failed(), {("h02", "data"), ("h03", "shm"), ("h04", "ssh")}, "failures")
        result.expect("h02", "data", "fail", "tokens.bin: other content")
        result.expect("h03", "shm", "fail", "free of 1.0 MiB for 2 ranks")
        result.expect("h04", "ssh", "fail", "connect: ")
        result.expect("h01", "network", "pass", "2 hosts")
        check(result.seconds < 25 * PATIENCE, f"{result.seconds:.1f} s with one dead host")


def scenario_blocked_link_unwritable_save_dir_port_taken(bed):
    blocked = f"{bed.address('h02')}/32"
    with (data_on(bed), undone(bed, "h03", f"ip route add blackhole {blocked}", f"ip route del blackhole {blocked}"),
          undone(bed, "h02", f"mkdir -m 700 {SAVE}", f"rmdir {SAVE}"), listener(bed, "h01")):
        result = Checked(bed, *job())
        equal(result.code, 2, "exit code")
        equal(result.failed(), {("h02", "network"), ("h03", "network"), ("h02", "save_dir"), ("h01", "port")}, "failures")
        result.expect("h02", "network", "fail", "no way to h03: no answer")
        result.expect("h03", "network", "fail", "no way to h02: ")
        result.expect("h02", "save_dir", "fail", "Permission denied")
        result.expect("h01", "port", "fail", f"MASTER_PORT {PORT}: Address already in use")


def scenario_large_packets_vanish_and_a_slow_link(bed):
    with undone(bed, "h02", "ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500"):
        look.shape(bed.bed, "h04", "100mbit")
        try:
            result = Checked(bed, "--bandwidth", "1")
        finally:
            look.shape(bed.bed, "h04", "off")
        equal(result.code, 2, "exit code")
        for host in ("h01", "h03", "h04"):
            result.expect(host, "network", "fail", "bytes vanish on the way to h02 (MTU here: 1500)")
        result.expect("h02", "network", "pass", "MTU 1400")
        result.expect("h04", "bandwidth", "warn", "Gbit/s to h01")
        check(result.hosts["h04"]["bandwidth"]["bytes"] * 8 < 200e6, "the shaped link was measured as a fast one")


def scenario_program_that_is_not_there(bed):
    argv = [str(word) for word in (SORTIE, "check", "--hosts", "h[01-02]", "--ssh-config", bed.ssh_config, "--", "/no/such")]
    done = run_to_end(*argv, seconds=30)
    equal(done.returncode, 2, "exit code")
    check("FAIL program: h[01-02] (2): /no/such: No such file or directory" in done.stdout, done.stdout)
    check("fix: " in done.stdout and "\x1b" not in done.stdout, done.stdout)
    check(done.stdout.rstrip().endswith("2 hosts: 0 passed, 0 with warnings, 2 failed"), done.stdout)


@contextlib.contextmanager
def shaped(bed, rates):
    """Limits the links of hosts in both directions. `rates` is {host: rate}."""
    try:
        for host, rate in rates.items():
            look.shape(bed.bed, host, rate)
        yield
    finally:
        for host in rates:
            look.shape(bed.bed, host, "off")


# Far apart, so that on a busy machine a sound link does not look like the slow one.
RATES = {host: "8mbit" if host == "h03" else "60mbit" for host in HOSTS}


class CheckedSites(Checked):
    """One `sortie check --json` of a job whose hosts are in two sites."""

    def __init__(self, bed, folder, *arguments):
        config = Path(folder) / "sites.toml"
        config.write_text('[runner]\nhosts = ["h[01-02] slots=1 site=oslo", "h[03-04] slots=1 site=rome"]\n'
                          'program = ["true"]\nallow_same_machine = true\n')
        super().__init__(bed, config, "--set", "outer.port=52100", *arguments, hosts=None)

    def way(self, start, end):
        return next(way for way in self.json["sites"] if (way["from"], way["to"]) == (start, end))


def scenario_sites_are_measured_for_the_plan_and_a_dead_pair_is_named(bed):
    with tempfile.TemporaryDirectory() as folder, shaped(bed, {"h03": "40mbit"}):
        result = CheckedSites(bed, folder)
        result.expect("h01", "sites", "pass", "oslo (h01) and rome (h03): ")
        check(result.code in (0, 1) and not result.failed(), f"exit code {result.code} ({result.failed()})")
        for way in (result.way("oslo", "rome"), result.way("rome", "oslo")):
            check(8 < way["mbit_s"] < 60 and way["reached"] and way["port"] == 52100, f"40 Mbit/s were measured as {way}")
        plan = run_to_end(SORTIE, "plan", f"{folder}/sites.toml", "--json")
        between = json.loads(plan.stdout)["between"]
        check(8 < between["mbit_s"] < 60 and not between["not_measured"], f"the plan has {between}")
        dead = f"{bed.address('h03')}/32"
        with undone(bed, "h01", f"ip route add blackhole {dead}", f"ip route del blackhole {dead}"):
            result = CheckedSites(bed, folder)
        equal(result.failed(), {("h01", "sites"), ("h03", "sites")}, "failures")
        result.expect("h01", "sites", "fail", "oslo (h01) and rome (h03) do not reach each other: ")
        fix = result.finding("h03", "sites")["fix"]
        check("`ufw allow 52100/tcp`" in fix and 'outer.route = "launcher"' in fix, f"no command to run: {fix}")


def scenario_comm_names_the_host_with_the_slow_link(bed):
    """By the config's name of the host: two machines have the same name of their own."""
    with shaped(bed, RATES), undone(bed, "h03", "hostname h02", "hostname h03"):
        result = Checked(bed, "--comm", "--comm-bytes", "512KB", "--comm-floor", "14Mbit/s", "--slots", "2", seconds=120)
    equal(result.code, 3, f"exit code ({result.json['comm']})")
    equal(result.json["verdict"], "fail", "verdict")
    comm = result.json["comm"]
    equal((comm["verdict"], comm["ranks"], comm["hosts"], comm["floor"]), ("fail", 4, HOSTS, "set"), "comm")
    equal([found["hosts"] for found in comm["slow"]], [["h03"]], f"slow ({comm})")
    equal({frozenset((link["from"], link["to"])) for link in comm["pairs"] if not link["ok"]},
          {frozenset(("h03", other)) for other in HOSTS if other != "h03"}, f"slow pairs ({comm})")
    equal({(link["from"], link["to"]) for link in comm["ring"] if not link["ok"]}, {("h02", "h03"), ("h03", "h04")},
          f"slow links of the ring ({comm['ring']})")
    bed.expect_nothing_left(15)


def scenario_comm_of_all_ranks_and_for_people(bed):
    argv = [SORTIE, "check", "--hosts", "h[01-04]", "--slots", "2", "--ssh-config", bed.ssh_config, "--comm", "--comm-bytes",
            "256KB"]
    with shaped(bed, RATES):
        done = run_to_end(*argv, seconds=120)
        equal(done.returncode, 3, f"exit code ({done.stdout}{done.stderr})")
        check("\nFAIL comm: h03: links at 0.0" in done.stdout and "0.7 of the median here" in done.stdout, done.stdout)
        check("\n     fix: see the speed and errors of its interface" in done.stdout and "\x1b" not in done.stdout, done.stdout)
        if not os.environ.get("SORTIE_EVERY_CASE"):
            return  # the rest is slow: scripts/ci_long
        # All ranks, and a floor that even the slow link reaches.
        argv += ["--comm-ranks", "slots", "--comm-floor", "100kbit/s"]
        done = run_to_end(*argv, seconds=120)
        check(done.returncode in (0, 1), f"{done.returncode}: {done.stdout}{done.stderr}")
        check("links of 4 hosts, 8 ranks, Open MPI" in done.stdout, done.stdout)
        check("comm: PASS: every link reaches 0.0001 Gbit/s" in done.stdout, done.stdout)


def scenario_comm_has_a_deadline_and_says_what_is_missing(bed):
    Checked(bed, hosts="h[01-03]")  # pushes the runner, which then need not pass the slow link
    with shaped(bed, {"h02": "1mbit"}):
        result = Checked(bed, "--comm", "--comm-bytes", "64MB", "--comm-timeout", "8", hosts="h[01-03]", seconds=90)
    equal(result.code, 2, "exit code")
    check("not done within 8 s" in result.json["comm"]["error"]["message"], result.json["comm"])
    bed.expect_nothing_left(20)
    # If the hosts lack sortie-train, the check of the program reports it, and no job is started.
    with tempfile.TemporaryDirectory() as folder:
        for name in ("sortie", "sortie-runner"):
            shutil.copy2(SORTIE.parent / name, folder)
        argv = [str(word) for word in (Path(folder, "sortie"), "check", "--hosts", "h[01-02]", "--ssh-config", bed.ssh_config,
                                       "--comm")]
        done = run_to_end(*argv)
    equal(done.returncode, 2, "exit code")
    check(f"FAIL program: h[01-02] (2): {folder}/sortie-train: No such file or directory" in done.stdout, done.stdout)
    check("FAIL comm: not measured: no job can start on these hosts" in done.stdout, done.stdout)
