"""The compiled part of ropewalk; everything else about the build is in pyproject.toml.

Without a C compiler the extension is left out and the installation succeeds; ``ropewalk env`` says
which kernels there are.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

CSRC = Path("src/ropewalk/rotary/kernels/csrc")
# No fused multiply-add and no reordering: every instruction set gives the same bits.
FLAGS = (
    [] if sys.platform == "win32" else ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno"]
)

setup(
    ext_modules=[
        Extension(
            "ropewalk.rotary.kernels._native",
            sources=sorted(str(path) for path in CSRC.glob("*.c")),
            depends=sorted(str(path) for path in [*CSRC.glob("*.h"), *CSRC.glob("*.inc")]),
            extra_compile_args=FLAGS,
            libraries=["dl"] if sys.platform == "linux" else [],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
