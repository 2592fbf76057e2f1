"""Other clients' locks in processes that tests control: Apache Curator's and kazoo's."""
