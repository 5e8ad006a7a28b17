"""Runs over several sites: each site is a separate job, and the supervisor decides which rounds are committed. A site that
dies restarts alone while the others continue. Nothing is lost when the supervisor is killed."""

import json
import os
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

from adopt import adopt, lose_supervisor
from detach import Detached, ended
from harness import PROGRAMS, SORTIE, check, equal, run_to_end, wait_until, whole_events

SETTINGS = {"recovery.max_restarts": 20, "recovery.backoff": "200ms", "recovery.backoff_max": "500ms",
            "recovery.healthy_after": "1s", "outer.every": 4, "outer.min_sites": 1,
            "outer.deadline": "30s"}  # long, so that a leader that is paused for a while is not left out
ENDLESS = 1_000_000  # rounds; the scenario ends the run


class Sites:
    """A detached run over sites a, b, c on h01, h02, h03, whose leaders make `rounds` rounds, or continue until end()."""

    def __init__(self, bed, rounds=ENDLESS, step=0.02, settings=(), sites="abc"):
        self.bed, self.rounds = bed, rounds
        self.shared = Path(tempfile.mkdtemp(dir=bed.shared))
        self.shared.chmod(0o777)
        self.own = Path(tempfile.mkdtemp())
        config = self.own / "job.toml"
        hosts = ", ".join(f'"h0{number} slots=1 site={site}"' for number, site in enumerate(sites, 1))
        config.write_text(f"[runner]\nhosts = [{hosts}]\n")
        program = ("/usr/bin/python3", "-S", PROGRAMS / "site_leader.py", self.shared, rounds, step)
        self.run = Detached(bed, *program, hosts="", config=config, settings={**SETTINGS, **dict(settings)})

    def __enter__(self):
        self.run.__enter__()
        return self

    def __exit__(self, kind, error, trace):
        if error:
            for log in sorted(self.run.path.glob("sites/*/**/rank-*.*")):
                print(f"--- {log.relative_to(self.run.path)}\n" + log.read_text()[-600:])
        self.run.__exit__(kind, error, trace)
        shutil.rmtree(self.shared, ignore_errors=True)
        shutil.rmtree(self.own, ignore_errors=True)

    def commits(self):
        """Returns (round, members) of the commits, in the order of the log."""
        lines = whole_events(self.run.path / "outer.log")
        return [(line["round"], line["members"]) for line in lines if line["do"] == "commit"]

    def wait_for_round(self, number, seconds=30):
        wait_until(lambda: any(done >= number for done, _ in self.commits()), seconds, f"round {number}")

    def end(self):
        """Makes all sites end after the same round."""
        (self.shared / "end").touch()

    def leader(self, site):
        """Returns (host, pid) of the site's rank, or None if none runs."""
        for host in self.bed.hosts:
            for pid, *_ in self.bed.processes(host):
                try:
                    variables = Path(f"/proc/{pid}/environ").read_bytes()
                except OSError:
                    continue
                if b"\0SORTIE_SITE=" + site.encode() + b"\0" in b"\0" + variables and b"RANK=" in variables:
                    return host, pid
        return None

    def expect_whole(self, sites="abc"):
        """Checks that every round was committed once, all sites ended with the same weights, and no sample was used by two sites."""
        rounds = [number for number, _ in self.commits()]
        last = max(rounds) if self.rounds == ENDLESS else self.rounds
        equal(rounds, list(range(1, last + 1)), "rounds that were committed")
        states = {(self.shared / f"checkpoint-{site}").read_text().split('"')[1] for site in sites}
        equal(len(states), 1, f"different weights at the end ({states})")
        taken = {}
        for line in (self.shared / "samples").read_text().splitlines():
            first, end, site = line.split()
            for sample in range(int(first), int(end)):
                equal(taken.setdefault(sample, site), site, f"site of sample {sample}")

    def attempts(self):
        return {site["site"]: site["attempt"] for site in self.run.status()["sites"]}


