"""Connections that break under a hold: the live supervisor reconnects to its hosts, and the run continues. Also state
folders that stall or are full: the run continues, too."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from adopt import HOLD, all_say
from detach import Detached, counting, ended
from harness import (BUILD, PROGRAMS, Gates, Run, check, equal, executable_of, in_time, own_store, parent_of, wait_until,
                     whole_events)
from machine_clock import now
from victims import TIMING

OUTAGE = 20  # seconds; longer than TCP and heartbeats wait
# For two kinds of outage. The timeouts are so long that no healthy host is lost because the machine is busy.
BROKEN = {**HOLD, "runner.heartbeat_interval": "2s", "runner.heartbeat_timeout": "15s"}  # both ends notice at once
SILENT = {**HOLD, "runner.heartbeat_timeout": "8s"}


def events(run, name):
    return [event for event in whole_events(run.path / "events.jsonl") if event["event"] == name]


def supervisor_connections(bed, host):
    """Returns the pids of the sshd processes on `host` that serve a connection from here, without the listener. Each connection has
    two, root's monitor and the user's, and both hold its socket."""
    listener = bed.bed.init_pid(bed.bed.number(host))
    sshd = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and executable_of(entry.name) == "sshd"}
    monitors = {pid for pid in sshd if parent_of(pid) == listener}
    return monitors | {pid for pid in sshd if parent_of(pid) in monitors}


def cut_connections(bed, hosts):
    for host in hosts:
        connections = supervisor_connections(bed, host)
        check(connections, f"{host}: no connection")
        for pid in connections:
            with contextlib.suppress(ProcessLookupError):  # ended with the other one of its connection
                os.kill(pid, signal.SIGKILL)


def scenario_link_down_for_20_s(bed):
    """Two of four hosts are unreachable for 20 s: their ranks continue to count, and every number is in the logs exactly once."""
    limit = 700
    with Gates(bed) as gates, Detached(bed, *counting(limit, 20, gates, "back", after=600), settings=SILENT) as run:
        run.wait_for_numbers(20)
        before = bed.ranks(run.id)
        for host in ("h02", "h04"):
            bed.link(host, "down")
        time.sleep(OUTAGE)
        equal(sorted(event["host"] for event in events(run, "link_lost")), ["h02", "h04"], "hosts whose link is lost")
        equal(run.status()["state"], "running", "state meanwhile")
        states = {host["name"]: host["state"] for host in run.status()["hosts"]}
        equal(states["h02"], "reconnecting", "state of h02 meanwhile")
        equal(bed.ranks(run.id), before, "ranks meanwhile")
        for host in ("h02", "h04"):
            bed.link(host, "up")
        wait_until(lambda: len(events(run, "link_restored")) == 2, 60, "two hosts that are back")
        for words in ("the ranks there are held for 1m00s (runner.on_launcher_loss); reconnecting", "connected again after"):
            wait_until(lambda words=words: words in (run.path / "supervisor.log").read_text(), 15,
                       f"{words!r} in supervisor.log")
        equal(run.status()["supervisor"]["epoch"], 1, "epoch: the supervisor is the same")
        gates.open("back")
        ended(run.start("attach", run.id), 60, 0)
        run.expect_counted(limit)
        bed.expect_nothing_left(10)


def scenario_connections_cut_again_and_again(bed):
    """sshd's end of every connection is killed, five times: both ends notice at once."""
    limit = 400
    with Gates(bed) as gates, Detached(bed, *counting(limit, 20, gates, "cut", after=300), settings=BROKEN) as run:
        for count in range(1, 6):
            run.wait_for_numbers(25 * count)
            cut_connections(bed, bed.hosts)
            wait_until(lambda: len(events(run, "link_restored")) == 4 * count, 40, f"cut {count} to be mended")
        gates.open("cut")
        links = {event["link"] for event in events(run, "link_restored") if event["host"] == "h01"}
        equal(len(links), 5, "numbers of the connections to h01")
        ended(run.start("attach", run.id), 60, 0)
        run.expect_counted(limit)
        bed.expect_nothing_left(10)


