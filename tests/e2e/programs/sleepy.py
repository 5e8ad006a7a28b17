"""A rank that reports a step every tenth of a second through sortie_progress; rank 1 falls asleep in its twentieth step."""
import os
import time

import sortie_progress


def wait_for_a_peer_that_never_comes():
    while True:
        time.sleep(3600)


for number in range(1, 100_000):
    sortie_progress.step(number)
    time.sleep(0.1)
    if number == 20 and os.environ["RANK"] == "1":
        print(f"asleep at {time.time()}", flush=True)
        wait_for_a_peer_that_never_comes()
