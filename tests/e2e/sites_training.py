"""Sortie's trainer over several sites: real sshd, MPI within a site, TCP between sites."""

import contextlib
import json
import os
import shutil
import signal
import time

from harness import SORTIE, Run, check, environment_of, equal, parent_of, run_to_end, wait_until, whole_events
from restart import weights
from training import CONFIG, ENDLESS, losses, settings

# A site is left out at once if its ranks are known to have ended. If it only does not run for some seconds, the others wait.
QUICK = {"runner.grace": "1s", "runner.heartbeat_interval": "200ms", "runner.heartbeat_timeout": "10s", "outer.deadline": "60s"}


class SitesRun:
    """`sortie run` over several sites, with its own folders. `hosts_each`: hosts per site, or a list with the number for each site.
    `slots`: per host. `goes_on`: resumes from the checkpoints of the run of that name."""

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
        """Lines of outer.log, which the coordinator writes."""
        folder = self.run.folder_of_run()
        if folder is None or not (folder / "outer.log").exists():
            return []
        return whole_events(folder / "outer.log")

    def commits(self):
        """{round: sites that exchanged it}."""
        return {line["round"]: line["members"] for line in self.log_lines() if line["do"] == "commit"}

    def journal(self, event):
        """Events of the run as a whole, not of one site."""
        return [one for one in whole_events(self.run.folder_of_run() / "events.jsonl") if one["event"] == event]

    def log(self, site):
        """What the first rank of the site has printed."""
        return "".join(path.read_text() for path in sorted((self.run.folder_of_run() / "sites" / site / "logs").glob("rank-0.*")))

    def attempts(self):
        """{site: attempt}."""
        done = run_to_end(SORTIE, "status", self.run.id(), "--log-dir", self.run.folder, "--json")
        return {site["site"]: site["attempt"] for site in json.loads(done.stdout)["sites"]}

    def weights(self, site, step):
        return weights(self.folder / f"site-{site}", step)

    def rank_of(self, site):
        """Returns the pid of a rank of the site, or None if it has none."""
        for host in self.bed.hosts:
            for pid, *_ in self.bed.processes(host):
                variables = environment_of(pid)
                if variables.get("SORTIE_SITE") == site and "RANK" in variables \
                        and "RANK" not in environment_of(parent_of(pid)):
                    return pid
        return None


def counters(run, site):
    """{step: counters} of the site's checkpoints."""
    manifests = (run.folder / f"site-{site}").glob("*/manifest.json")
    found = [json.loads(path.read_text()) for path in manifests]
    return {manifest["step"]: manifest["counters"] for manifest in found}


def newest(run, site):
    found = counters(run, site)
    check(found, f"{site} has saved nothing:\n{run.run.text()[-12000:]}")
    return max(found.items())


def wait_for_all(run, after, seconds=60):
    """Waits until all sites were in three rounds after that one: a site that comes back makes no step in its first round."""
    def rounds():
        return sum(number > after and members == run.names for number, members in run.commits().items())
    wait_until(lambda: rounds() >= 3, seconds, f"three rounds of {', '.join(run.names)} after round {after}")


def finish(bed, name, first, **options):
    """Resumes from the checkpoints for three rounds. All sites must end with the same weights."""
    options["steps"] = (first + 3) * options["outer__every"]
    with SitesRun(bed, name, goes_on=True, **options) as run:
        equal(run.run.wait(120), 0, "exit code of the run that goes on")
        begun = [line["round"] for line in run.log_lines() if line["do"] == "begin"]
        equal(begun, [first], "round that the sites go on from")
        equal(sorted(run.commits()), [first + 1, first + 2, first + 3], "rounds that were committed")
        found = [model_of(run.weights(site, options["steps"])) for site in run.names]
        check(len(found[0]) > 5 and all(one == found[0] for one in found), "different weights at the end")


def model_of(found):
    """Returns the tensors of the model in a checkpoint. Optimizer moments differ between sites."""
    return {name: value for name, value in found.items() if not name.startswith(("adam", "optimizer", "moment"))}


