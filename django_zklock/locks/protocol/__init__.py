"""The protocol of a lock on ZooKeeper. All of it runs on the protocol's thread."""
