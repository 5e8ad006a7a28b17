"""Sortie's trainer over several sites: real sshd, MPI inside a site, TCP between sites."""

import json
import os
import shutil
import signal

from harness import SORTIE, Run, check, environment_of, equal, parent_of, run_to_end, wait_until, whole_events
from restart import weights
from training import CONFIG, ENDLESS, losses, settings

# A dead site is left out at once where its ranks' end is known.
QUICK = {"runner.grace": "1s", "runner.heartbeat_interval": "200ms", "runner.heartbeat_timeout": "3s"}


class SitesRun:
    """`sortie run` over sites of `hosts_each` hosts (or of so many each, in their order) with `slots` slots, with folders
    of its own. `goes_on`: from the checkpoints of the run of that name."""

    def __init__(self, bed, name, sites=2, hosts_each=1, slots=1, steps=20, goes_on=False, **options):
        counts = [hosts_each] * sites if isinstance(hosts_each, int) else hosts_each
        self.bed, self.names = bed, [f"s{number}" for number in range(len(counts))]
        self.folder = bed.shared / f"sites-{name}"
        if not goes_on:
            shutil.rmtree(self.folder, ignore_errors=True)
        of_hosts = [site for site, count in zip(self.names, counts) for _ in range(count)]
        self.hosts = {site: [f"h{number + 1:02d}" for number, one in enumerate(of_hosts) if one == site] for site in self.names}
        hosts = [f'"{host} slots={slots} site={site}"' for site in self.names for host in self.hosts[site]]
        job = settings(bed, **{"trainer__save_dir": self.folder, "trainer__train_iterations": steps,
                               "trainer__save_interval": steps, "topology__global_batch_size": 8, **options})
        self.run = Run(bed, config=CONFIG, hosts="", slots=1,
                       settings={"runner.hosts": f"[{', '.join(hosts)}]", **QUICK, **job})

    def __enter__(self):
        self.run.__enter__()
        return self

    def __exit__(self, *error):
        return self.run.__exit__(*error)

    def events(self, site, kind):
        folder = self.run.folder_of_run()
        try:
            return [event for event in whole_events(folder / "sites" / site / "metrics.jsonl") if event["type"] == kind]
        except (OSError, TypeError):
            return []

    def losses(self, site):
        return {event["step"]: event["loss"] for event in self.events(site, "step")}

    def rounds(self, site):
        return {event["round"]: event for event in self.events(site, "round")}

    def log_lines(self):
        """What the coordinator has on disk."""
        folder = self.run.folder_of_run()
        if folder is None or not (folder / "outer.log").exists():
            return []
        return whole_events(folder / "outer.log")

    def commits(self):
        """{round: sites that exchanged it}."""
        return {line["round"]: line["members"] for line in self.log_lines() if line["do"] == "commit"}

    def journal(self, event):
        """Of the run as a whole."""
        return [one for one in whole_events(self.run.folder_of_run() / "events.jsonl") if one["event"] == event]

    def attempts(self):
        """{site: attempt}."""
        done = run_to_end(SORTIE, "status", self.run.id(), "--log-dir", self.run.folder, "--json")
        return {site["site"]: site["attempt"] for site in json.loads(done.stdout)["sites"]}

    def weights(self, site, step):
        return weights(self.folder / f"site-{site}", step)

    def rank_of(self, site):
        """pid of a rank of that site; None while it has none."""
        for host in self.bed.hosts:
            for pid, *_ in self.bed.processes(host):
                variables = environment_of(pid)
                if variables.get("SORTIE_SITE") == site and "RANK" in variables \
                        and "RANK" not in environment_of(parent_of(pid)):
                    return pid
        return None


def model_of(found):
    """What of a checkpoint is the model: moments are each site's own."""
    return {name: value for name, value in found.items() if not name.startswith(("adam", "optimizer", "moment"))}


def scenario_two_sites_of_two_hosts_train_in_rounds(bed):
    """MPI inside each site, 8-bit changes between them; at the end both have the same weights, to the bit."""
    with SitesRun(bed, "rounds", hosts_each=2, outer__every=5, topology__gradient_compression="medium") as run:
        equal(run.run.wait(120), 0, "exit code")
        for site in run.names:
            # Who is slower for a moment does fewer steps of a round.
            steps = sorted(run.losses(site))
            check(steps[:6] == [1, 2, 3, 4, 5, 6] and steps[-1] == 20, f"steps of {site}: {steps}")
            equal(sorted(run.rounds(site)), [1, 2, 3, 4], f"rounds of {site}")
        equal(run.commits(), {number: run.names for number in range(1, 5)}, "rounds that were committed")
        one, other = (model_of(run.weights(site, 20)) for site in run.names)
        check(len(one) > 5, f"few tensors: {sorted(one)}")
        equal(one, other, "weights of the two sites")
        first, last = run.losses("s0")[1], run.losses("s0")[20]
        check(last < first - 0.3, f"nothing was learned: {first} -> {last}")
        sent = sum(event["bytes_sent"] for event in run.events("s0", "round"))
        check(sent > 0, "no bytes were counted")