def scenario_two_sites_of_two_hosts_train_in_rounds(bed):
    """MPI within each site, 8-bit changes between them. At the end both have the same weights to the bit."""
    with SitesRun(bed, "rounds", hosts_each=2, outer__every=5, topology__gradient_compression="medium") as run:
        equal(run.run.wait(120), 0, "exit code")
        for site in run.names:
            # A site that is slower for a moment makes fewer steps in a round.
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
    """Without compression every step is a data-parallel step over both sites."""
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


def scenario_a_fork_of_a_run_over_sites(bed):
    """`{site}` in trainer.load_dir is the name of the site. Without it, the folders of the sites are named."""
    options = {"outer__every": 5, "topology__gradient_compression": "medium"}
    with SitesRun(bed, "forked", steps=10, **options) as run:
        equal(run.run.wait(120), 0, "exit code of the first run")
        origin = run.folder
    with SitesRun(bed, "fork", steps=15, trainer__load_dir=f"{origin}/site-{{site}}", **options) as run:
        equal(run.run.wait(120), 0, "exit code of the fork")
        for site in run.names:
            check(f"forked from {origin}/site-{site}/step-00000010 at step 10" in run.run.text(), run.run.text()[-4000:])
            equal(min(run.losses(site)), 11, f"first step of {site}")
    with SitesRun(bed, "fork-of-all", steps=15, trainer__load_dir=origin, **options) as run:
        check(run.run.wait(120) != 0, "a run from the folder of all sites began")
        check(f"it has the checkpoints of sites: name {origin}/site-s0 or {origin}/site-s1" in run.run.text(), run.run.text()[-4000:])


def kill_and_join(bed, name, **options):
    """SIGKILL of the rank of the last site: the others continue, it joins again, and all end with the same weights. The run has no
    last round before that: however long a site takes to come back, the others are still training."""
    options = {"outer__every": 5, "topology__gradient_compression": "medium", "runner__grace": "30s", **options}
    # The pause is long enough for a round without the site.
    restarts = {"recovery__max_restarts": 5, "recovery__backoff": "3s", "recovery__no_progress_limit": 0}
    with SitesRun(bed, name, steps=ENDLESS, **options, **restarts) as run:
        *others, victim = run.names
        wait_until(lambda: len(run.commits()) >= 3, 60, "three rounds")
        os.kill(wait_until(lambda: run.rank_of(victim), 20, f"the rank of {victim}"), signal.SIGKILL)
        wait_until(lambda: others in run.commits().values(), 60, f"a round without {victim}")
        wait_for_all(run, max(run.commits()))
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")
        rounds = sorted(run.commits())
        equal(rounds, list(range(1, len(rounds) + 1)), "rounds that were committed")
        sent = sum(event["bytes_sent"] for event in run.events("s0", "round"))
        check(sent > 0, "no bytes were counted")
        first = max(newest(run, site)[1]["outer.round"] for site in run.names)
    finish(bed, name, first, **options)


def scenario_a_killed_site_comes_back_with_the_weights_of_the_others(bed):
    kill_and_join(bed, "killed", sites=3, topology__global_batch_size=6)