def scenario_supervisor_that_slept(bed):
    """As if a laptop is closed for 15 s: the supervisor does not run, and the network returns only after it has resumed."""
    limit = 700
    with Gates(bed) as gates, Detached(bed, *counting(limit, 20, gates, "back", after=600), settings=SILENT) as run:
        run.wait_for_numbers(20)
        boss = run.supervisor()
        os.kill(boss, signal.SIGSTOP)
        for host in bed.hosts:
            bed.link(host, "down")
        time.sleep(15)
        os.kill(boss, signal.SIGCONT)
        time.sleep(3)
        for host in bed.hosts:
            bed.link(host, "up")
        wait_until(lambda: len(events(run, "link_restored")) == 4, 60, "four hosts that are back")
        equal(run.supervisor(), boss, "supervisor")
        gates.open("back")
        ended(run.start("attach", run.id), 60, 0)
        run.expect_counted(limit)
        bed.expect_nothing_left(10)


def scenario_flood_across_a_cut(bed):
    """Ranks that write as fast as they can: output in transit is neither lost nor duplicated."""
    folder = Path(tempfile.mkdtemp(dir=bed.shared))
    folder.chmod(0o755)
    block = 100000
    program = (f"n=0; while ! [ -e {folder}/enough ]; do seq $n $((n + {block - 1})); n=$((n + {block})); done; echo end")
    with Detached(bed, "sh", "-c", program, hosts="h[01-02]", settings=BROKEN) as run:
        for count in range(1, 4):
            cut_connections(bed, ["h01", "h02"])
            wait_until(lambda count=count: len(events(run, "link_restored")) == 2 * count, 40, f"cut {count} to be mended")
        (folder / "enough").touch()
        ended(run.start("attach", run.id), 60, 0)
        for rank in range(2):
            text = run.log(rank)
            lines = text.count("\n") - 1
            check(lines >= block, f"rank {rank}: only {lines} lines")
            check(text == "".join(f"{i}\n" for i in range(lines)) + "end\n",
                  f"rank {rank}: its log of {len(text)} bytes is not what it wrote")
            equal(lines % block, 0, f"rank {rank}: lines that its last block lacks")
        bed.expect_nothing_left(10)


def scenario_mpi_across_cuts(bed):
    """Names and fences that are requested, or answered, while a connection is broken."""
    folder = Path(tempfile.mkdtemp(dir=bed.shared))
    folder.chmod(0o755)
    with Detached(bed, BUILD / "bin/e2e_mpi_adopt", folder, settings=BROKEN, slots=2) as run:
        all_say(run, "published", range(8))
        cut_connections(bed, ["h01", "h03"])
        (folder / "lost").touch()
        all_say(run, "was answered", range(8))
        wait_until(lambda: len(events(run, "link_restored")) == 2, 40, "two hosts that are back")
        cut_connections(bed, ["h02", "h04"])
        (folder / "adopted").touch()
        ended(run.start("attach", run.id), 60, 0)
        check("adopt ok size=8" in run.log(0), "rank 0 does not say that all is well")
        bed.expect_nothing_left(10)


def scenario_runner_killed_under_a_hold(bed):
    """The connection ends because the runner is gone: the run does not wait for the end of the hold."""
    with Detached(bed, "sleep", "1000", settings=HOLD) as run:
        wait_until(lambda: len(bed.ranks()) == 4, 40, "4 ranks")
        began = now()
        os.kill(bed.runner("h02"), signal.SIGKILL)
        output = ended(run.start("attach", run.id), 40, 5)
        check("h02: lost: " in output and "no runner holds this run here" in output, output)
        in_time(began, 40, "the end, for which no hold counts")
        bed.expect_nothing_left(15)


def scenario_hold_is_over(bed):
    """The link stays down: after the hold the host ends its ranks, and the supervisor ends the run."""
    settings = {"runner.on_launcher_loss": "hold 5s", "runner.ssh.connect_timeout": "2s"}
    with Detached(bed, "sleep", "1000", settings=settings) as run:
        wait_until(lambda: len(bed.ranks()) == 4, 40, "4 ranks")
        bed.link("h03", "down")
        output = ended(run.start("attach", run.id), 60, 5)
        check("h03: lost: no heartbeat for" in output and "not reached again in" in output, output)
        bed.expect_nothing_left(40)


