"""A column whose texts are equal only if their bytes are."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


class ExactCharField(models.CharField):  # type: ignore[type-arg]  # Django has none at run time
    """
    A `CharField` with the collation of bytes, also on MySQL and MariaDB.

    Their default collations take `Ledger` for `ledger`, `é` for `e`, and ignore blanks at the end.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters: Any = super().db_parameters(connection)
        if connection.vendor == "mysql":
            mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters
