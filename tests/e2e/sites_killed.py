"""One of three sites is killed again and again while all of them train: nothing hangs, rounds continue within seconds, and
the model is as good as that of an undisturbed run."""

import json
import os
import random
import signal
import time

from harness import TRAINER, check, equal, run_to_end, wait_until
from sites_training import SitesRun, model_of
from training import ENDLESS, build_tokens

EVERY, KILLS, SITES = 20, 20, 3
OPTIONS = {"sites": SITES, "outer__every": EVERY, "topology__gradient_compression": "medium", "topology__global_batch_size": 6,
           "outer__min_sites": 1, "outer__deadline": "0s", "runner__grace": "10s", "runner__heartbeat_timeout": "60s",
           "recovery__max_restarts": 100, "recovery__backoff": "0s",
           "recovery__no_progress_limit": 0, "learning_rate_scheduler__learning_rate_decay_style": "warmup-stable-decay"}
WITHIN = 15.0  # limit in seconds to the next round without the site


def eval_loss(bed, folder):
    done = run_to_end(TRAINER, "eval", folder, "--data", build_tokens(bed), "--samples", "2000", "--json", seconds=120)
    equal(done.returncode, 0, f"exit code of eval ({done.stderr})")
    return json.loads(done.stdout)["loss"]


def train_to(bed, name, steps, decay, goes_on):
    """Trains all sites to step `steps` and returns the loss of their model. In the last `decay` steps the learning rate falls to 0: at
    a constant one the losses of two runs differ by more than the effect that is looked for."""
    with SitesRun(bed, name, goes_on=goes_on, **{**OPTIONS, "steps": steps, "learning_rate_scheduler__wsd_decay_steps": decay}) as run:
        equal(run.run.wait(400), 0, "exit code")
        found = [model_of(run.weights(site, steps)) for site in run.names]
        check(all(one == found[0] for one in found), "different weights at the end")
        return eval_loss(bed, run.folder / "site-s0")


def scenario_one_of_three_sites_is_killed_20_times(bed):
    choice = random.Random(3)
    waits = []
    with SitesRun(bed, "killed-20", **{**OPTIONS, "steps": ENDLESS}) as run:
        def commits():
            return [one for one in run.journal("round") if one["what"] == "committed"]
        wait_until(lambda: len(run.commits()) >= 3, 60, "three rounds")
        for _ in range(KILLS):
            site = choice.choice(run.names)
            rank = wait_until(lambda: run.rank_of(site), 40, f"the rank of {site}")
            time.sleep(choice.uniform(1, 3))
            killed = time.time()
            os.kill(rank, signal.SIGKILL)
            def others():
                return [one for one in commits() if one["time"] > killed and site not in one["sites"]]
            first = wait_until(others, 60, f"a round without {site}")[0]
            equal(sorted(first["sites"] + [site]), run.names, "sites of that round")
            waits.append(first["time"] - killed)
            back = max(run.commits())
            wait_until(lambda: any(number > back and members == run.names for number, members in run.commits().items()), 60,
                       f"{site} in a round again")
        run.run.signal(signal.SIGINT)
        equal(run.run.wait(60), 130, "exit code")
        rounds = max(run.commits())
        equal(sorted(run.commits()), list(range(1, rounds + 1)), "rounds that were committed")
        without = sum(len(members) < SITES for members in run.commits().values())
    print(f"{KILLS} kills, {rounds} rounds, {without} of them without a site; next round after {max(waits):.1f} s at most")
    check(max(waits) <= WITHIN, f"seconds to the next round: {waits}")
    decay = rounds // 4 * EVERY
    steps = rounds * EVERY + decay
    disturbed = train_to(bed, "killed-20", steps, decay, goes_on=True)
    alone = train_to(bed, "undisturbed", steps, decay, goes_on=False)
    print(f"loss {disturbed:.4f} after kills, {alone:.4f} undisturbed")
    check(disturbed <= 1.02 * alone, f"loss {disturbed}, {alone} undisturbed")
