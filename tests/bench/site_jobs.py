"""Runs of `sortie run` with one site per host of a testbed, on links that can be shaped. For slow_sites, slow_sites_loss and site_losses."""

import json
import subprocess
import sys
from pathlib import Path

from bed_bench import BUILD, ROOT, SORTIE, on_all, shape, shared_folder

sys.path.insert(0, str(ROOT / "scripts/testbed.d"))
import bed as testbed  # noqa: E402

BED_ID = "sites"
EVERY = {"none": 1, "low": 20, "medium": 50, "high": 100}


def shape_sites(count, rate):
    """Limits the links towards each host: the interface of the sender counts packets that the shaper drops. "off": no limits."""
    bed = testbed.Bed(BED_ID)
    for number in range(1, count + 1):
        shape(bed.netns(number), rate)
        # A virtual interface counts the headers of a batch of segments once, while a wire carries those of each.
        subprocess.run(["ip", "netns", "exec", bed.netns(number), "ip", "link", "set", "dev", "eth0", "gso_max_segs", "1"], check=True)


def split_tokens(environment):
    """Builds tokens-train and tokens-validation from the project's own sources. Returns their folder, which all hosts see."""
    shared = shared_folder(environment)
    subprocess.run([BUILD / "bin/sortie-train", "data", "build", "--tokenizer", "byte", "--split", "95,5", "--output",
                    f"{shared}/tokens", "--include", "*.h", "--include", "*.cc", ROOT / "common", ROOT / "launcher",
                    ROOT / "runner", ROOT / "trainer"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["chmod", "-R", "a+rX", shared], check=True)
    return shared


class Job:
    """Runs of one config. `text`: the config without hosts. `settings`: KEY=VALUE, for each run."""

    def __init__(self, sites, environment, folder, text, settings=()):
        self.environment, self.folder, self.settings = environment, Path(folder), settings
        self.names = [f"h{number:02d}" for number in range(1, sites + 1)]
        lines = ", ".join(f'"{name} slots=1 site=site-{name}"' for name in self.names)
        self.config = self.folder / "job.toml"
        self.config.write_text(f"[runner]\nhosts = [{lines}]\n{text}")
        self.runs = 0

    def call(self, verb, *words):
        done = subprocess.run([str(word) for word in (SORTIE, verb, *words)], env=self.environment, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=3600)
        if done.returncode != 0:
            sys.exit(f"sortie {verb}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def sent(self):
        """Returns the bytes that each host's interface has sent."""
        texts = on_all(self.environment, self.names, "ip -s -j link show dev eth0")  # /sys shows the machine's devices
        return [json.loads(text)[0]["stats64"]["tx"]["bytes"] for text in texts]

    def run(self, level, steps, *settings):
        """Trains. Returns (folders of the sites, bytes that each host has sent meanwhile)."""
        self.runs += 1
        state = self.folder / f"state-{self.runs}"
        before = self.sent()
        self.call("run", self.config, "--ssh-config", self.environment["SORTIE_TESTBED_SSH_CONFIG"], "--set",
                  f"logger.log_dir={state}", "--set", f"topology.gradient_compression={level}", "--set",
                  f"trainer.train_iterations={steps}",
                  *[word for one in (*self.settings, *settings) for word in ("--set", one)])
        folder = (state / "runs/latest").resolve()
        return [folder / "sites" / f"site-{name}" for name in self.names], [
            after - one for after, one in zip(self.sent(), before)]

    def predicted(self, level, rate, step_seconds, round_trip):
        text = self.call("plan", self.config, "--json", "--site-rate", rate.replace("mbit", "Mbit/s"), "--step-time",
                         f"{step_seconds:.4f}", "--site-round-trip", f"{round_trip:.3f}", *[word for one in self.settings for word in ("--set", one)])
        between = json.loads(text)["between"]
        return next(one for one in between["levels"] if one["level"] == level), between["parameters"]
