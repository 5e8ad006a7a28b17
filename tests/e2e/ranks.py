"""How ranks find each other and where they run: addresses of hosts with several networks, ports of concurrent jobs,
torchrun's environment, CPU sets, MPI with threads and without libpmix."""

import contextlib
import json
import subprocess

from harness import BUILD, HOSTS, PROGRAMS, SORTIE, Gates, Run, check, equal, run_to_end, wait_until, whole_events

RING = BUILD / "bin/e2e_mpi_ring"
THREADS = BUILD / "bin/e2e_mpi_threads"
STORE = ("/usr/bin/python3", PROGRAMS / "env_store.py")
FABRIC = "10.214.77"


def number(host):
    return int(host[1:])


@contextlib.contextmanager
def second_network(bed, hosts=HOSTS):
    """Creates a second network between `hosts` (a macvlan on their link), and on every host a bridge with the same address everywhere,
    as container engines do. The routes between the hosts use neither."""
    def ip(host, *argv):
        subprocess.run(["ip", "-n", bed.bed.netns(number(host)), *argv], check=True, capture_output=True, text=True)
    try:
        for host in HOSTS:
            ip(host, "link", "add", "docker0", "type", "bridge")
            ip(host, "addr", "add", "172.17.0.1/16", "dev", "docker0")
            ip(host, "link", "set", "docker0", "up")
        for host in hosts:
            ip(host, "link", "add", "link", "eth0", "name", "fab0", "type", "macvlan", "mode", "bridge")
            ip(host, "addr", "add", f"{FABRIC}.{number(host)}/24", "dev", "fab0")
            ip(host, "link", "set", "fab0", "up")
        yield
    finally:
        for host in HOSTS:
            for name in ("docker0", "fab0"):
                with contextlib.suppress(subprocess.CalledProcessError):
                    ip(host, "link", "del", name)


def events(run, name):
    return [event for event in whole_events(run.folder_of_run() / "events.jsonl") if event["event"] == name]


def stores(run, count):
    return [json.loads(run.log(rank)) for rank in range(count)]


def scenario_the_route_between_hosts_decides(bed):
    with second_network(bed), Run(bed, *STORE) as run:
        equal(run.wait(60), 0, "exit code")
        seen = stores(run, 8)
        equal({env["MASTER_ADDR"] for env in seen}, {bed.address("h01")}, "MASTER_ADDR")
        equal(events(run, "master")[0]["address"], bed.address("h01"), "address in the journal")
        equal({env["MASTER_PORT"] for env in seen}, {str(events(run, "master")[0]["port"])}, "MASTER_PORT")


def scenario_a_network_of_the_config(bed):
    show = "echo $MASTER_ADDR $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $OMPI_MCA_btl_tcp_if_include"
    with second_network(bed):
        for interface, expected in ((f"{FABRIC}.0/24", f"{FABRIC}.1 =fab0 fab0 {FABRIC}.0/24\n"),
                                    ("fab*", f"{FABRIC}.1 =fab0 fab0 fab0\n")):
            with Run(bed, "sh", "-c", show, slots=1, settings={"runner.network.interface": interface}) as run:
                equal(run.wait(40), 0, "exit code")
                for rank in range(4):
                    equal(run.log(rank).decode(), expected, f"rank {rank} on {interface}")
        with Run(bed, *STORE, settings={"runner.network.interface": "fab0"}) as run:
            equal(run.wait(60), 0, "exit code")
            equal({env["MASTER_ADDR"] for env in stores(run, 8)}, {f"{FABRIC}.1"}, "MASTER_ADDR")
        with Run(bed, RING, slots=1, settings={"runner.network.interface": "fab0"}) as run:
            equal(run.wait(60), 0, "exit code of an MPI job on it")
            run.expect(r"ring ok size=4 sum=6")


def scenario_a_host_that_lacks_the_network(bed):
    with second_network(bed, HOSTS[:3]), Run(bed, "true", slots=1, settings={"runner.network.interface": "fab0"}) as run:
        equal(run.wait(40), 3, "exit code")
        run.expect(r"runner.network.interface: no address of h04 matches fab0; name an interface or a network")
        run.expect(rf"h04 has .*eth0 {bed.address('h04')}/24")
        check(not events(run, "rank_started"), "ranks were started")


def scenario_two_jobs_side_by_side(bed):
    with Gates(bed) as gates, Run(bed, *STORE, gates.folder / "end", hosts="h[01-02]", slots=1) as first, \
            Run(bed, *STORE, gates.folder / "end", hosts="h[01-02]", slots=1) as second:
        wait_until(lambda: all(run.folder_of_run() and len(bed.ranks(run.id())) == 2 for run in (first, second)), 40,
                   "the ranks of both")
        gates.open("end")
        equal([first.wait(60), second.wait(60)], [0, 0], "exit codes")
        ports = [{env["MASTER_PORT"] for env in stores(run, 2)} for run in (first, second)]
        equal([len(ports[0]), len(ports[1]), len(ports[0] | ports[1])], [1, 1, 2], f"ports {ports}: their numbers")
        low, high = map(int, bed.run_in("h01", "cat", "/proc/sys/net/ipv4/ip_local_port_range").split())
        check(not any(low <= int(port) <= high for port in ports[0] | ports[1]), f"{ports} in {low} to {high}")


