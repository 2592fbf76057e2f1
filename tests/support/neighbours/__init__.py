"""Other clients' locks, in processes of their own, that tests drive: Apache Curator's and kazoo's."""
