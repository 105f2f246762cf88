"""The compiled twins (dledger/_fast): built where Cython and a compiler are, left out where not.

Everything else about the package is in pyproject.toml. `DLEDGER_BUILD_FAST=0` leaves them out in any case.
"""

import os

from setuptools import Extension, setup


def extensions():
    if os.environ.get("DLEDGER_BUILD_FAST") == "0":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    modules = cythonize(
        [Extension("dledger._fast.compiled", ["dledger/_fast/compiled.pyx"])], build_dir="build"
    )
    for module in modules:
        module.optional = True  # cythonize forgets it
    return modules


setup(ext_modules=extensions())