def scenario_a_port_of_the_config(bed):
    with Gates(bed) as gates, \
            Run(bed, *STORE, gates.folder / "end", hosts="h[01-02]", slots=1, settings={"runner.master_port": 29555}) as first:
        first.wait_for_ranks(2)
        with Run(bed, "true", hosts="h01", slots=1, settings={"runner.master_port": 29555}) as second:
            equal(second.wait(40), 3, "exit code of a second job with the same port")
            second.expect(r"h01: .*runner.master_port: 29555 is not free: another job of Sortie on this host has it")
        gates.open("end")
        equal(first.wait(60), 0, "exit code of the first")
        equal({env["MASTER_PORT"] for env in stores(first, 2)}, {"29555"}, "MASTER_PORT")


def scenario_the_environment_of_torchrun(bed):
    with Run(bed, *STORE) as run:
        equal(run.wait(60), 0, "exit code")
        for rank, env in enumerate(stores(run, 8)):
            env.pop("MASTER_PORT")
            equal(env, {"RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2),
                        "WORLD_SIZE": "8", "ROLE_WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "4",
                        "ROLE_NAME": "default", "MASTER_ADDR": bed.address("h01"), "TORCHELASTIC_RUN_ID": run.id(),
                        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}, f"environment of {rank}")


def scenario_ranks_are_bound(bed):
    show = "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status"
    whole = bed.run_in("h01", "sed", "-n", "s/^Cpus_allowed_list:.//p", "/proc/self/status").strip()
    with Run(bed, "sh", "-c", show, hosts="h[01-02]") as run:
        equal(run.wait(40), 0, "exit code")
        sets = [run.log(rank).decode().strip() for rank in range(4)]
        note = events(run, "ready")[0]["cpu_binding"]
        if note.startswith("none: 2 ranks on 1 core"):
            equal(sets, [whole] * 4, "CPU sets where there is one core")
        else:
            check(note.startswith("core: 2 ranks on "), note)
            equal(sets, [event["cpus"] for event in sorted(events(run, "rank_started"), key=lambda e: e["rank"])],
                  "CPU sets and the journal")
            check(sets[0] != sets[1] and whole not in sets, f"{sets} of {whole}")
    with Run(bed, "sh", "-c", show, hosts="h[01-02]", settings={"runner.cpu_binding": "none"}) as run:
        equal(run.wait(40), 0, "exit code")
        equal([run.log(rank).decode().strip() for rank in range(4)], [whole] * 4, "CPU sets of unbound ranks")


def scenario_plan_asks_the_hosts(bed):
    def plan(hosts, *options, json_output=True):
        return run_to_end(SORTIE, "plan", *(["--json"] if json_output else []), *options, "--ssh-config",
                      bed.ssh_config, "--hosts", hosts, "--slots", "2", "--", "true")
    blind, asked = (json.loads(plan("h[01-02]", *options).stdout) for options in ((), ("--connect",)))
    equal(asked["hash"], blind["hash"], "hash")
    check(asked["master"].startswith(bed.address("h01") + ":"), asked["master"])
    sets = [rank.get("cpus", "") for rank in asked["hosts"][1]["ranks"]]
    check(len(set(sets)) == 2 or sets == ["", ""], f"CPU sets {sets}")
    check("gpus" not in blind["hosts"][1], "GPUs of a host that nobody asked")
    gpus = asked["hosts"][1]["gpus"]  # of this machine
    table = plan("h[01-02]", "--connect", json_output=False).stdout
    check(("device" in table) == (gpus > 0) and "slot" not in table, f"{gpus} GPUs:\n{table}")
    bed.expect_nothing_left(5)
    lost = plan("h01,nowhere", "--connect")
    equal(lost.returncode, 4, "exit code")
    check(lost.stderr.startswith("nowhere: resolve: "), lost.stderr)


def scenario_mpi_thread_multiple(bed):
    with Run(bed, THREADS) as run:
        equal(run.wait(60), 0, "exit code")
        run.expect(r"threads ok size=8")


def scenario_a_host_without_libpmix(bed):
    paths = bed.run_in("h02", "sh", "-c", "ls -d /usr/lib/*/libpmix.so*").split()
    try:
        for path in paths:
            bed.run_in("h02", "mount", "--bind", "/dev/null", path, as_root=True)
        with Run(bed, "sh", "-c", "exit 0", hosts="h[01-02]", slots=1) as run:
            equal(run.wait(40), 0, "exit code of a job without MPI")
        with Run(bed, RING, hosts="h[01-02]", slots=1) as run:
            equal(run.wait(40), 3, "exit code of an MPI job")
            run.expect(r"h02: unsupported: .*e2e_mpi_ring is an MPI program \(it needs libmpi[^)]*\)")
            run.expect(r"install libpmix2 \(Debian, Ubuntu\) or pmix \(Fedora, RHEL\)")
            check(not events(run, "rank_started"), "ranks were started")
    finally:
        for path in paths:
            with contextlib.suppress(Exception):
                bed.run_in("h02", "umount", "-l", path, as_root=True)
