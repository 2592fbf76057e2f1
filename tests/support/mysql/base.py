"""The backend itself: PyMySQL takes the place of mysqlclient, of which there are no wheels for Linux."""

import pymysql

pymysql.install_as_MySQLdb()

from django.db.backends.mysql.base import DatabaseWrapper  # noqa: E402 - it imports MySQLdb

__all__ = ["DatabaseWrapper"]