def scenario_stop_while_a_host_is_away(bed):
    """`sortie stop` while a link is down: the host's ranks are ended when it is back within the grace."""
    settings = {**HOLD, "runner.grace": "50s"}
    with Detached(bed, "sh", "-c", "trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done",
                  settings=settings) as run:
        wait_until(lambda: len(bed.ranks()) == 4, 40, "4 ranks")
        bed.link("h03", "down")
        wait_until(lambda: events(run, "link_lost"), 20, "a lost link")
        stopping = run.start("stop", run.id)  # it returns when the run has ended
        wait_until(lambda: events(run, "stop"), 30, "the stop")
        time.sleep(1)
        bed.link("h03", "up")
        ended(stopping, 80, 0)
        ended(run.start("attach", run.id), 30, 143)
        equal([run.log(rank) for rank in range(4)], ["told\n"] * 4, "what the ranks say")
        bed.expect_nothing_left(10)


def scenario_stalled_state_folder(bed):
    """A rank's log stalls for longer than the heartbeat timeout: no host ends its ranks."""
    with Gates(bed) as gates:
        # Output of rank 0 stalls that of the other ranks.
        program = (f"{gates.wait('stalled')}; test $RANK = 0 || {{ {gates.wait('others')}; }}; echo one; "
                   f"{gates.wait('over')}; echo two")
        with Run(bed, "sh", "-c", program, slots=1, settings={**TIMING, "runner.heartbeat_timeout": "7s"}) as run:
            run.wait_for_ranks(4)
            stalled = run.folder_of_run() / "logs/rank-0.out"
            os.mkfifo(stalled)  # an open for writing blocks until the FIFO has a reader
            gates.open("stalled")
            run.wait_for_text(r"\[0 h01\] one\n")  # it has been sent to the log, too
            gates.open("others")
            time.sleep(15)
            gates.open("over")
            check(run.process.poll() is None, "the run ended while its folder stalled")
            check(not (run.folder_of_run() / "logs/rank-1.out").exists(), "the folder did not stall")
            reader = os.open(stalled, os.O_RDONLY | os.O_NONBLOCK)
            equal(run.wait(40), 0, "exit code")
            os.close(reader)
            equal(run.log(1), b"one\ntwo\n", "what waited of rank 1")
            run.expect(r"run folder: .*rank-0.out: Illegal seek; the run continues")  # a log can not seek in a pipe
            check("lost" not in [event["event"] for event in whole_events(run.folder_of_run() / "events.jsonl")], "a loss")
            bed.expect_nothing_left(10)


def scenario_a_rank_fails_while_nodes_json_stalls(bed):
    """A rank of one site is killed while the disk of nodes.json does not answer: the other site keeps its hosts, and the site of
    the rank restarts without an answer."""
    settings = {**TIMING, "runner.heartbeat_timeout": "7s", "recovery.max_restarts": 5, "recovery.backoff": "200ms"}
    with own_store(), Gates(bed) as gates, tempfile.TemporaryDirectory() as own:
        config = Path(own, "job.toml")
        config.write_text("[runner]\nhosts = [" + ", ".join(f'"{host} slots=1 site={site}"' for host, site in
                                                           (("h01", "aa"), ("h02", "bb"), ("h03", "bb"))) + "]\n")
        with Run(bed, "sh", "-c", f"{gates.wait('over')}; echo end", config=config, hosts="", settings=settings) as run:
            def ranks(site):  # each site numbers its ranks from 0
                return bed.ranks(f"{run.id()}-s{site}") if run.folder_of_run() else {}
            wait_until(lambda: [len(ranks(site)) for site in (0, 1)] == [1, 2], 40, "the ranks of both sites")
            stalled = Path(os.environ["XDG_STATE_HOME"], "sortie/nodes.json")
            stalled.parent.mkdir(exist_ok=True)
            os.mkfifo(stalled)  # an open for reading blocks until the FIFO has a writer
            os.kill(ranks(0)[0][1], signal.SIGKILL)
            run.wait_for_text("nodes.json: the disk does not answer; the blames of this failure may not be recorded", 40)
            wait_until(lambda: (run.folder_of_run() / "sites/aa/attempts/2").exists(), 40, "attempt 2 of site aa")
            time.sleep(10)  # of silence would lose the hosts of bb
            writer = os.open(stalled, os.O_WRONLY | os.O_NONBLOCK)
            stalled.unlink()
            os.close(writer)
            gates.open("over")
            equal(run.wait(60), 0, "exit code")
            names = [event["event"] for event in whole_events(run.folder_of_run() / "sites/bb/events.jsonl")]
            check("host_lost" not in names and names.count("attempt") == 1, f"site bb did not just go on: {names}")
            bed.expect_nothing_left(10)


