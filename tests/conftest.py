"""Settings that hold for every test."""

import os
import signal

import hypothesis

# No test may reach for the network, whatever a library would like to look up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell starts background jobs with Ctrl-C ignored, which children would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first call of torch overruns hypothesis' deadline; derandomised, a failure repeats.
hypothesis.settings.register_profile("ropewalk", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ropewalk")
