"""The rules of a lock's queue, as pure functions: they know no ZooKeeper client, no clock and no thread."""
