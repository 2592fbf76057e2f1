"""The API of locks for Django: `zk_lock` and its kinds, holds, signals, and the transactions of a database."""
