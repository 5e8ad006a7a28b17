"""tensorboard_scalars.py FOLDER: prints every scalar of FOLDER, as read by the TensorBoard package: {"tag": [[step, value], ...]}.

Runs in a virtual environment that has the package (training.tensorboard_reads_the_events creates it)."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[event.step, event.value] for event in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
