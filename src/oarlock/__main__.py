"""`python -m oarlock` is the same program as `oarlock`."""

from oarlock.cli.main import entry

entry()
