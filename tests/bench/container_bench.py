"""Code that the benchmarks with containers share: the image, engines that have it, the table."""

import concurrent.futures
import subprocess
import sys

from bed_bench import BUILD, ROOT

sys.path.insert(0, str(ROOT / "scripts/testbed.d"))
import bed as testbed  # noqa: E402
import engine  # noqa: E402

IMAGE = "sortie-test:cpu"


def image():
    """Builds the image of this build. Returns its archive."""
    archive = BUILD / "images/sortie-test.tar"
    subprocess.run([ROOT / "scripts/build-image", "--test", "--no-build", "--output", archive], check=True,
                   stdout=subprocess.DEVNULL)
    return archive


def docker(bed_id, number, *arguments):
    bed = testbed.Bed(bed_id)
    argv = engine.docker_argv(bed, bed.host_name(number), *arguments)
    return subprocess.run(argv, check=True, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout


def docker_host(bed_id, number):
    bed = testbed.Bed(bed_id)
    return f"unix://{engine.socket_path(bed, bed.host_name(number))}"


def load_all(bed_id, numbers, archive):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: docker(bed_id, number, "load", "--quiet", "--input", archive), numbers))


def table():
    """Returns the `--set` words for [runner.container]. ulimits is empty, because a small machine can not grant the default."""
    keys = {"engine": "docker", "image": IMAGE, "ulimits": "{}"}
    return [word for key, value in keys.items() for word in ("--set", f"runner.container.{key}={value}")]