@contextlib.contextmanager
def stopped_after_three_rounds(run, site):
    """SIGSTOP to the only rank of a site, and SIGCONT at the end."""
    rank = wait_until(lambda: run.rank_of(site), 60, f"the rank of {site}")  # first, because the run may end soon after
    wait_until(lambda: len(run.commits()) >= 3, 60, "three rounds")
    os.kill(rank, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(rank, signal.SIGCONT)


def scenario_a_site_that_was_late_joins_again(bed):
    """SIGSTOP of the rank of one of two sites for longer than the deadline: the other one continues alone. When the rank runs
    again, the site copies the other's weights, reports no step for that round, and takes part in later rounds."""
    with SitesRun(bed, "late", steps=ENDLESS, outer__every=5, outer__deadline="5s", topology__gradient_compression="medium",
                  topology__global_batch_size=4) as run:
        with stopped_after_three_rounds(run, "s1"):
            # If it is stopped in an exchange, its vote is waited for as well, half a minute.
            wait_until(lambda: ["s0"] in run.commits().values(), 90, "a round without s1")
        alone = max(number for number, members in run.commits().items() if members == ["s0"])
        wait_until(lambda: any(number > alone + 3 and members == run.names for number, members in run.commits().items()),
                   60, "rounds of both sites")
        wait_until(lambda: any(number > alone and event["contributors"] == 2 for number, event in run.rounds("s1").items()),
                   60, "a round with steps of s1")
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")
        commits, rounds = run.commits(), run.rounds("s1")
        copied = min(number for number in rounds if ["s0"] in [commits[before] for before in range(1, number)])
        event = rounds[copied]
        equal((commits[copied], event["contributors"], event["utilisation"]), (run.names, 1, 0.0), "the round in which s1 copies")
        after = min(number for number, event in rounds.items() if number > copied and event["contributors"] == 2)
        check(rounds[after]["utilisation"] > 0, f"no step after it joined: {rounds[after]}")
        equal(set(rounds) & {number for number, members in commits.items() if members == ["s0"]}, set(), "rounds that s1 was not in")


def scenario_a_site_that_missed_the_end_ends_with_exit_code_0(bed):
    """SIGSTOP of the rank of one of two sites until the other has done all rounds and ended: then it has nothing to train and saves
    nothing, and the run counts as complete."""
    steps = 300  # many more than before the stop
    with SitesRun(bed, "missed-end", steps=steps, outer__every=5, outer__deadline="2s", topology__gradient_compression="medium",
                  topology__global_batch_size=4) as run:
        with stopped_after_three_rounds(run, "s1"):
            wait_until(lambda: any(one["site"] == "s0" and one["state"] == "ended" for one in run.journal("site")), 120, "the end of s0")
        equal(run.run.wait(60), 0, "exit code")
        equal(run.commits()[steps // 5], ["s0"], "sites of the last round")
        check(f"the run has ended at round {steps // 5} while this site was not in" in run.run.text(), run.run.text()[-4000:])
        check(steps in counters(run, "s0"), "s0 has saved nothing")
        equal(counters(run, "s1"), {}, "checkpoints of s1")


def scenario_a_removed_site_saves_and_reports_no_error(bed):
    """It is removed while it waits for the other site: its rank is stopped as by `sortie stop`, and nothing is refused."""
    with SitesRun(bed, "removed", steps=ENDLESS, outer__every=5, topology__gradient_compression="medium",
                  topology__global_batch_size=4, runner__grace="30s") as run:
        folder = run.run.folder
        with stopped_after_three_rounds(run, "s0"):
            time.sleep(2)  # s1 has done its steps by then
            done = run_to_end(SORTIE, "sites", "remove", "s1", "--run", run.run.id(), "--log-dir", folder)
            equal(done.returncode, 0, f"sites remove ({done.stderr})")
            wait_until(lambda: [one for one in run.journal("site") if one["site"] == "s1" and one["state"] == "ended"], 30, "the end of s1")
        alone = max(run.commits()) + 1
        wait_until(lambda: run.commits().get(alone) == ["s0"], 60, "a round of s0 alone")
        end = [one for one in run.journal("site") if one["site"] == "s1"][-1]
        equal(end["exit_code"], 128 + signal.SIGTERM, f"exit code of s1 ({end})")
        for site in run.names:
            check("refused" not in run.log(site), f"log of {site}: {run.log(site)}")
        check(newest(run, "s1")[0] >= 15, "s1 has not saved its rounds")
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")


def scenario_sites_that_do_not_reach_each_other_train_through_the_launcher(bed):
    """No route between the hosts of two sites: plain steps and rounds pass through the launcher. The weights equal those of a
    run with direct links to the bit."""
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
        kill_and_join(bed, "launcher-rounds", outer__route="launcher")
    finally:
        for host, other in ways:
            bed.run_in(host, "ip", "route", "del", "prohibit", bed.address(other), as_root=True)