def fill(path):
    """Appends to the file until its filesystem is full. Can be repeated after space was freed."""
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def scenario_full_disk(bed):
    """The disk of the state folder is full for a while: this is reported at once, the run continues, and the log marks
    what is missing."""
    with tempfile.TemporaryDirectory() as own:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", own], check=True)
        try:
            filler = Path(own, "filler")
            with Gates(bed) as gates:
                program = f"{gates.wait('full')}; seq 0 99999; {gates.wait('free')}; echo end"
                with Run(bed, "sh", "-c", program, slots=1, hosts="h01",
                         settings={"runner.grace": "1s", "logger.log_dir": own}) as run:
                    run.folder_of_run = lambda: [path for path in Path(own, "runs").glob("2*")][0]
                    run.wait_for_ranks(1)
                    fill(filler)
                    gates.open("full")
                    run.wait_for_text("run folder: .*No space left on device; the run continues")
                    run.wait_for_text(r"\[0 h01\] 99999\n")  # all of it arrived while the disk was full
                    check(run.process.poll() is None, "it was said at the end")
                    filler.unlink()
                    gates.open("free")
                    equal(run.wait(40), 0, "exit code")
                    log = run.log(0).decode()
                    # The log may lag behind the terminal: then there is room again for the last numbers.
                    whole = "".join(f"{number}\n" for number in range(100000)) + "end\n"
                    gap = re.fullmatch(r"(.*)\n\[sortie: (\d+) bytes are missing here: No space left on device\]\n(.*end\n)",
                                       log, re.S)
                    check(gap and whole.startswith(gap[1]) and whole.endswith(gap[3])
                          and len(gap[1]) + int(gap[2]) + len(gap[3]) == len(whole), log[-300:])
                    run.expect(r"of the ranks' output were lost")
                    names = [event["event"] for event in whole_events(run.folder_of_run() / "events.jsonl")]
                    equal((names[0], names[-1]), ("begin", "end"), "first and last event: the journal has no gap")
        finally:
            subprocess.run(["umount", "-l", own], check=True)


def scenario_full_disk_with_sites(bed):
    """While the disk of the state folder is full no round is committed, with a message; then the rounds continue."""
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory(dir=bed.shared) as shared:
        os.chmod(shared, 0o777)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", own], check=True)
        try:
            config, filler = Path(own, "job.toml"), Path(own, "filler")
            config.write_text('[runner]\nhosts = ["h01 slots=1 site=a", "h02 slots=1 site=b"]\n')
            program = ("/usr/bin/python3", "-S", PROGRAMS / "site_leader.py", shared, 1_000_000, 0.02)
            with Run(bed, *program, config=config, hosts="",
                     settings={"runner.grace": "1s", "logger.log_dir": own, "outer.every": 4}) as run:
                def rounds():
                    logs = [path for path in Path(own, "runs").glob("2*/outer.log")]
                    lines = whole_events(logs[0]) if logs else []
                    return [line["round"] for line in lines if line["do"] == "commit"]
                wait_until(lambda: len(rounds()) > 3, 40, "the first rounds")
                fill(filler)
                run.wait_for_text("outer.log: No space left on device; no round is committed until it can be written", 40)
                fill(filler)  # what was cut off of the log
                before = rounds()
                time.sleep(5)
                equal(rounds(), before, "rounds while the disk is full")
                check(run.process.poll() is None, "the run ended")
                filler.unlink()
                wait_until(lambda: len(rounds()) > len(before) + 3, 40, "rounds after that")
                Path(shared, "end").touch()
                equal(run.wait(60), 0, "exit code")
                equal(rounds(), list(range(1, len(rounds()) + 1)), "rounds that were committed")
                bed.expect_nothing_left(10)
        finally:
            subprocess.run(["umount", "-l", own], check=True)


def scenario_ctrl_z(bed):
    """A suspended launcher sends no heartbeats, which would end the ranks: Ctrl-Z does not suspend it, and a message says what to do."""
    with Gates(bed) as gates, Run(bed, "sh", "-c", gates.wait("on"), slots=1, settings={"runner.grace": "1s"}) as run:
        run.wait_for_ranks(4)
        run.signal(signal.SIGTSTP)
        run.wait_for_text("Ctrl-Z: not suspended: .*Ctrl-C ends it, `sortie run --detach` leaves the terminal free")
        state = Path(f"/proc/{run.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        check(state != "T", "it is suspended")
        gates.open("on")
        equal(run.wait(40), 0, "exit code")
