"""scripts/gpu_suites with a bundle: suites run on the bundle's module and data, and a suite that runs no case is a failure.
scripts/gpu_bundle.d/run unpacks the programs of the bundle once."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT, FIXTURES = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])  # the test program that reads tests/data/hf
SUITE = """#!/bin/sh
test "$SORTIE_TEST_DEVICE $SORTIE_CUDA_MODULE $SORTIE_TEST_DATA" = "cuda {bundle}/bin/libsortie-cuda.so {bundle}/data" || exit 5
echo "test cases: $1 | $1 passed"
"""


def run(command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    return done.returncode, done.stdout + done.stderr


with tempfile.TemporaryDirectory() as folder:
    bundle = pathlib.Path(folder).resolve()
    (bundle / "bin").mkdir()
    for name, text in (("gpu_facts", "#!/bin/sh\n"), ("suite", SUITE.format(bundle=bundle))):
        (bundle / "bin" / name).write_text(text)
        (bundle / "bin" / name).chmod(0o755)
    for cases, data, expected in ((1, True, "1 suites passed"), (1, False, "trainer/x: FAILED (5)"), (0, True, "trainer/x: ran no case")):
        (bundle / "suites.json").write_text(json.dumps({"trainer/x": ["suite", str(cases)]}))
        if data:
            (bundle / "data").mkdir(exist_ok=True)
        elif (bundle / "data").exists():
            (bundle / "data").rmdir()
        code, out = run([ROOT / "scripts/gpu_suites", bundle, "--sanitizer", "no"])
        assert expected in out and (code == 0) == ("passed" in expected), (cases, data, code, out)
    # The program of Hugging Face folders reads them in this folder: here are none.
    (bundle / "data/hf").mkdir(parents=True)
    code, out = run([FIXTURES, "--test-case=every family equals*"], SORTIE_TEST_DATA=str(bundle / "data"))
    assert code != 0 and "folders.size() >= 15" in out, (code, out)
    (bundle / "scripts").mkdir()
    for script in ("gpu_suites", "gpu_bundle.d/run"):
        shutil.copy(ROOT / "scripts" / script, bundle / ("run" if script.endswith("run") else "scripts"))
    (bundle / "version").write_text("of a test")
    shutil.copy("/bin/true", bundle / "bin/sortie-train")
    with tarfile.open(bundle / "programs.tar.xz", "w:xz") as packed:
        packed.add(bundle / "bin", "bin")
    shutil.rmtree(bundle / "bin")
    (bundle / "suites.json").write_text(json.dumps({"trainer/x": ["suite", "1"]}))
    for call in (1, 2):
        code, out = run([bundle / "run", "suites"])
        assert code == 0 and "1 suites passed" in out, (call, code, out)
        assert not (bundle / "programs.tar.xz").exists() and os.access(bundle / "bin/suite", os.X_OK)
    (bundle / "programs.tar.xz").write_bytes(b"")
    (bundle / "no_lzma").mkdir()  # a Python without it
    (bundle / "no_lzma/lzma.py").write_text("raise ImportError")
    code, out = run([bundle / "run", "facts"], PYTHONPATH=str(bundle / "no_lzma"))
    assert code != 0 and "no module lzma" in out and "programs.tar.xz" in out, (code, out)
