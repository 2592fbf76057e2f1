"""What tests of code that takes locks need: a ZooKeeper to run against, faults, asserts. Importing it imports none."""
