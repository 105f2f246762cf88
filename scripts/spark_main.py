"""Main file for spark-submit: `spark-submit --py-files dledger-*.whl spark_main.py audit STORE ...`."""

import runpy

runpy.run_module("dledger.spark", run_name="__main__")
