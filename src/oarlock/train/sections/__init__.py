"""The sections of a configuration, one file per group, and how they are read; `oarlock.train.config` is the door."""
