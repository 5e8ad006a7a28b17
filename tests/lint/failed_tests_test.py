"""What scripts/failed_tests prints of a log of ctest: failed_tests_test.py ROOT"""

import pathlib
import subprocess
import sys
import tempfile

BLOCK = """{n}/4 Testing: {name}
{n}/4 Test: {name}
Command: "x"
Directory: /d
"{name}" start time: Nov 24 01:19 UTC
Output:
----------------------------------------------------------
{output}<end of output>
Test time =   0.96 sec
----------------------------------------------------------
{verdict}
"{name}" end time: Nov 24 01:19 UTC
"{name}" time elapsed: 00:00:00
----------------------------------------------------------

"""
MANY = "".join(f"line {i}\n" for i in range(100))
TESTS = [("wire: good", "all is well\n", "Test Passed."), ("e2e: bad", MANY, "Test Failed."),
         ("runner: late", "Test Passed.\n" + "x" * 1000 + "\n", "Test Timeout."), ("last: bad", "", "Test Failed.")]


def main():
    program = pathlib.Path(sys.argv[1]) / "scripts/failed_tests"
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "Testing/Temporary/LastTest.log"
        log.parent.mkdir(parents=True)
        log.write_text("Start testing: Nov 24 01:19 UTC\n" + "-" * 58 + "\n"
                       + "".join(BLOCK.format(n=n + 1, name=name, output=output, verdict=verdict)
                                 for n, (name, output, verdict) in enumerate(TESTS)) + "End testing: Nov 24 01:20 UTC\n")
        lines = subprocess.run([program, folder], text=True, capture_output=True, check=True).stdout.splitlines()
        wanted = (["", "--- e2e: bad: the last 40 of 100 lines"] + [f"line {i}" for i in range(60, 100)]
                  + ["", "--- runner: late: the last 2 of 2 lines", "Test Passed.", "x" * 400, "", "--- last: bad: the last 0 of 0 lines"])
        if lines != wanted:
            sys.exit("failed_tests printed:\n" + "\n".join(lines))
        log.unlink()
        missing = subprocess.run([program, folder], text=True, capture_output=True)
        if missing.returncode == 0 or "No such file" not in missing.stderr:
            sys.exit(f"without a log: exit code {missing.returncode}, {missing.stderr!r}")


if __name__ == "__main__":
    main()
