"""Everything that knows kazoo: the client, the one session of this process, its lease, and the verbs of the gateway."""
