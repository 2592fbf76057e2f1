"""The lock core: contenders that queue, holds that can be lost, and the locks that hand them out. Knows no kazoo."""