def scenario_plain_steps_over_two_sites_equal_one_rank(bed):
    """Without compression every step is a data-parallel one over both sites."""
    with Run(bed, config=CONFIG, hosts="h01", slots=1, settings=settings(bed, topology__global_batch_size=8)) as alone:
        equal(alone.wait(60), 0, "exit code of one rank")
        single = losses(alone)
    with SitesRun(bed, "plain", topology__gradient_compression="none") as run:
        equal(run.run.wait(120), 0, "exit code")
        for site in run.names:
            found = run.losses(site)
            equal(sorted(found), sorted(single), f"steps of {site}")
            for step, loss in single.items():
                check(abs(found[step] - loss) <= 1e-5 * abs(loss), f"{site}, step {step}: {found[step]!r}, {loss!r} alone")
        equal(model_of(run.weights("s0", 20)), model_of(run.weights("s1", 20)), "weights of the two sites")


def scenario_a_killed_site_comes_back_with_the_weights_of_the_others(bed):
    """SIGKILL of the rank of one of three sites; the two others go on, the third joins again, and all end alike."""
    steps = 400
    with SitesRun(bed, "killed", sites=3, steps=steps, outer__every=5, topology__gradient_compression="medium",
                  topology__global_batch_size=6, recovery__max_restarts=5, recovery__backoff="0s",
                  recovery__no_progress_limit=0) as run:
        wait_until(lambda: len(run.commits()) >= 3, 60, "three rounds")
        os.kill(wait_until(lambda: run.rank_of("s2"), 20, "the rank of s2"), signal.SIGKILL)
        equal(run.run.wait(180), 0, "exit code")
        commits = run.commits()
        equal(sorted(commits), list(range(1, steps // 5 + 1)), "rounds that were committed")
        check(any(members == ["s0", "s1"] for members in commits.values()), f"no round without s2: {commits}")
        equal(commits[steps // 5], run.names, "sites of the last round")
        found = [model_of(run.weights(site, steps)) for site in run.names]
        check(found[0] == found[1] == found[2], "different weights at the end")


def scenario_a_site_that_was_late_joins_again(bed):
    """SIGSTOP of the rank of one of two sites for longer than the deadline: the other goes on without it. Once it runs
    again it takes the other's weights, says that it made no step of that round, and is in the rounds that follow."""
    with SitesRun(bed, "late", steps=ENDLESS, outer__every=5, outer__deadline="2s", topology__gradient_compression="medium",
                  topology__global_batch_size=4) as run:
        wait_until(lambda: len(run.commits()) >= 3, 60, "three rounds")
        rank = wait_until(lambda: run.rank_of("s1"), 20, "the rank of s1")
        os.kill(rank, signal.SIGSTOP)
        try:
            wait_until(lambda: ["s0"] in run.commits().values(), 30, "a round without s1")
        finally:
            os.kill(rank, signal.SIGCONT)
        alone = max(number for number, members in run.commits().items() if members == ["s0"])
        wait_until(lambda: any(number > alone + 3 and members == run.names for number, members in run.commits().items()),
                   60, "rounds of both sites")
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")
        commits, rounds = run.commits(), run.rounds("s1")
        copied = min(number for number in rounds if ["s0"] in [commits[before] for before in range(1, number)])
        event = rounds[copied]
        equal((commits[copied], event["contributors"], event["utilisation"]), (run.names, 1, 0.0), "the round in which s1 copies")
        check(rounds[copied + 1]["utilisation"] > 0, f"no step after it joined: {rounds[copied + 1]}")
        equal(set(rounds) & {number for number, members in commits.items() if members == ["s0"]}, set(), "rounds that s1 was not in")


def scenario_sites_that_do_not_reach_each_other_train_through_the_launcher(bed):
    """No route between the hosts of two sites: plain steps and rounds go by way of the launcher. The weights are those
    of a run with direct links, to the bit."""
    with SitesRun(bed, "direct", topology__gradient_compression="none") as run:
        equal(run.run.wait(120), 0, "exit code with direct links")
        direct = model_of(run.weights("s0", 20))
    ways = [("h01", "h02"), ("h02", "h01")]
    for host, other in ways:
        bed.run_in(host, "ip", "route", "add", "prohibit", bed.address(other), as_root=True)
    try:
        route = bed.run_in("h01", "sh", "-c", f"ip route get {bed.address('h02')} 2>&1; true")
        check("denied" in route, f"the hosts reach each other: {route}")
        with SitesRun(bed, "launcher", topology__gradient_compression="none", outer__route="launcher") as run:
            equal(run.run.wait(120), 0, "exit code through the launcher")
            for site in run.names:
                equal(model_of(run.weights(site, 20)), direct, f"weights of {site}")
        steps = 400  # more than the others do while one starts again
        with SitesRun(bed, "launcher-rounds", steps=steps, outer__every=5, topology__gradient_compression="medium", outer__route="launcher",
                      recovery__max_restarts=3, recovery__backoff="0s") as run:
            wait_until(lambda: len(run.commits()) >= 2, 60, "two rounds")
            os.kill(wait_until(lambda: run.rank_of("s1"), 20, "the rank of s1"), signal.SIGKILL)
            equal(run.run.wait(120), 0, "exit code of rounds")
            equal(sorted(run.commits()), list(range(1, steps // 5 + 1)), "rounds that were committed")
            found = [model_of(run.weights(site, steps)) for site in run.names]
            check(found[0] == found[1], "different weights at the end")
            sent = sum(event["bytes_sent"] for event in run.events("s0", "round"))
            check(sent > 0, "no bytes were counted")
    finally:
        for host, other in ways:
            bed.run_in(host, "ip", "route", "del", "prohibit", bed.address(other), as_root=True)