def scenario_ranks_know_their_site_and_all_verbs_show_it(bed):
    with Sites(bed) as sites:
        run = sites.run
        attached = run.start("attach", "--from-start", run.id)
        sites.wait_for_round(10)
        listed = json.loads(run.sortie("sites", "ls", "--json", run.id).stdout)
        equal([(site["site"], site["ranks"], site["attempt"]) for site in listed["sites"]],
              [("a", 1, 1), ("b", 1, 1), ("c", 1, 1)], "sites ls")
        sites.end()
        text = ended(attached, 40, 0)
        for site, host in zip("abc", ("h01", "h02", "h03")):
            check(re.search(rf"^\[{site} 0 {host}\] round 10 epoch", text, re.M), f"attach shows no {site}: {text[-800:]}")
        sites.expect_whole()
        logs = run.sortie("logs", "--site", "b", "--grep", "round 3 ", run.id).stdout
        check(logs.startswith("[b 0 h02] round 3 epoch"), f"logs --site b: {logs!r}")
        equal(len(run.sortie("logs", "--grep", "round 3 ", run.id).stdout.splitlines()), 3, "lines of all sites")
        status = run.status()
        equal((status["state"], status["exit_code"], status["rounds"]["round"]), ("ended", 0, max(number for number, _ in sites.commits())), "status")
        check("site b  ended 0" in run.sortie("status", run.id).stdout, "status shows no site b")
        refused = run.sortie("sites", "remove", "d", "--run", run.id).stderr
        check("the run has ended" in refused, f"sites remove after the end: {refused}")
        bed.expect_nothing_left(10)


def scenario_a_site_that_can_not_be_started(bed):
    """The run does not begin without it: not detached, and not in the foreground."""
    hosts = '["h01 slots=1 site=a","no-such-host.invalid slots=1 site=b"]'
    with tempfile.TemporaryDirectory(prefix="sortie-e2e-") as folder:
        for mode in ([], ["--detach"]):
            began = time.monotonic()
            done = run_to_end(SORTIE, "run", *mode, "--ssh-config", bed.ssh_config, "--set", f"runner.hosts={hosts}", "--set",
                              "runner.grace=1s", "--", "sleep", "600", env={**os.environ, "XDG_STATE_HOME": folder})
            equal(done.returncode, 4, f"exit code ({done.stderr})")
            check("site b" in done.stderr and "no-such-host.invalid: resolve: " in done.stderr, f"message: {done.stderr}")
            equal(done.stdout, "", "id of a run")
            check(time.monotonic() - began < 20, "it waited")
            bed.expect_nothing_left(10)


def scenario_one_site_dies_and_comes_back_alone(bed):
    """First its rank is killed, then the link of its host goes down. The others commit rounds meanwhile and are not restarted."""
    with Sites(bed, step=0.05) as sites:
        sites.wait_for_round(2)
        _, pid = wait_until(lambda: sites.leader("c"), 20, "the rank of site c")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: sites.attempts()["c"] == 2, 30, "attempt 2 of site c")
        back = len(sites.commits())
        wait_until(lambda: any("c" in members for _, members in sites.commits()[back:]), 30, "c in a round")
        bed.link("h03", "down")
        before = sites.commits()[-1][0]
        wait_until(lambda: any(number > before and members == ["a", "b"] for number, members in sites.commits()), 30,
                   "a round without site c")
        journal = sites.run.path / "sites/c/events.jsonl"
        wait_until(lambda: '"host_lost"' in journal.read_text(), 20, "the loss of h03")
        bed.link("h03", "up")
        wait_until(lambda: sites.attempts()["c"] >= 3, 30, "attempt 3 of site c")
        back = len(sites.commits())
        wait_until(lambda: any("c" in members for _, members in sites.commits()[back:]), 30, "c in a round again")
        equal({site: sites.attempts()[site] for site in "ab"}, {"a": 1, "b": 1}, "attempts of the others")
        sites.end()
        wait_until(lambda: sites.run.status()["state"] == "ended", 60, "the end")
        equal(sites.run.status()["exit_code"], 0, "exit code")
        sites.expect_whole()
        bed.expect_nothing_left(10)


def scenario_supervisor_is_killed_and_no_round_is_lost(bed):
    """Twice. The leaders repeat their requests, and each round counts once. No site restarts."""
    with Sites(bed, settings={"runner.on_launcher_loss": "hold 60s"}) as sites:
        for number in (3, 12):
            sites.wait_for_round(number)
            lose_supervisor(sites.run)
            adopter = adopt(sites.run)
            equal(adopter.poll(), None, "the adopter")
        equal(sites.attempts(), {"a": 1, "b": 1, "c": 1}, "attempts")
        sites.end()
        ended(adopter, 60, 0)
        sites.expect_whole()
        bed.expect_nothing_left(10)


