"""The rules of a lock's queue, as pure functions, without a ZooKeeper client, a clock or threads."""
