"""The connection to ZooKeeper: one session for each process, its lease and its requests. All use of kazoo is here."""