def scenario_a_site_is_added_and_another_removed(bed):
    with Sites(bed, step=0.05, sites="ab") as sites:
        run = sites.run
        sites.wait_for_round(2)
        equal(run.sortie("nodes", "cordon", "h04", "--reason", "test").returncode, 0, "nodes cordon")
        said = run.sortie("sites", "add", "c", "h04 slots=1", "--run", run.id)
        check(said.returncode != 0 and "h04 is cordoned by " in said.stderr, f"sites add of a cordoned host: {said.stderr}")
        equal(run.sortie("nodes", "uncordon", "h04").returncode, 0, "nodes uncordon")
        said = run.sortie("sites", "add", "c", "h04 slots=1", "--run", run.id)
        equal(said.returncode, 0, f"sites add ({said.stderr})")
        wait_until(lambda: any("c" in members for _, members in sites.commits()), 30, "c in a round")
        said = run.sortie("sites", "add", "d", "h01", "--run", run.id)
        check(said.returncode != 0 and "h01 is at site a" in said.stderr, f"sites add of a host in use: {said.stderr}")
        said = run.sortie("sites", "remove", "b", "--run", run.id)
        equal(said.returncode, 0, f"sites remove ({said.stderr})")
        wait_until(lambda: sites.commits()[-1][1] == ["a", "c"], 20, "a round of a and c")
        wait_until(lambda: '"state":"ended"' in (run.path / "events.jsonl").read_text(), 20, "the end of site b")
        equal(run.status()["ranks"], 2, "ranks of a and c")
        shown = run.sortie("status", run.id).stdout
        check(re.search(r"^  hosts +h\[01,04\] \(2 ranks\)$", shown, re.M) and "\nsite b  removed\n" in shown,
              f"hosts and sites in {shown}")
        sites.end()
        wait_until(lambda: run.status()["state"] == "ended", 60, "the end")
        equal(run.status()["exit_code"], 0, "exit code")
        sites.expect_whole("ac")
        bed.expect_nothing_left(10)


def scenario_a_spare_takes_the_place_of_a_host_of_a_site(bed):
    """All that lists hosts then names the spare."""
    quick = {"runner.heartbeat_interval": "200ms", "runner.heartbeat_timeout": "2s", "recovery.spares": '["h04 slots=1 site=b"]'}
    with Sites(bed, step=0.05, sites="ab", settings=quick) as sites:
        run = sites.run
        sites.wait_for_round(2)
        bed.link("h02", "down")
        try:
            wait_until(lambda: sites.attempts()["b"] == 2, 40, "attempt 2 of site b")
            back = len(sites.commits())
            wait_until(lambda: any("b" in members for _, members in sites.commits()[back:]), 30, "b in a round again")
            listed = json.loads(run.sortie("sites", "ls", "--json", run.id).stdout)
            equal([site["hosts"] for site in listed["sites"]], [["h01"], ["h04"]], "hosts in sites ls")
            check("h[01,04] (2 ranks)" in run.sortie("status", run.id).stdout, "hosts in status")
            equal([(one["hosts"], one["restarts"]) for one in json.loads(run.sortie("ps", "--json").stdout)["runs"]
                   if one["run"] == run.id], [(["h01", "h04"], 1)], "hosts and restarts in ps")
        finally:
            bed.link("h02", "up")
        sites.end()
        wait_until(lambda: run.status()["state"] == "ended", 60, "the end")
        equal(run.status()["exit_code"], 0, "exit code")
        sites.expect_whole("ab")
        bed.expect_nothing_left(15)


def scenario_chaos_reaches_the_ranks_of_sites(bed):
    """Each killed rank belongs to the run, is printed with its site, and restarts. No round is lost or committed twice."""
    with Sites(bed, step=0.05) as sites:
        run = sites.run
        sites.wait_for_round(2)
        # Far enough apart that the journal has the end of a rank before the next one is chosen.
        done = run.sortie("chaos", run.id, "--every", "4s", "--faults", "kill", "--count", "3", "--seed", "5", "--yes",
                          seconds=90)
        equal(done.returncode, 0, f"exit code of chaos ({done.stdout}{done.stderr})")
        named = re.findall(r"^\d: kill rank 0 of site ([abc]) on h0([123]) \(pid \d+\)$", done.stdout, re.M)
        equal(len(named), 3, f"faults in {done.stdout!r}")
        check(all("abc"[int(host) - 1] == site for site, host in named), f"hosts of sites: {named}")
        equal(done.stdout.count("  sent SIGKILL to "), 3, f"signals in {done.stdout!r}")
        wait_until(lambda: sum(attempt - 1 for attempt in sites.attempts().values()) == 3, 30, "attempts more than one")
        back = len(sites.commits())
        wait_until(lambda: any(members == ["a", "b", "c"] for _, members in sites.commits()[back:]), 30, "all in a round")
        sites.end()
        wait_until(lambda: run.status()["state"] == "ended", 60, "the end")
        equal(run.status()["exit_code"], 0, "exit code")
        equal(sum(attempt - 1 for attempt in sites.attempts().values()), 3, "attempts more than one")
        sites.expect_whole()
        bed.expect_nothing_left(10)
