"""Django's backend for MySQL and MariaDB, with a driver that needs no compiler."""
